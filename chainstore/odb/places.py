"""Places: the disk of this machine that an index lies on, where it cannot lie in its repository.

LMDB maps its file into memory, which no network file system does safely.  So the index of a repository on a network
disk is kept on a disk of the machine that works on it, in a folder named after the repository.  It can always be made
again from the log and the packs; where it goes is chosen anew by each machine, and the repository says only which
index is in force, not where.

    <one of layout.local_dirs>/<repository id>/<index uuid>/           the index in force
    <one of layout.local_dirs>/<repository id>.private/<index uuid>/   an index that only readers here use (`private`)
"""

from collections.abc import Iterator
from pathlib import Path

from chainstore.errors import ChainError, UnsuitablePlace
from chainstore.observe import Notice
from chainstore.odb.layout import Layout
from chainstore.odb.surroundings import Surroundings
from chainstore.storage import fs

_ALONE = 0o700  # in a folder of everybody's, /tmp above all, nobody may put another index in place of ours
_HINT = "name a local directory: index_dir=, --index-dir, or CHAIN_INDEX_DIR"


def place_index(layout: Layout, repo_id: bytes) -> Layout:
    """Return a layout whose index lies on a local disk, where the repository is on a network disk and nobody said more.

    Raises:
        UnsuitablePlace: no local directory can be written to.
    """
    if layout.index_dir is not None or not layout.on_network:
        return layout
    best = local_root(layout, repo_id.hex())
    others = (place for place in _existing(layout, repo_id.hex()) if place != best)
    return layout.with_index((best, *others))


def place_private(layout: Layout, repo_id: bytes) -> Layout:
    """Return a layout for an index of this machine's readers, with an owner file of its own.

    Raises:
        UnsuitablePlace: no local directory can be written to.
    """
    name = f"{repo_id.hex()}.private"
    root = layout.index_dir / name if layout.index_dir is not None else local_root(layout, name)
    return layout.with_index((root,), root / "index.owner")


def local_root(layout: Layout, name: str) -> Path:
    """Return the folder `name` in the best local directory, made where it is not there.

    Raises:
        UnsuitablePlace: says of each directory why it was passed over.
    """
    refused = []
    for directory in layout.local_dirs:
        why = _why_not(directory / name)
        if not why:
            return directory / name
        refused.append(f"{directory} {why}")
    raise UnsuitablePlace(
        f"there is no local disk for the index of {layout.root} ({'; '.join(refused) or 'none was named'})", hint=_HINT
    )


def tell(around: Surroundings, layout: Layout, why: str) -> None:
    """Say once that an index was made outside of its repository, and why."""
    around.observer(Notice("index-place", f"{why}; its index was made in {layout.index_root}"))


def _existing(layout: Layout, name: str) -> Iterator[Path]:
    for directory in layout.local_dirs:
        place = directory / name
        if not fs.is_network_file_system(place) and _is_ours(place):
            yield place


def _is_ours(place: Path) -> bool:
    try:
        return fs.is_ours_alone(place)
    except ChainError:
        return False


def _why_not(place: Path) -> str:
    """Return why an index cannot be kept in a folder, "" if it can; the folder is made."""
    mount = fs.find_mount(place)
    if mount.network:
        return f"is on {mount.type}"
    try:
        fs.make_dirs(place, _ALONE)
    except (OSError, ChainError):
        return "cannot be written"
    if not _is_ours(place):
        return "holds a folder of this name that others may write to"
    return "" if fs.may_write(place) else "cannot be written"
