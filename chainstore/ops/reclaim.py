"""Reclaim: bytes of packs given back to the file system.

A pack is touched only while its flock is ours: a writer holds it from the first byte until it has published.
"""

from dataclasses import dataclass, field

from chainstore.odb.rows import Ranges, merged
from chainstore.odb.view import View
from chainstore.ops.garbage import Doomed, PackContent
from chainstore.storage import fs
from chainstore.storage.pack import PackDir

PUNCH_BYTES = 64 << 10  # shorter runs are not worth a hole: they go when what is kept around them is moved


@dataclass(slots=True)
class HeldPack:
    """A pack whose flock we hold.

    Attributes:
        dead: ranges that the log says hold nothing.
        retired: whether the log says that nothing in it is of use any more.
    """

    content: PackContent
    file: fs.File
    dead: Ranges = field(default=())
    retired: bool = False

    @property
    def name(self) -> bytes:
        return self.content.line.pack

    def is_useless_with(self, ranges: Ranges) -> bool:
        """Whether nothing that was in it when we looked is of use once `ranges` are dead too."""
        return merged((*self.dead, *ranges)) == ((0, self.content.line.length),)

    def may_retire(self, view: View, ranges: Ranges) -> bool:
        """Whether nothing in it is of use once `ranges` are dead too, nor was added before it was ours to hold.

        Args:
            view: with everything published; somebody may have written to it between our look and our flock.
        """
        number = view.pack_number(self.name)
        if number is None or view.pack(number).length != self.content.line.length:
            return False
        return self.is_useless_with(ranges)

    def bury(self, ranges: Ranges) -> None:
        """Note that the log says by now that ranges are dead."""
        self.dead = merged((*self.dead, *ranges))

    def close(self) -> None:
        """Give it back."""
        self.file.close()


class Batch:
    """What one publication says is dead, by pack, and the packs of which it says the last.

    Attributes:
        ranges: name of a pack -> it, what is dead in it, and the records there whose objects go.
        rows: how many of these there are.
        done: packs of which nothing comes after this.
    """

    def __init__(self) -> None:
        self.ranges: dict[bytes, tuple[HeldPack, Ranges, list[Doomed]]] = {}
        self.rows = 0
        self.done: list[HeldPack] = []

    def add(self, pack: HeldPack, ranges: Ranges, doomed: list[Doomed]) -> None:
        """Take in more of a pack."""
        _, before, rows = self.ranges.get(pack.name, (pack, (), []))
        self.ranges[pack.name] = pack, merged((*before, *ranges)), rows + doomed
        self.rows += len(doomed)


def hold(packs: PackDir, content: PackContent) -> HeldPack | None:
    """Return a pack, held; None where somebody writes to it, or where it is missing."""
    file = packs.take_over(content.line.pack)
    return HeldPack(content, file, content.line.dead) if file is not None else None


def reclaim(pack: HeldPack, packs: PackDir) -> int:
    """Give back what the log says is dead: long runs, or the file itself; returns bytes, as allocated on disk."""
    before = pack.file.allocated()
    if pack.retired:
        remove(pack.name, pack.file, packs)
        return before
    for start, stop in pack.dead:
        if stop - start >= PUNCH_BYTES and not pack.file.punch(start, stop - start):
            break  # this file system has no holes; what is kept is moved instead
    return before - pack.file.allocated()


def remove(name: bytes, file: fs.File, packs: PackDir) -> None:
    """Remove a pack that we hold; its bytes are given back at once, whoever else still has it open."""
    packs.let_go(name)
    path = packs.path(name)
    file.truncate(0)
    fs.unlink(path, missing_ok=True)
    fs.sync_dir(path.parent)


def scattered_bytes(pack: HeldPack) -> int:
    """Return the bytes that a pack takes on disk beyond what is kept in it."""
    closing = pack.content.line.length - pack.content.records_end
    return max(0, pack.file.allocated() - pack.content.kept_bytes - closing)
