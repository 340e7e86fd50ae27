"""The view: typed look-ups in one transaction of the index."""

from collections.abc import Iterator

from chainstore.errors import Damaged, Malformed
from chainstore.ids import ID_BYTES, ObjectId
from chainstore.model.change import Checkpoint, MarkLine, PackLine, ReflogLine
from chainstore.model.wire import decode
from chainstore.odb.record import Sealer
from chainstore.odb.rows import (
    NUMBER,
    PACK_ROW,
    PLACE_ROW,
    SEQ,
    STATE_ROW,
    SUM_BYTES,
    Place,
    RefRow,
    Rows,
    as_id,
    as_sum,
    as_target,
    ref_term,
    unpack,
)
from chainstore.storage.log import Position


class View:
    """Typed look-ups in one transaction of the index."""

    def __init__(self, rows: Rows, sealer: Sealer) -> None:
        self._rows = rows
        self._sealer = sealer

    # -- where the log and this index agree

    def position(self) -> Position:
        """Return the last line of the log that this index knows."""
        row = self._rows.get("meta", b"state")
        if row is None or len(row) != STATE_ROW.size:
            raise Damaged("the index does not say where it stands", hint="`chain rebuild-index` makes it anew")
        return Position(*unpack(STATE_ROW, row))

    def identity(self) -> tuple[bytes, bytes, int]:
        """Return (repository id, hash of the format file, keyring number)."""
        row = self._rows.get("meta", b"identity")
        if row is None or len(row) != 56:
            raise Damaged("the index does not say what it belongs to", hint="`chain rebuild-index` makes it anew")
        return row[:16], row[16:48], int.from_bytes(row[48:], "little")

    def line(self, seq: int) -> bytes | None:
        """Return a line of the log as it was appended."""
        return self._rows.get("log", SEQ.pack(seq))

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, line) of every line the index still holds, oldest first."""
        for key, value in self._rows.scan("log"):
            yield SEQ.unpack(key)[0], value

    # -- objects

    def place(self, id: bytes) -> Place | None:
        """Return where an object is, or None."""
        row = self._rows.get("objects", id)
        return Place(*unpack(PLACE_ROW, row)) if row is not None else None

    def inline(self, id: bytes) -> bytes | None:
        """Return a small record whole, or None."""
        return self._rows.get("inline", id)

    def bases(self, id: bytes) -> tuple[ObjectId, ...]:
        """Return the bases of an object's record."""
        row = self._rows.get("bases", id) or b""
        return tuple(as_id(row[i : i + ID_BYTES]) for i in range(0, len(row), ID_BYTES))

    def objects(self) -> Iterator[tuple[ObjectId, Place]]:
        """Yield every object and its place, in order of id."""
        for key, value in self._rows.scan("objects"):
            yield as_id(key), Place(*unpack(PLACE_ROW, value))

    def object_count(self) -> int:
        return self._rows.count("objects")

    def pack(self, number: int) -> PackLine:
        """Return a pack by the number that `Place` holds.

        Raises:
            Damaged: there is none.
        """
        row = self._rows.get("packs", NUMBER.pack(number))
        if row is None:
            raise Damaged(f"pack number {number} is not in the index", hint="`chain rebuild-index` makes it anew")
        return self._pack_line(row)

    def packs(self) -> Iterator[tuple[int, PackLine]]:
        """Yield (number, pack), oldest first."""
        for key, row in self._rows.scan("packs"):
            yield NUMBER.unpack(key)[0], self._pack_line(row)

    def pack_number(self, name: bytes) -> int | None:
        """Return the number of the pack of this name, or None."""
        row = self._rows.get("meta", b"pack" + name)
        return unpack(NUMBER, row)[0] if row is not None else None

    @staticmethod
    def _pack_line(row: bytes) -> PackLine:
        name, length, contents, retired = unpack(PACK_ROW, row[: PACK_ROW.size])
        dead = decode(row[PACK_ROW.size :], what="pack row")
        numbers = [n for n in dead if isinstance(n, int)] if isinstance(dead, list) else None
        if numbers is None or len(numbers) % 2:
            raise Malformed("pack row", "dead ranges expected")
        return PackLine(name, length, contents, tuple(zip(numbers[::2], numbers[1::2], strict=True)), bool(retired))

    # -- refs

    def ref(self, name: str) -> RefRow | None:
        """Return a ref by its full name ("heads/main", "tags/v1", "HEAD"); deleted ones too."""
        key = self._sealer.ref_key(name)
        row = self._rows.get("refs", key)
        return self._ref_row(key, row) if row is not None else None

    def refs(self) -> list[RefRow]:
        """Return every ref that exists, sorted by name."""
        return sorted((row for row in self._all_refs() if row.target is not None), key=lambda row: row.name)

    def _all_refs(self) -> list[RefRow]:
        """Return every ref, deleted ones too."""
        return [self._ref_row(key, value) for key, value in self._rows.scan("refs")]

    def check_refs(self) -> None:
        """Verify that the table of refs is whole.

        A damaged page of the index can hide rows without an error, and a hidden branch looks like one that never was.

        Raises:
            Damaged: a row is missing, too many, or from another time.
        """
        total = sum(ref_term(key, value) for key, value in self._rows.scan("refs"))
        if as_sum(total) != (self._rows.get("meta", b"refs") or bytes(SUM_BYTES)):
            raise Damaged("the table of refs is not what was written", hint="`chain rebuild-index` makes it anew")

    def _ref_row(self, key: bytes, value: bytes) -> RefRow:
        match decode(self._sealer.open_row("refs", key, value), what="ref"):
            case [str(name), target, int(moves), int(seq)]:
                return RefRow(name, as_target(target), moves, seq)
        raise Malformed("ref", "unknown layout")

    def reflog(self, name: str) -> list[ReflogLine]:
        """Return the moves of a ref, newest first.

        Raises:
            Damaged: lines are missing.
        """
        prefix = self._sealer.ref_key(name)
        lines = [self._reflog_line(key, value) for key, value in self._rows.scan("reflog", prefix)]
        row = self.ref(name)
        expected = row.moves if row else 0
        if [line.ordinal for line in lines] != list(range(expected - len(lines) + 1, expected + 1)):
            raise Damaged(f"lines of the reflog of {name} are missing", hint="`chain rebuild-index` makes it anew")
        return lines[::-1]

    def reflogs(self) -> Iterator[ReflogLine]:
        """Yield every line of every reflog."""
        for key, value in self._rows.scan("reflog"):
            yield self._reflog_line(key, value)

    def _reflog_line(self, key: bytes, value: bytes) -> ReflogLine:
        match decode(self._sealer.open_row("reflog", key, value), what="reflog line"):
            case [str(name), int(ordinal), old, new, int(time_us), str(reason)]:
                seq = unpack(SEQ, key[-SEQ.size :])[0]
                return ReflogLine(name, seq, ordinal, as_target(old), as_target(new), time_us, reason)
        raise Malformed("reflog line", "unknown layout")

    # -- the rest

    def mark(self, commit: bytes) -> MarkLine | None:
        """Return the forget mark of a commit, or None."""
        row = self._rows.get("marks", commit)
        return self._mark_line(commit, row) if row is not None else None

    def marks(self) -> Iterator[MarkLine]:
        for key, value in self._rows.scan("marks"):
            yield self._mark_line(key, value)

    def _mark_line(self, key: bytes, value: bytes) -> MarkLine:
        match decode(self._sealer.open_row("marks", key, value), what="mark"):
            case [int(time_us), str(policy), bool(swept)]:
                return MarkLine(as_id(key), time_us, policy, swept)
        raise Malformed("mark", "unknown layout")

    def config(self) -> dict[str, str]:
        """Return the settings of the repository."""
        pairs = {}
        for key, value in self._rows.scan("config"):
            match decode(self._sealer.open_row("config", key, value), what="setting"):
                case [str(name), str(text)]:
                    pairs[name] = text
                case _:
                    raise Malformed("setting", "unknown layout")
        return pairs

    def checkpoint(self) -> Checkpoint:
        """Return everything the log has established so far, to open a new segment with."""
        _, format_hash, keyring = self.identity()
        every = self._all_refs()
        return Checkpoint(
            format_hash,
            keyring,
            tuple((row.name, row.target) for row in every),
            tuple(self.config().items()),
            tuple(self.marks()),
            tuple(self.reflogs()),
            tuple(line for _, line in self.packs() if not line.retired),
        )
