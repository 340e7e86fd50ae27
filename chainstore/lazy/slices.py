"""Slices: rows of one stored array, read without the rest of it."""

from collections.abc import Iterator, Sequence
from typing import Any

from chainstore.errors import InvalidInput
from chainstore.lazy.content import Content
from chainstore.model.paths import format_path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent
from chainstore.state import Assembly


class ArraySlice:
    """Rows of one stored array; indexing reads only the chunks they lie in."""

    def __init__(self, content: Content, entry: Entry) -> None:
        node = entry.node
        plain = isinstance(node, list) and len(node) <= 2
        if entry.spec is None or not entry.spec.shape or not plain:
            raise InvalidInput(f"{format_path(entry.path)!r} is not stored in rows; load it whole")
        self._content, self._entry = content, entry
        self._spec = entry.spec

    def __len__(self) -> int:
        return self._spec.shape[0]

    def __getitem__(self, rows: slice | int) -> Any:
        """Return rows of the first dimension: an array for a slice, one row for a number."""
        if isinstance(rows, int):
            index = range(len(self))[rows]
            return self[index : index + 1][0]
        if not isinstance(rows, slice):
            raise InvalidInput(f"rows are a slice or a number, not {type(rows).__name__}")
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise InvalidInput("rows are read in order; a step is not supported, index the result")
        assembly = Assembly([self._part(start, max(start, stop))], root=self._entry.path)
        self._content.fill(assembly.destinations)
        return assembly.build()

    def _part(self, start: int, stop: int) -> Entry:
        """Return the entry of rows [start, stop) as if they were all of the array."""
        shape = (stop - start, *self._spec.shape[1:])
        row = self._spec.nbytes // len(self) if len(self) else 0
        extents = tuple(_cut(self._entry.extents, start * row, stop * row))
        return Entry(self._entry.path, self._entry.node, Spec(self._spec.dtype, shape), extents)


def _cut(extents: Sequence[Extent], start: int, stop: int) -> Iterator[Extent]:
    position = 0
    for extent in extents:
        low, high = max(start, position), min(stop, position + extent.length)
        if low < high:
            yield Extent(extent.chunk, extent.offset + low - position, high - low)
        position += extent.length
