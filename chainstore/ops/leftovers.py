"""Leftovers: bytes in the directory that the log does not speak of.

What a process that died left behind: packs that were never published, bytes past a pack's committed length, packs
that were retired and not yet removed, drafts of small files.  Files that are not ours are named and left alone.
"""

import re
from dataclasses import dataclass

from chainstore.model.change import PackLine
from chainstore.odb.local import LocalDatabase
from chainstore.odb.standing import Standing
from chainstore.ops.reclaim import remove
from chainstore.storage import fs

_DRAFT = re.compile(r"\.(format|keyring|index\.owner|gc\.clean)(\.bak)?\.[0-9]+\.[0-9a-f]+\.tmp")
_OURS = {"format", "format.bak", "keyring", "keyring.bak", "log", "packs", "index", "index.owner", "leases", "reserve"}
_OURS |= {"quarantine", "user.key"}


@dataclass(frozen=True, slots=True)
class Leftover:
    """A pack of which some bytes belong to nobody: all of it (`keep` is 0), or what follows `keep` bytes."""

    name: bytes
    keep: int
    nbytes: int


def find_leftovers(db: LocalDatabase) -> list[Leftover]:
    """Return packs, or tails of packs, that nobody published; some may still be in the making."""
    with db.view() as view:
        known = {line.pack: line for _, line in view.packs()}
    found = []
    for name in db.packs.names():
        size, keep = db.packs.size(name), _keep(known.get(name))
        if size > keep or not keep:
            found.append(Leftover(name, keep, size - keep))
    return found


def remove_leftovers(db: LocalDatabase, standing: Standing) -> tuple[int, int]:
    """Remove what nobody is at work on; return the bytes that gave back on disk, and how many packs are gone.

    Args:
        standing: what the log says of packs, which decides: a damaged page of the index can hide one.
    """
    freed = removed = 0
    for leftover in find_leftovers(db):
        standing.advance(db.position())  # all of it the first time, so while others go on
        with db.turn() as turn:  # first: a new pack is made, and its flock taken, within a turn
            standing.advance(turn.position)
            file = db.packs.take_over(leftover.name)
        if file is None:
            continue  # somebody writes to it
        with file:  # as long as its flock is ours, nobody publishes any of it
            before, keep = file.allocated(), standing.packs.get(leftover.name, 0)
            if not keep:
                remove(leftover.name, file, db.packs)
                freed, removed = freed + before, removed + 1
            elif file.size() > keep:
                file.truncate(keep)
                freed += before - file.allocated()
    with db.turn():
        for folder in (db.layout.root, db.layout.leases):
            for name in fs.list_dir(folder):
                if _DRAFT.fullmatch(name):
                    fs.unlink(folder / name, missing_ok=True)
    return freed, removed


def foreign_files(db: LocalDatabase) -> list[str]:
    """Return the names of files and folders in the repository that are not ours, relative to it."""
    root = db.layout.root
    found = [name for name in fs.list_dir(root) if name not in _OURS and not _DRAFT.fullmatch(name)]
    ours = {name.hex() for name in db.packs.names()}
    for folder in fs.list_dir(db.layout.packs):
        if not re.fullmatch("[0-9a-f]{2}", folder):
            found.append(f"packs/{folder}")
        elif (db.layout.packs / folder).is_dir():
            found += [f"packs/{folder}/{name}" for name in fs.list_dir(db.layout.packs / folder) if name not in ours]
    found += [f"log/{name}" for name in fs.list_dir(db.layout.log) if not re.fullmatch("[0-9]{8,18}", name)]
    return sorted(found)


def _keep(line: PackLine | None) -> int:
    return line.length if line is not None and not line.retired else 0
