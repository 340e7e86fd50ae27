"""Moving: records that are kept, copied into another pack so that theirs can go.

A record is copied as it is, byte for byte, once its checksum was right; one that is damaged stays where it is, and so
does its pack.  Each batch is one line of the log: the new pack grew, the old ranges are dead.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from chainstore.errors import Malformed
from chainstore.model.change import Change, Dead, PackGrown, Retired
from chainstore.model.frame import Buffer, Header, frame_record, split_record
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rows import Place, Placed, is_inline, merged
from chainstore.odb.turn import Turn
from chainstore.ops.reclaim import HeldPack, reclaim, remove, scattered_bytes
from chainstore.storage.pack import PACK_BYTES, PackWriter, is_crowded

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 1000
_WORTH_MOVING = 25  # kept bytes that are copied for one that is freed, at most
_SMALL_BYTES = 64 << 10

Recode = Callable[[Header, memoryview], tuple[Header, Buffer]]
Records = list[tuple[int, int, bytes]]
Turns = Callable[[], AbstractContextManager[Turn]]


class Target:
    """Packs of our own that records are written to, one after the other.

    Args:
        turns: gives turns at publishing, in which everything published before was looked at.

    Attributes:
        written_bytes: of records.
        taken_bytes: that the packs which were written to and given up since take on disk.
    """

    def __init__(self, db: LocalDatabase, turns: Turns) -> None:
        self._db, self._turns = db, turns
        self._pack: PackWriter | None = None
        self._listed: list[tuple[int, Header]] = []
        self._contents = 0
        self.written_bytes = self.taken_bytes = 0

    def make_room(self, nbytes: int) -> None:
        """Go over to a new pack where a batch might not fit into the one at hand."""
        if self._pack is not None and self._pack.end + 2 * nbytes > PACK_BYTES:
            self.close()
        if self._pack is None:
            with self._turns():  # or it could be taken for one that nobody wants
                self._pack = self._db.packs.create(self._db.around.random(16))

    def write(self, header: Header, parts: Sequence[Buffer]) -> Placed:
        """Write a record into the room that was made; not durable before `finish`."""
        assert self._pack is not None
        offset = self._pack.reserve(header.record_bytes)
        assert offset is not None, "there is room for a batch before it begins"
        self._pack.write(offset, parts)
        self._listed.append((offset, header))
        self.written_bytes += header.record_bytes
        return Placed(offset, header, b"".join(parts) if is_inline(header.kind, header.record_bytes) else None)

    def finish(self) -> list[Change]:
        """Make what was written durable, and return what the log has to say of it."""
        if self._pack is None or self._pack.end == self._pack.start:
            return []
        if is_crowded(self._pack.end):
            self._contents = self._pack.finish(sorted(self._listed), self._db.sealer.repo_id)
        self._pack.sync()
        return [PackGrown(self._pack.name, self._pack.start, self._pack.end, self._contents)]

    def published(self) -> None:
        """Note that the log says by now what `finish` returned."""
        if self._pack is not None:
            self._pack.start = self._pack.end
        if self._contents:
            self.close()

    def close(self) -> None:
        """Give the last pack up; others may go on with it."""
        if self._pack is not None:
            trusted = self._pack.file.trusted
            if trusted and not self._pack.start:
                remove(self._pack.name, self._pack.file, self._db.packs)  # nothing was published there after all
            self.taken_bytes += self._pack.file.allocated() if trusted else 0
            self._pack.close()
            self._pack, self._listed, self._contents = None, [], 0


@dataclass(frozen=True, slots=True)
class _Copy:
    """A record in its new place, and where it was."""

    placed: Placed
    start: int
    stop: int


class Mover:
    """Copies records into packs of its own.

    Args:
        turns: gives turns at publishing, in which everything published before was looked at.
        recode: makes another record of the same object; None: it stays as it is.
        target: where they go; None: to packs that nobody else uses meanwhile.

    Attributes:
        moved_bytes: of records that were copied.
        freed_bytes: that packs took which were given up.  removed: how many of them.
        problems: what is damaged and stays where it is.
    """

    def __init__(
        self, db: LocalDatabase, turns: Turns, recode: Recode | None = None, target: Target | None = None
    ) -> None:
        self._db, self._turns, self._recode = db, turns, recode
        self._target = target or Target(db, turns)
        self.moved_bytes = self.freed_bytes = self.removed = 0
        self.problems: list[str] = []

    def move_if_worth(self, pack: HeldPack, *, scarce: bool) -> int:
        """Move everything that is kept of a pack if its useless bytes are worth that, and give the pack back.

        Returns:
            The useless bytes that it goes on to take on disk.

        Raises:
            StoreFull: see `move`.
        """
        with pack.file:
            nbytes = scattered_bytes(pack)
            if nbytes < _SMALL_BYTES or nbytes * _WORTH_MOVING < pack.content.kept_bytes:
                return nbytes
            self.move(pack, scarce=scarce)
        return 0

    def move(self, pack: HeldPack, *, scarce: bool) -> None:
        """Move everything that is kept of a pack, and remove it.

        Args:
            scarce: give back the bytes of each batch before the next.

        Raises:
            StoreFull: what was moved by then has moved, and the rest is where it was.
        """
        before = pack.file.allocated()
        left, whole = pack.content.kept, True
        try:
            while left:
                batch, left = _first_batch(left)
                copies = self._copy(pack, batch)
                whole &= len(copies) == len(batch)
                self._publish(pack, copies, last=whole and not left)
                if scarce:
                    reclaim(pack, self._db.packs)
        finally:
            if pack.retired:
                self.removed += 1
                self.freed_bytes += before
                reclaim(pack, self._db.packs)
            else:
                reclaim(pack, self._db.packs)
                self.freed_bytes += before - pack.file.allocated()

    def close(self) -> None:
        """Give the last pack up; others may go on with it."""
        self._target.close()

    def _copy(self, pack: HeldPack, batch: Records) -> list[_Copy]:
        """Write records to the pack that they move to."""
        self._target.make_room(sum(stop - start for start, stop, _ in batch))
        copies = []
        for start, stop, id in batch:
            data = memoryview(pack.file.pread(start, stop - start))
            try:
                header, payload = split_record(data, f"pack {pack.name.hex()}", start)
            except Malformed as error:
                self.problems.append(f"{error}: its pack stays as it is")
                continue
            if header.id != id:
                self.problems.append(f"pack {pack.name.hex()} holds another record at byte {start} than the index says")
                continue
            parts: list[Buffer] = [data]
            if self._recode is not None:
                header, recoded = self._recode(header, payload)
                parts = frame_record(header, recoded)
            copies.append(_Copy(self._target.write(header, parts), start, stop))
            self.moved_bytes += header.record_bytes
        return copies

    def _publish(self, pack: HeldPack, copies: list[_Copy], *, last: bool) -> None:
        """Publish that records moved; those that moved meanwhile, or went, are left as they are."""
        changes = self._target.finish()
        dead = [(copy.start, copy.stop) for copy in copies]
        if last:
            dead.append((pack.content.records_end, pack.content.line.length))
        ids = [copy.placed.header.id for copy in copies]
        with self._turns() as turn:
            with turn.view() as view:
                current = [c for c in copies if lies_at(view.place(c.placed.header.id), pack.content.number, c.start)]
                retires = pack.may_retire(view, merged(dead))
            changes += [Dead(pack.name, merged(dead))] if dead else []
            changes += [Retired(pack.name)] if retires else []
            if changes:
                turn.publish(changes, lambda growth: [copy.placed for copy in current], lambda change: ids)
        pack.bury(merged(dead))  # the log says so now
        pack.retired = retires
        self._target.published()


def lies_at(place: Place | None, pack: int, offset: int) -> bool:
    """Return whether an object has its record there."""
    return place is not None and place.pack == pack and place.offset == offset


def _first_batch(records: Records) -> tuple[Records, Records]:
    """Return the records of one batch, and the rest."""
    nbytes = 0
    for number, (start, stop, _) in enumerate(records):
        nbytes += stop - start
        if number and (nbytes > _BATCH_BYTES or number >= _BATCH_RECORDS):
            return records[:number], records[number:]
    return records, []
