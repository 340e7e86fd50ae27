"""The editor: how a line of the log turns into rows.

Every change of the index is one line of the log applied by `Editor.apply`, the same at commit, at redo and at
rebuild; so the index can always be made again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.model.change import (
    Change,
    Checkpoint,
    Dead,
    Expired,
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
)
from chainstore.model.frame import Line
from chainstore.model.wire import encode
from chainstore.odb.record import Sealer, row_generation
from chainstore.odb.rows import (
    NUMBER,
    PACK_ROW,
    PLACE_ROW,
    SEQ,
    STATE_ROW,
    Place,
    Placed,
    Ranges,
    RefRow,
    WritableRows,
    as_sum,
    is_within,
    merged,
    ref_term,
    target_node,
)
from chainstore.odb.view import View
from chainstore.storage.log import Position

Records = Callable[[PackGrown], Iterable[Placed]]
Lost = Callable[[Dead], Iterable[ObjectId]]


class Editor(View):
    """A view that applies lines of the log."""

    def __init__(self, rows: WritableRows, sealer: Sealer) -> None:
        super().__init__(rows, sealer)
        self._out = rows
        self._dying: dict[bytes, Ranges] = {}  # what the line that is being applied says is dead

    def apply(
        self,
        position: Position,
        line: Line,
        time_us: int,
        changes: Iterable[Change],
        records: Records,
        lost: Lost | None = None,
    ) -> None:
        """Make the rows that one line of the log stands for.

        Args:
            position: where the line stands.
            records: gives the records of a `PackGrown`, from memory or by reading the pack.
            lost: gives the objects whose record may lie in the ranges of a `Dead`; None: every row is looked at.
        """
        changes = tuple(changes)
        packs = [PackLine(c.pack, c.stop, c.contents) for c in changes if isinstance(c, PackGrown)]
        self._dying = {c.pack: merged(c.ranges) for c in changes if isinstance(c, Dead)}
        self._put_packs(packs, [c for c in changes if isinstance(c, PackGrown)], records)
        for change in changes:
            if isinstance(change, Dead):
                self._put_dead(change, lost)
            else:
                self._apply(change, position.seq, time_us)
        self._out.put("log", SEQ.pack(position.seq), line.to_bytes())
        self._out.put(
            "meta",
            b"state",
            STATE_ROW.pack(position.seq, position.hash, position.segment, position.start, position.end),
        )

    def identify(self, repo_id: bytes, format_hash: bytes, keyring: int) -> None:
        """Say what this index belongs to."""
        self._out.put("meta", b"identity", repo_id + format_hash + keyring.to_bytes(8, "little"))

    def _forget_lines_before(self, seq: int) -> None:
        for key in [key for key, _ in self._rows.scan("log") if SEQ.unpack(key)[0] < seq]:
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
            case Expired(before):
                self._drop_reflog(before)
            case Retired(name):
                self._put_pack(replace(self._known_pack(name), retired=True))
            case SetKeyring(number):
                repo_id, format_hash, _ = self.identity()
                self.identify(repo_id, format_hash, number)
            case Checkpoint():
                self._forget_lines_before(seq)  # it sums them up
                self._forget_retired_packs()
                self._seal_again(seq)
            case Dead() | PackGrown() | Incident():
                pass  # dead ranges and packs have a place of their own; the last changes no row

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
        damaged; a record of more depth never does, so that no cycle of bases can form, unless the same line says that
        the one before is dead: whoever says so has made sure that nothing builds on it.
        """
        header = placed.header
        known = self.place(header.id)
        if known is not None and known.depth < header.depth and not self._dies(known):
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
        self._out.put("objects", header.id, PLACE_ROW.pack(*place))
        if header.bases:
            self._out.put("bases", header.id, b"".join(header.bases))
        elif known is not None and known.n_bases:
            self._out.delete("bases", header.id)
        if placed.inline is not None:
            self._out.put("inline", header.id, placed.inline)
        elif known is not None:
            self._out.delete("inline", header.id)  # what was kept of the record before this one

    def _dies(self, place: Place) -> bool:
        return bool(self._dying) and is_within(place.offset, self._dying.get(self.pack(place.pack).pack, ()))

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

    def _put_dead(self, change: Dead, lost: Lost | None) -> None:
        """Note dead ranges of a pack, and drop the rows of objects that lie in them."""
        line = self._known_pack(change.pack)
        number = self._put_pack(replace(line, dead=merged((*line.dead, *change.ranges))))
        ranges = merged(change.ranges)
        for id in lost(change) if lost is not None else [id for id, place in self.objects() if place.pack == number]:
            place = self.place(id)
            if place is not None and place.pack == number and is_within(place.offset, ranges):
                for table in ("objects", "bases", "inline"):
                    self._out.delete(table, id)

    def _forget_retired_packs(self) -> None:
        """Drop the rows of packs that are retired: a checkpoint says nothing of them, and no object lies in one."""
        for number, line in list(self.packs()):
            if line.retired:
                self._out.delete("packs", NUMBER.pack(number))
                self._out.delete("meta", b"pack" + line.pack)

    def _seal_again(self, seq: int) -> None:
        """Seal those rows again that older keys sealed."""
        refs = self._all_refs() if self._is_outdated("refs") else []
        for row in refs:
            self._put_ref(row)
        for line in list(self.reflogs()) if self._is_outdated("reflog") else []:
            self._put_reflog(line)
        for mark in list(self.marks()) if self._is_outdated("marks") else []:
            self._put_mark(mark, seq)
        for key, value in self.config().items() if self._is_outdated("config") else []:
            self._set_config(key, value, seq)

    def _is_outdated(self, table: str) -> bool:
        """Whether a row of a table was sealed with keys that are not in force any more."""
        current = self._sealer.generation
        return any(row_generation(value) != current for _, value in self._rows.scan(table))

    def _known_pack(self, name: bytes) -> PackLine:
        number = self.pack_number(name)
        if number is None:
            raise Damaged(f"the log speaks of pack {name.hex()}, which the index does not know")
        return self.pack(number)

    def _put_pack(self, line: PackLine) -> int:
        number = self.pack_number(line.pack)
        if number is None:
            last = next(self._rows.scan("packs", reverse=True), None)
            number = NUMBER.unpack(last[0])[0] + 1 if last is not None else 1
            self._out.put("meta", b"pack" + line.pack, NUMBER.pack(number))
        else:
            before = self.pack(number)
            line = replace(line, dead=line.dead or before.dead)
        flat = [number for pair in line.dead for number in pair]
        row = PACK_ROW.pack(line.pack, line.length, line.contents, line.retired) + encode(flat)
        self._out.put("packs", NUMBER.pack(number), row)
        return int(number)

    def _set_ref(self, name: str, old: Target, new: Target, reason: str, seq: int, time_us: int) -> None:
        row = self.ref(name)
        moves = (row.moves if row else 0) + 1
        self._put_ref(RefRow(name, new, moves, seq))
        self._put_reflog(ReflogLine(name, seq, moves, old, new, time_us, reason))

    def _put_ref(self, row: RefRow) -> None:
        key = self._sealer.ref_key(row.name)
        plain = encode([row.name, target_node(row.target), row.moves, row.seq])
        value = self._sealer.seal_row("refs", key, row.seq, plain)
        total = int.from_bytes(self._rows.get("meta", b"refs") or b"", "little")
        before = self._rows.get("refs", key)
        if before is not None:
            total -= ref_term(key, before)
        self._out.put("refs", key, value)
        self._out.put("meta", b"refs", as_sum(total + ref_term(key, value)))

    def _put_reflog(self, line: ReflogLine) -> None:
        key = self._sealer.ref_key(line.name) + SEQ.pack(line.seq)
        plain = encode(
            [line.name, line.ordinal, target_node(line.old), target_node(line.new), line.time_us, line.reason]
        )
        self._out.put("reflog", key, self._sealer.seal_row("reflog", key, line.seq, plain))

    def _drop_reflog(self, before: int) -> None:
        """Drop lines of reflogs older than log line `before`, and refs that were deleted before it."""
        kept = {}
        for row in self._all_refs():
            key = self._sealer.ref_key(row.name)
            if row.target is not None:
                kept[key + SEQ.pack(row.seq)] = row
            elif row.seq < before:
                self._drop_ref(key)
        for key, _ in self._rows.scan("reflog"):
            if SEQ.unpack(key[-SEQ.size :])[0] < before and key not in kept:
                self._out.delete("reflog", key)

    def _drop_ref(self, key: bytes) -> None:
        before = self._rows.get("refs", key)
        if before is not None:
            total = int.from_bytes(self._rows.get("meta", b"refs") or b"", "little")
            self._out.delete("refs", key)
            self._out.put("meta", b"refs", as_sum(total - ref_term(key, before)))

    def _put_mark(self, mark: MarkLine, seq: int) -> None:
        plain = encode([mark.time_us, mark.policy, mark.swept])
        self._out.put("marks", mark.commit, self._sealer.seal_row("marks", mark.commit, seq, plain))

    def _set_config(self, key: str, value: str | None, seq: int) -> None:
        name = self._sealer.ref_key(f"config/{key}")
        if value is None:
            self._out.delete("config", name)
        else:
            self._out.put("config", name, self._sealer.seal_row("config", name, seq, encode([key, value])))
