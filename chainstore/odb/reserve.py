"""The reserve: disk space that a repository keeps, to be given up when the disk is full.

Whoever frees space needs some to say so: a line of the log, a few pages of the index.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from chainstore.errors import StorageError
from chainstore.odb.layout import RESERVE_BYTES, Layout
from chainstore.storage import fs

_SCARCE_BYTES = 8 << 20


@contextmanager
def reserve_given_up(layout: Layout, *, all_of_it: bool = True) -> Iterator[bool]:
    """Give up the reserve where space is short, and take it again at the end where there is enough; yields which.

    Args:
        all_of_it: or half, by somebody after whom another will need the rest.
    """
    scarce = is_scarce(layout)
    if scarce:
        _resize(layout, 0 if all_of_it else RESERVE_BYTES // 2)
    try:
        yield scarce
    finally:
        if not is_scarce(layout):
            with suppress(StorageError):  # the next one who frees space takes it
                _resize(layout, RESERVE_BYTES)


def is_scarce(layout: Layout) -> bool:
    """Whether so little space is left that work has to go in small steps."""
    return fs.free_bytes(layout.root) < _SCARCE_BYTES


def _resize(layout: Layout, nbytes: int) -> None:
    with fs.open_file(layout.root / "reserve", write=True, create=True) as file:
        if nbytes and file.size() < nbytes:
            file.preallocate(nbytes)
        elif nbytes < file.size():
            file.truncate(nbytes)
            file.fdatasync()  # some file systems give space back only then
