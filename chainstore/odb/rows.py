"""Rows: what the index holds, and how a line of the log turns into them.

Every change of the index is one line of the log applied by `Editor.apply`, the same at commit, at redo and at
rebuild; so the index can always be made again.

    objects  id -> Place                  bases    id -> ids, 32 bytes each     inline  id -> small records, whole
    packs    number -> name, length, ...  refs     key -> sealed RefRow         reflog  key | seq -> sealed ReflogLine
    log      seq -> the line itself       marks    commit -> sealed MarkLine    config  key -> sealed key and value
    meta     "state" -> Position, "refs" -> sum over the ref table, "identity" -> what belongs together,
             "pack" name -> number
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from chainstore.errors import Damaged, Malformed
from chainstore.ids import ID_BYTES, ObjectId, fingerprint
from chainstore.model.change import (
    Change,
    Checkpoint,
    Dead,
    Incident,
    Mark,
    MarkLine,
    PackGrown,
    PackLine,
    ReflogLine,
    Retired,
    SetConfig,
    SetKeyring,
    SetRef,
    Swept,
    Target,
    Unmark,
    read_target,
)
from chainstore.model.frame import Header, Line
from chainstore.model.wire import Node, decode, encode
from chainstore.odb.record import Sealer
from chainstore.storage.log import Position

INLINE_BYTES = 4080  # one more and LMDB takes two overflow pages

_PLACE = struct.Struct("<IQQQIHBBB")
_PACK = struct.Struct("<16sQQB")
_STATE = struct.Struct("<Q32sIQQ")
_NUMBER = struct.Struct(">I")
_SEQ = struct.Struct(">Q")
_SUM_BYTES = 32


class Rows(Protocol):
    """A reader of the index, or something that looks like one."""

    def get(self, table: str, key: bytes) -> bytes | None: ...
    def scan(
        self, table: str, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]: ...
    def count(self, table: str) -> int: ...


class WritableRows(Rows, Protocol):
    """A writer of the index, or something that looks like one."""

    def put(self, table: str, key: bytes, value: bytes) -> None: ...
    def delete(self, table: str, key: bytes) -> bool: ...


class Place(NamedTuple):
    """Where an object's record is: pack number, offset, bytes of the record; and what its header says."""

    pack: int
    offset: int
    length: int
    plain_len: int
    generation: int
    flags: int
    kind: int
    depth: int
    n_bases: int


class Placed(NamedTuple):
    """A record that joins the store: its header, offset in its pack, and its bytes where it is small."""

    offset: int
    header: Header
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class RefRow:
    """A ref as the index holds it; `target` None marks a deleted one whose reflog is kept."""

    name: str
    target: Target
    moves: int
    seq: int


class View:
    """Typed look-ups in one transaction of the index."""

    def __init__(self, rows: Rows, sealer: Sealer) -> None:
        self._rows = rows
        self._sealer = sealer

    # -- where the log and this index agree

    def position(self) -> Position:
        """Return the last line of the log that this index knows."""
        row = self._rows.get("meta", b"state")
        if row is None or len(row) != _STATE.size:
            raise Damaged("the index does not say where it stands", hint="`chain rebuild-index` makes it anew")
        return Position(*_unpack(_STATE, row))

    def identity(self) -> tuple[bytes, bytes, int]:
        """Return (repository id, hash of the format file, keyring number)."""
        row = self._rows.get("meta", b"identity")
        if row is None or len(row) != 56:
            raise Damaged("the index does not say what it belongs to", hint="`chain rebuild-index` makes it anew")
        return row[:16], row[16:48], int.from_bytes(row[48:], "little")

    def line(self, seq: int) -> bytes | None:
        """Return a line of the log as it was appended."""
        return self._rows.get("log", _SEQ.pack(seq))

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, line) of every line the index still holds, oldest first."""
        for key, value in self._rows.scan("log"):
            yield _SEQ.unpack(key)[0], value

    # -- objects

    def place(self, id: bytes) -> Place | None:
        """Return where an object is, or None."""
        row = self._rows.get("objects", id)
        return Place(*_unpack(_PLACE, row)) if row is not None else None

    def inline(self, id: bytes) -> bytes | None:
        """Return a small record whole, or None."""
        return self._rows.get("inline", id)

    def bases(self, id: bytes) -> tuple[ObjectId, ...]:
        """Return the bases of an object's record."""
        row = self._rows.get("bases", id) or b""
        return tuple(_id(row[i : i + ID_BYTES]) for i in range(0, len(row), ID_BYTES))

    def objects(self) -> Iterator[tuple[ObjectId, Place]]:
        """Yield every object and its place, in order of id."""
        for key, value in self._rows.scan("objects"):
            yield _id(key), Place(*_unpack(_PLACE, value))

    def object_count(self) -> int:
        return self._rows.count("objects")

    def pack(self, number: int) -> PackLine:
        """Return a pack by the number that `Place` holds.

        Raises:
            Damaged: there is none.
        """
        row = self._rows.get("packs", _NUMBER.pack(number))
        if row is None:
            raise Damaged(f"pack number {number} is not in the index", hint="`chain rebuild-index` makes it anew")
        return self._pack_line(row)

    def packs(self) -> Iterator[tuple[int, PackLine]]:
        """Yield (number, pack), oldest first."""
        for key, row in self._rows.scan("packs"):
            yield _NUMBER.unpack(key)[0], self._pack_line(row)

    def pack_number(self, name: bytes) -> int | None:
        """Return the number of the pack of this name, or None."""
        row = self._rows.get("meta", b"pack" + name)
        return _unpack(_NUMBER, row)[0] if row is not None else None

    @staticmethod
    def _pack_line(row: bytes) -> PackLine:
        name, length, contents, retired = _unpack(_PACK, row[: _PACK.size])
        dead = decode(row[_PACK.size :], what="pack row")
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
        found = [self._ref_row(key, value) for key, value in self._rows.scan("refs")]
        return sorted((row for row in found if row.target is not None), key=lambda row: row.name)

    def check_refs(self) -> None:
        """Verify that the table of refs is whole.

        A damaged page of the index can hide rows without an error, and a hidden branch looks like one that never was.

        Raises:
            Damaged: a row is missing, too many, or from another time.
        """
        total = sum(_ref_term(key, value) for key, value in self._rows.scan("refs"))
        if _as_sum(total) != (self._rows.get("meta", b"refs") or bytes(_SUM_BYTES)):
            raise Damaged("the table of refs is not what was written", hint="`chain rebuild-index` makes it anew")

    def _ref_row(self, key: bytes, value: bytes) -> RefRow:
        match decode(self._sealer.open_row("refs", key, value), what="ref"):
            case [str(name), target, int(moves), int(seq)]:
                return RefRow(name, _target(target), moves, seq)
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
                seq = _unpack(_SEQ, key[-_SEQ.size :])[0]
                return ReflogLine(name, seq, ordinal, _target(old), _target(new), time_us, reason)
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
                return MarkLine(_id(key), time_us, policy, swept)
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
        every = [self._ref_row(key, value) for key, value in self._rows.scan("refs")]
        return Checkpoint(
            format_hash,
            keyring,
            tuple((row.name, row.target) for row in every),
            tuple(self.config().items()),
            tuple(self.marks()),
            tuple(self.reflogs()),
            tuple(line for _, line in self.packs()),
        )


Records = Callable[[PackGrown], Iterable[Placed]]


class Editor(View):
    """A view that applies lines of the log."""

    def __init__(self, rows: WritableRows, sealer: Sealer) -> None:
        super().__init__(rows, sealer)
        self._out = rows

    def apply(self, position: Position, line: Line, time_us: int, changes: Iterable[Change], records: Records) -> None:
        """Make the rows that one line of the log stands for.

        Args:
            position: where the line stands.
            records: gives the records of a `PackGrown`, from memory or by reading the pack.
        """
        changes = tuple(changes)
        packs = [PackLine(c.pack, c.stop, c.contents) for c in changes if isinstance(c, PackGrown)]
        self._put_packs(packs, [c for c in changes if isinstance(c, PackGrown)], records)
        for change in changes:
            self._apply(change, position.seq, time_us)
        self._out.put("log", _SEQ.pack(position.seq), line.to_bytes())
        self._out.put(
            "meta", b"state", _STATE.pack(position.seq, position.hash, position.segment, position.start, position.end)
        )

    def identify(self, repo_id: bytes, format_hash: bytes, keyring: int) -> None:
        """Say what this index belongs to."""
        self._out.put("meta", b"identity", repo_id + format_hash + keyring.to_bytes(8, "little"))

    def _forget_lines_before(self, seq: int) -> None:
        for key in [key for key, _ in self._rows.scan("log") if _SEQ.unpack(key)[0] < seq]:
            self._out.delete("log", key)

    def _apply(self, change: Change, seq: int, time_us: int) -> None:
        match change:
            case SetRef(name, old, new, reason):
                self._set_ref(name, old, new, reason, seq, time_us)
            case SetConfig(key, value):
                self._set_config(key, value, seq)
            case Mark(commits, policy):
                for commit in commits:
                    before = self.mark(commit)
                    self._put_mark(MarkLine(commit, time_us, policy, before is not None and before.swept), seq)
            case Unmark(commits):
                for commit in commits:
                    self._out.delete("marks", commit)
            case Swept(commits):
                for commit in commits:
                    mark = self.mark(commit) or MarkLine(commit, time_us, "", False)
                    self._put_mark(replace(mark, swept=True), seq)
            case Dead(name, ranges):
                line = self._known_pack(name)
                self._put_pack(replace(line, dead=(*line.dead, *ranges)))
            case Retired(name):
                self._put_pack(replace(self._known_pack(name), retired=True))
            case SetKeyring(number):
                repo_id, format_hash, _ = self.identity()
                self.identify(repo_id, format_hash, number)
            case Checkpoint():
                self._forget_lines_before(seq)  # it sums them up
            case PackGrown() | Incident():
                pass  # packs came first; the other changes no row

    def restore(self, point: Checkpoint, records: Records) -> None:
        """Make the rows that a checkpoint stands for, in an index that is still empty."""
        grown = [PackGrown(p.pack, 0, p.length, p.contents) for p in point.packs]
        self._put_packs(point.packs, grown, records)
        counts: dict[str, tuple[int, int]] = {}
        for line in point.reflog:
            self._put_reflog(line)
            counts[line.name] = max(counts.get(line.name, (0, 0)), (line.ordinal, line.seq))
        for name, target in point.refs:
            self._put_ref(RefRow(name, target, *counts.get(name, (0, 0))))
        for key, value in point.config:
            self._set_config(key, value, 0)
        for mark in point.marks:
            self._put_mark(mark, 0)

    def put_record(self, pack: int, placed: Placed) -> None:
        """Make the rows of one record, unless one of less depth is known or one of its bases is not.

        The last of several records wins, because a record is only stored again when the one before was found
        damaged; a record of more depth never does, so that no cycle of bases can form.
        """
        header = placed.header
        known = self.place(header.id)
        if known is not None and known.depth < header.depth:
            return
        for base in header.bases:
            below = self.place(base)
            if below is None or below.depth >= header.depth:
                return
        place = Place(
            pack,
            placed.offset,
            header.record_bytes,
            header.plain_len,
            header.generation,
            header.flags,
            header.kind,
            header.depth,
            len(header.bases),
        )
        self._out.put("objects", header.id, _PLACE.pack(*place))
        if header.bases:
            self._out.put("bases", header.id, b"".join(header.bases))
        elif known is not None and known.n_bases:
            self._out.delete("bases", header.id)
        if placed.inline is not None:
            self._out.put("inline", header.id, placed.inline)
        elif known is not None:
            self._out.delete("inline", header.id)  # what was kept of the record before this one

    def _put_packs(self, packs: Sequence[PackLine], grown: Sequence[PackGrown], records: Records) -> None:
        """Make the rows of packs and of their records, bases before what builds on them."""
        found = []
        for pack, growth in zip(packs, grown, strict=True):
            number = self._put_pack(pack)
            if not pack.retired:
                dead = self.pack(number).dead
                found += [(number, placed) for placed in records(growth) if not is_within(placed.offset, dead)]
        for number, placed in sorted(found, key=lambda item: item[1].header.depth):
            self.put_record(number, placed)

    def _known_pack(self, name: bytes) -> PackLine:
        number = self.pack_number(name)
        if number is None:
            raise Damaged(f"the log speaks of pack {name.hex()}, which the index does not know")
        return self.pack(number)

    def _put_pack(self, line: PackLine) -> int:
        number = self.pack_number(line.pack)
        if number is None:
            last = next(self._rows.scan("packs", reverse=True), None)
            number = _NUMBER.unpack(last[0])[0] + 1 if last is not None else 1
            self._out.put("meta", b"pack" + line.pack, _NUMBER.pack(number))
        else:
            before = self.pack(number)
            line = replace(line, dead=line.dead or before.dead)
        flat = [number for pair in line.dead for number in pair]
        row = _PACK.pack(line.pack, line.length, line.contents, line.retired) + encode(flat)
        self._out.put("packs", _NUMBER.pack(number), row)
        return int(number)

    def _set_ref(self, name: str, old: Target, new: Target, reason: str, seq: int, time_us: int) -> None:
        row = self.ref(name)
        moves = (row.moves if row else 0) + 1
        self._put_ref(RefRow(name, new, moves, seq))
        self._put_reflog(ReflogLine(name, seq, moves, old, new, time_us, reason))

    def _put_ref(self, row: RefRow) -> None:
        key = self._sealer.ref_key(row.name)
        plain = encode([row.name, _node(row.target), row.moves, row.seq])
        value = self._sealer.seal_row("refs", key, row.seq, plain)
        total = int.from_bytes(self._rows.get("meta", b"refs") or b"", "little")
        before = self._rows.get("refs", key)
        if before is not None:
            total -= _ref_term(key, before)
        self._out.put("refs", key, value)
        self._out.put("meta", b"refs", _as_sum(total + _ref_term(key, value)))

    def _put_reflog(self, line: ReflogLine) -> None:
        key = self._sealer.ref_key(line.name) + _SEQ.pack(line.seq)
        plain = encode([line.name, line.ordinal, _node(line.old), _node(line.new), line.time_us, line.reason])
        self._out.put("reflog", key, self._sealer.seal_row("reflog", key, line.seq, plain))

    def _put_mark(self, mark: MarkLine, seq: int) -> None:
        plain = encode([mark.time_us, mark.policy, mark.swept])
        self._out.put("marks", mark.commit, self._sealer.seal_row("marks", mark.commit, seq, plain))

    def _set_config(self, key: str, value: str | None, seq: int) -> None:
        name = self._sealer.ref_key(f"config/{key}")
        if value is None:
            self._out.delete("config", name)
        else:
            self._out.put("config", name, self._sealer.seal_row("config", name, seq, encode([key, value])))


def is_within(offset: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether `offset` lies in one of `ranges`."""
    return any(start <= offset < stop for start, stop in ranges)


def _unpack(layout: struct.Struct, row: bytes) -> tuple[Any, ...]:
    if len(row) != layout.size:
        raise Malformed("row of the index", f"it has {len(row)} bytes, not {layout.size}")
    return layout.unpack(row)


def _id(key: bytes) -> ObjectId:
    if len(key) != ID_BYTES:
        raise Malformed("row of the index", "a cut-off id")
    return ObjectId(key)


def _target(node: Node) -> Target:
    try:
        return read_target(node)
    except ValueError as error:
        raise Malformed("row of the index", str(error)) from error


def _node(target: Target) -> Node:
    return bytes(target) if isinstance(target, ObjectId) else target


def _ref_term(key: bytes, value: bytes) -> int:
    return int.from_bytes(fingerprint("ref row", key, value), "little")


def _as_sum(total: int) -> bytes:
    return (total % (1 << (8 * _SUM_BYTES))).to_bytes(_SUM_BYTES, "little")
