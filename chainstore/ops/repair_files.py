"""Small files: `format` and `keyring`, each of a pair with its backup, made anew from the twin or from a copy.

Without them nothing opens, so this works on a directory.
"""

from contextlib import suppress

from chainstore.errors import Damaged, StorageError, WrongRepository
from chainstore.leases import publish_lock
from chainstore.odb.layout import Layout
from chainstore.ops.verify_ground import PAIRS, parse_small_file
from chainstore.storage import fs
from chainstore.storage.pack import PackDir, salvage


def heal_files(layout: Layout, source: Layout | None, who: str) -> list[str]:
    """Write `format` and `keyring`, or their backups, anew where they are damaged; return which.

    What one of a pair lost is taken from its twin, and from `source` where both are damaged.

    Raises:
        WrongRepository: `source` is a copy of something else.
        StoreFull, StorageError: they cannot be written.
    """
    healed = []
    for name in PAIRS:
        pair = (name, f"{name}.bak")
        whole = {file: data for file in pair if (data := _whole(layout, file)) is not None}
        if len(whole) == len(pair) or (name == PAIRS[1] and not _is_encrypted(layout, source)):
            continue
        best = next(iter(whole.values()), None)
        if best is None and source is not None:
            best = _theirs(layout, source, pair)
        if best is None:
            continue
        with publish_lock(layout.leases, who):
            for file in pair:
                if file not in whole:
                    fs.write_atomic(layout.root / file, best)
                    healed.append(file)
    return healed


def _theirs(layout: Layout, source: Layout, pair: tuple[str, str]) -> bytes | None:
    """Return what a copy has, if it is a copy of what lies here: the packs say that where no format file does.

    Raises:
        WrongRepository: it is not.
    """
    best = next((data for file in pair if (data := _whole(source, file)) is not None), None)
    if best is None:
        return None
    theirs, ours = source.read_format().repo_id, _repo_id(layout)
    if ours != theirs:
        told = ours.hex() if ours is not None else "what can be told"
        raise WrongRepository(f"{source.root} is repository {theirs.hex()}, not {told}", hint="name a copy of this one")
    return best


def _repo_id(layout: Layout) -> bytes | None:
    packs = PackDir(layout.packs)
    for name in packs.names():
        with fs.open_file(packs.path(name)) as file:
            for _, header in salvage(file, 0, file.size(), name.hex()):
                return header.repo_id
    return None


def _is_encrypted(layout: Layout, source: Layout | None) -> bool:
    for each in (layout, source):
        with suppress(Damaged):
            if each is not None:
                return each.read_format().encrypted
    return False


def _whole(layout: Layout, name: str) -> bytes | None:
    try:
        return parse_small_file(layout, name)
    except (Damaged, StorageError):
        return None
