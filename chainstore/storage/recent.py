"""Recent rows: what small commits add to the large tables of the index, kept together until there is much of it.

Ids are random, so each new object makes LMDB copy a page of 4 KiB for a row of 70 bytes: 50 changed tensors of 100 000
wrote 1 MB of pages.  So the new rows of a small transaction go into one value, a run, and the rows of many runs into
the tables later, in one go, when a page that is copied takes several of them.  This is the first level of a
log-structured merge tree (O'Neil and others, 1996), without its later ones.

A key is in one place only: what is put again or deleted while it is recent is moved into its table first, with
everything else that is.  So nothing hides anything, and rows can be counted.

`Reads` and `Writes` are what transactions of the index show; what they ask LMDB for is `index`'s.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter

from chainstore.errors import Damaged
from chainstore.storage.rows import (
    REBUILD,
    RECENT,
    RECENT_TABLES,
    close_row,
    close_rows,
    open_row,
    open_rows,
    read_run,
    successor,
    write_run,
)

__all__ = ["RECENT_BYTES", "Cache", "Reads", "Writes"]

RUN_BYTES = 32 << 10  # of rows; a transaction that adds more puts them into their tables
RUNS = 16  # at most; then they are joined
RECENT_BYTES = 128 << 10  # of all runs as they are stored, which is what a process reads of them at first
ROWS_BYTES = 256 << 10  # of their rows; with more of either, all go into their tables
_ROWS_PER_STEP = 256  # of a scan; between steps no LMDB cursor is open
_ROWS_OF_FIRST_STEP = 4  # many scans want the first row only
_NUMBER_BYTES = 8
_ALL = 1 << 30

_KEY = itemgetter(0)

Tables = dict[str, dict[bytes, bytes]]
"""Table -> key -> value."""


class Runs:
    """The recent rows of one state of the index.

    Attributes:
        stored: the runs, oldest first, as they are stored.
        tables: their rows.
    """

    def __init__(self, stored: Sequence[bytes], opened: Sequence[Tables]) -> None:
        self.stored, self._opened = stored, opened
        self.tables: Tables = {}
        for table in RECENT_TABLES:
            rows: dict[bytes, bytes] = {}
            for run in opened:
                rows |= run[table]
            if len(rows) < sum(len(run[table]) for run in opened):
                raise Damaged(f"a row of table {table} is in two runs", hint=REBUILD)
            self.tables[table] = rows
        self._keys: dict[str, list[bytes]] = {}

    def keys(self, table: str) -> list[bytes]:
        """Return the keys of a table, sorted."""
        found = self._keys.get(table)
        if found is None:
            found = self._keys[table] = sorted(self.tables[table])
        return found

    def followed_by(self, rows: Sequence[tuple[bytes, bytes]]) -> "Runs":
        """Return what (key, stored run), as they are read, hold; what this one has opened is not opened again.

        Raises:
            Damaged: one is not what was put, or is missing.
        """
        opened: list[Tables] = []
        for number, (key, stored) in enumerate(rows, 1):
            if key != _number(number):
                raise Damaged(f"run {number} of recent rows is missing from the index", hint=REBUILD)
            same = number <= len(self.stored) and self.stored[number - 1] == stored
            opened.append(self._opened[number - 1] if same else read_run(key, stored))
        return Runs([stored for _, stored in rows], opened)


_NONE = Runs((), ())


class Cache:
    """The recent rows as they were read last; threads may share it."""

    def __init__(self) -> None:
        self.last: tuple[int, Runs] = -1, _NONE  # of which state, by the number of the transaction that made it


class Reads(ABC):
    """What can be asked of the index at one moment."""

    __slots__ = ("_cache", "_count", "_direct", "_fresh", "_fresh_bytes", "_runs", "_tables")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._runs: Runs | None = None  # while the transaction is open, once they were asked for
        self._tables: Tables | None = None  # a writer's: those rows, and what it puts

    # -- what LMDB itself holds

    @abstractmethod
    def _state(self) -> int:
        """Return the number of the transaction that made what is seen; raises where this one has ended."""

    @abstractmethod
    def _stored(self, table: str, key: bytes) -> bytes | None: ...

    @abstractmethod
    def _stored_many(self, table: str, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]: ...

    @abstractmethod
    def _rows(
        self, table: str, prefix: bytes, start: bytes | None, reverse: bool, skip: bytes | None, most: int
    ) -> list[tuple[bytes, bytes]]:
        """Return the next rows of a scan as they are stored, `most` at most, without key `skip`."""

    @abstractmethod
    def _entries(self, table: str) -> int: ...

    # -- what there is, recent rows included

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a row, or None if there is none.

        Raises:
            Damaged: the row is not what was put.
        """
        if table in RECENT_TABLES:
            value = self._recent(table).get(key)
            if value is not None:
                return value
        stored = self._stored(table, key)
        return None if stored is None else open_row(table, key, stored)

    def get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of those rows of `keys` that there are; sorted keys are found faster.

        Raises:
            Damaged: a row is not what was put.
        """
        recent = self._recent(table)
        found = {key: recent[key] for key in keys if key in recent} if recent else {}
        if found:
            keys = [key for key in keys if key not in found]
        return open_rows(table, self._stored_many(table, keys)) | found

    def scan(
        self, table: str, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the rows whose key begins with `prefix`, in the order of keys.

        Args:
            start: begin at this key (or the next there is), `prefix` included.
            reverse: from the last key to the first; `start` is then the highest key that may come.

        Rows may be put and deleted meanwhile; a row not yet reached is seen as it is when it is.

        Raises:
            Damaged: a row is not what was put, or rows are out of order.
        """
        last: bytes | None = None
        step = _ROWS_OF_FIRST_STEP
        while True:
            begin = start if last is None else last
            rows = self._rows(table, prefix, begin, reverse, skip=last, most=step)
            recent = self._recent_rows(table, prefix, begin, reverse, skip=last, most=step)
            ends = [some[-1][0] for some in (rows, recent) if len(some) == step]  # what comes after is not known yet
            if recent:
                rows = list(merge(rows, recent, key=_KEY, reverse=reverse))
                if ends:
                    end = max(ends) if reverse else min(ends)
                    rows = [row for row in rows if (row[0] >= end if reverse else row[0] <= end)]
            for key, stored in rows:
                if last is not None and (key >= last if reverse else key <= last):
                    raise Damaged(f"the rows of table {table} are out of order", hint=REBUILD)
                last = key
                yield key, open_row(table, key, stored)
            if not ends:
                return
            step = min(4 * step, _ROWS_PER_STEP)

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return self._entries(table) + len(self._recent(table))

    def _flush(self) -> None:  # noqa: B027
        """Before the transaction is committed: put its new rows where they belong; here there are none."""

    def _loaded(self) -> Runs:
        """Return the recent rows as they were when this transaction began; raises where it has ended."""
        if self._runs is None:
            state = self._state()
            known, runs = self._cache.last
            if known != state:
                runs = runs.followed_by(self._rows(RECENT, b"", None, False, skip=None, most=_ALL))
                self._cache.last = state, runs
            self._runs = runs
        return self._runs

    def _recent(self, table: str) -> dict[bytes, bytes]:
        """Return the recent rows of a table."""
        return self._loaded().tables[table] if table in RECENT_TABLES else {}

    def _recent_keys(self, table: str) -> list[bytes]:
        return self._loaded().keys(table)

    def _recent_rows(
        self, table: str, prefix: bytes, start: bytes | None, reverse: bool, skip: bytes | None, most: int
    ) -> list[tuple[bytes, bytes]]:
        """Return the next recent rows of a scan as they would be stored in their table; see `_rows`."""
        recent = self._recent(table)
        if not recent:
            return []
        keys, after = self._recent_keys(table), successor(prefix)
        low = bisect_left(keys, max(prefix, start or b"") if not reverse else prefix)
        high = len(keys) if after is None else bisect_left(keys, after)
        if reverse and start is not None:
            high = min(high, bisect_right(keys, start))
        found = keys[max(low, high - most - 1) : high][::-1] if reverse else keys[low : min(high, low + most + 1)]
        return [(key, close_row(table, key, recent[key])) for key in found if key != skip][:most]


class Writes(Reads):
    """What can be changed too."""

    __slots__ = ()

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self._fresh: dict[str, set[bytes]] = {table: set() for table in RECENT_TABLES}  # keys of this transaction's
        self._fresh_bytes = 0
        self._count = 0  # of the runs there are; known once they are loaded
        self._direct = False  # whether new rows go into their tables

    @abstractmethod
    def _set(self, table: str, key: bytes, stored: bytes) -> None: ...

    @abstractmethod
    def _set_new(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> int:
        """Set those of rows, sorted, whose key is not there yet, and return how many were."""

    @abstractmethod
    def _remove(self, table: str, key: bytes) -> bool: ...

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a row.

        Args:
            key: 1 to MAX_KEY_BYTES bytes.  value: any length; up to ONE_PAGE_VALUE_BYTES is cheap.

        Raises:
            StorageError: the map is full; `Index.ensure_room` was not asked for enough.
        """
        if table in RECENT_TABLES and self._put_recent(table, key, value):
            return
        self._set(table, key, close_row(table, key, value))

    def put_new(self, table: str, rows: Sequence[tuple[bytes, bytes]]) -> int:
        """Set those rows whose key is not there yet, and return how many were.

        Args:
            rows: sorted by key, no key twice.

        Cost: 1.5 us a row, half of it for the checksum; a third less behind the last key of the table.

        Raises:
            StorageError: as for `put`.
        """
        if not rows:
            return 0
        if table in RECENT_TABLES:
            self._fold()
        return self._set_new(table, close_rows(table, rows))

    def delete(self, table: str, key: bytes) -> bool:
        """Remove a row and return whether it was there."""
        if key in self._recent(table):
            self._fold()
        return self._remove(table, key)

    def _put_recent(self, table: str, key: bytes, value: bytes) -> bool:
        """Keep a row as a recent one; False where it belongs into its table."""
        recent, fresh = self._recent(table), self._fresh[table]
        if key in recent and key not in fresh:
            self._fold()
        if self._direct or (key not in recent and self._stored(table, key) is not None):
            return False
        recent[key] = value
        fresh.add(key)
        self._fresh_bytes += len(key) + len(value)
        if self._fresh_bytes > RUN_BYTES:
            self._spill()
        return True

    def _recent(self, table: str) -> dict[bytes, bytes]:
        if table not in RECENT_TABLES:
            return {}
        if self._tables is None:
            self._count = len(self._loaded().stored)
            self._tables = {name: dict(rows) for name, rows in self._loaded().tables.items()}
        return self._tables[table]

    def _recent_keys(self, table: str) -> list[bytes]:
        return sorted(self._recent(table))

    def _spill(self) -> None:
        """Put the new rows of this transaction into their tables, and all that follow."""
        for table, keys in self._fresh.items():
            recent = self._recent(table)
            self._put_into_table(table, [(key, recent.pop(key)) for key in sorted(keys)])
            keys.clear()
        self._direct = True

    def _fold(self) -> None:
        """Put all recent rows into their tables, and all that follow."""
        for table in RECENT_TABLES:
            recent = self._recent(table)
            self._put_into_table(table, sorted(recent.items()))
            recent.clear()
            self._fresh[table].clear()
        self._drop_runs(0)
        self._direct = True

    def _put_into_table(self, table: str, rows: list[tuple[bytes, bytes]]) -> None:
        if rows and self._set_new(table, close_rows(table, rows)) < len(rows):
            raise Damaged(f"a row of table {table} is there twice", hint=REBUILD)

    def _drop_runs(self, left: int) -> None:
        """Remove the runs but for the first `left`."""
        while self._count > left:
            self._remove(RECENT, _number(self._count))
            self._count -= 1

    def _flush(self) -> None:
        """Before the transaction is committed: put its new rows where they belong."""
        if not any(self._fresh.values()):
            return
        every = {table: self._recent(table) for table in RECENT_TABLES}
        run = write_run({table: {key: every[table][key] for key in keys} for table, keys in self._fresh.items()})
        nbytes = sum(len(key) + len(value) for rows in every.values() for key, value in rows.items())
        if nbytes > ROWS_BYTES or sum(map(len, self._loaded().stored)) + len(run) > RECENT_BYTES:
            self._fold()
            return
        if self._count == RUNS:
            self._drop_runs(0)
            run = write_run(every)
        self._count += 1
        self._set(RECENT, _number(self._count), close_row(RECENT, _number(self._count), run))


def _number(count: int) -> bytes:
    return count.to_bytes(_NUMBER_BYTES, "big")
