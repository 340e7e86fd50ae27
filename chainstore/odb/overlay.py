"""An overlay: what the log knows and the index does not yet, for a reader that may not write.

A process that died between the commit point and the index leaves lines that only the log holds.  A writer settles
them; a reader applies them in memory, so that it sees what was committed without changing a byte.
"""

from collections.abc import Callable, Iterator, Sequence

from chainstore.model.change import PackGrown, decode_changes
from chainstore.model.frame import Line
from chainstore.odb.editor import Editor
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed, Rows
from chainstore.storage.log import Position

_Table = dict[bytes, bytes | None]


class Overlay:
    """Rows in memory that hide those of the index.

    Attributes:
        seq: the last line that was applied; an index that is as far needs no overlay.
    """

    def __init__(self, seq: int, tables: dict[str, _Table]) -> None:
        self.seq = seq
        self._tables = tables

    @classmethod
    def of(
        cls,
        rows: Rows,
        sealer: Sealer,
        ahead: Sequence[tuple[Position, Line]],
        records: Callable[[PackGrown], list[Placed]],
    ) -> "Overlay":
        """Apply lines of the log on top of what the index holds."""
        tables: dict[str, _Table] = {}
        editor = Editor(_Layered(rows, tables), sealer)
        for at, line in ahead:
            time_us, changes = decode_changes(sealer.open_line(line))
            editor.apply(at, line, time_us, changes, records)
        return cls(ahead[-1][0].seq, tables)

    def over(self, rows: Rows) -> Rows:
        """Return `rows` with the overlay in front."""
        return _Layered(rows, self._tables)


class _Layered:
    """Rows of the index behind rows in memory; a None in memory hides a row."""

    def __init__(self, rows: Rows, tables: dict[str, _Table]) -> None:
        self._rows, self._tables = rows, tables

    def get(self, table: str, key: bytes) -> bytes | None:
        ours = self._tables.get(table, {})
        return ours[key] if key in ours else self._rows.get(table, key)

    def scan(
        self, table: str, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        merged: _Table = dict(self._rows.scan(table, prefix))
        merged |= {key: value for key, value in self._tables.get(table, {}).items() if key.startswith(prefix)}
        for key in sorted(merged, reverse=reverse):
            if start is not None and ((key > start) if reverse else (key < start)):
                continue
            value = merged[key]
            if value is not None:
                yield key, value

    def count(self, table: str) -> int:
        return sum(1 for _ in self.scan(table))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._tables.setdefault(table, {})[key] = value

    def delete(self, table: str, key: bytes) -> bool:
        was_there = self.get(table, key) is not None
        self._tables.setdefault(table, {})[key] = None
        return was_there
