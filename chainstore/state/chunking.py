"""Chunks: where an array is cut, so that equal parts of two snapshots are cut alike.

Chunks have a fixed size that depends on dtype and shape alone and end between items, where they can between rows:
an edit touches its own chunk only, and boundaries leak nothing but shapes.

    >>> chunk_length(Spec("float32", (1000, 100)), target=1000)
    800
"""

from collections.abc import Iterator

from chainstore.model.spec import Spec, find_dtype

TARGET_BYTES = 1 << 20


def chunk_length(spec: Spec | None, target: int = TARGET_BYTES) -> int:
    """Return the length in bytes of every chunk but the last of an array.

    It is the largest multiple of a row (the bytes of one index of the first dimension) that is at most `target`;
    where a row is longer than that, of an item; and never less than one item.

    Args:
        spec: None for bytes of unknown kind, which have rows of one byte.
        target: bytes, at least 1.
    """
    if target < 1:
        raise ValueError(f"a chunk cannot have {target} bytes")
    if spec is None:
        return target
    itemsize = find_dtype(spec.dtype).itemsize
    row = itemsize
    for size in spec.shape[1:]:
        row *= size
    unit = row if 0 < row <= target else itemsize
    return max(unit, target // unit * unit)


def ranges(nbytes: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each chunk of `nbytes` bytes; nothing where there are none."""
    for start in range(0, nbytes, chunk):
        yield start, min(start + chunk, nbytes)
