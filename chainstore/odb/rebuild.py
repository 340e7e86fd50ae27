"""Rebuild: the index made anew from the log and the packs, and the log healed from the index.

Nothing that was there is trusted before it was looked at, and nothing is taken away before its successor is durable.
A line that the log lost is taken from the old index, where it is kept whole; a line that neither has ends the chain
of what can be known.  Records whose headers are damaged are skipped and reported.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from chainstore.errors import Damaged, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.leases import publish_lock
from chainstore.model.change import Checkpoint, PackGrown, SetRef, decode_changes
from chainstore.model.commit import decode_commit
from chainstore.model.frame import LINE_MAGIC, Header, Line, is_record_kind, parse_line, split_record
from chainstore.model.tree import Root, page_links
from chainstore.observe import Observer, Progress
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.local import LocalDatabase, Surroundings, open_local
from chainstore.odb.record import Sealer
from chainstore.odb.rows import INLINE_BYTES, Editor, Placed, View, is_within
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import PackDir, salvage, scan

_ROOM_PER_RECORD = 1024
_ROOM = 4 << 20
_RECORDS_PER_TRANSACTION = 10_000

T = TypeVar("T")


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild found and did.

    Attributes:
        lines, objects, packs: how many there are now.
        log_healed: whether lines of the log were restored from the old index.
        lost_lines: whether lines that were acknowledged are in neither.
        problems: what is damaged and could not be healed, for people to read.
        moved: ref -> (from, to), where a ref's commit is gone and an older one took its place.
    """

    lines: int = 0
    objects: int = 0
    packs: int = 0
    log_healed: bool = False
    lost_lines: bool = False
    problems: list[str] = field(default_factory=list)
    moved: dict[str, tuple[str, str]] = field(default_factory=dict)


def rebuild_index(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    keyring_number: int,
    around: Surroundings,
    observer: Observer,
) -> RebuildReport:
    """Make the index anew and put it in force; the old one is then removed.

    Raises:
        Damaged: neither the log nor the old index can be read.
        Locked: somebody publishes all the time.
    """
    report = RebuildReport()
    with publish_lock(layout.leases, around.who):
        kept = _lines_of_old_index(layout, sealer)
        chain = _merge(_lines_of_log(Log(layout.log)), kept, sealer, format.hash, report)
        _heal_log(Log(layout.log), chain, report)
        old = _old_owner(layout)
        owner = _build(layout, format, sealer, around, report, observer)
        layout.write_owner(owner)
        _remove_old_indexes(layout, old, owner.uuid)
    db = open_local(layout, format, sealer, keyring_number, around, readonly=False)
    try:
        _move_lost_refs(db, report)
        with db.view() as view:
            report.objects = view.object_count()
            report.packs = sum(1 for _ in view.packs())
            _check_packs(db.packs, view, report)
    finally:
        db.close()
    return report


# ---- the log -------------------------------------------------------------------------------------------------


def _lines_of_old_index(layout: Layout, sealer: Sealer) -> dict[int, Line]:
    """Return the lines that the index in force holds, if it can be opened without risk."""
    try:
        path = layout.index(layout.read_owner().uuid)
        if Index.verify_file(path):
            return {}
        with Index.open(path, readonly=True) as index, index.read() as rows:
            found: dict[int, Line] = {}
            for seq, data in View(rows, sealer).lines():
                found[seq] = parse_line(memoryview(data), "index", 0)
            return found
    except (Damaged, StorageError):
        return {}  # it is what is being replaced; the log has to do


def _lines_of_log(log: Log) -> list[Line]:
    """Return every intact line of every segment, in order, whatever stands between them."""
    found = []
    for segment in log.segments():
        data = fs.read_all(log.path(segment), limit=1 << 40)
        view, offset = memoryview(data), 0
        while (offset := data.find(LINE_MAGIC, offset)) >= 0:
            try:
                line = parse_line(view[offset:], f"log segment {segment}", offset)
            except Malformed:
                offset += 1
                continue
            found.append(line)
            offset += line.line_bytes
    return found


def _merge(
    logged: list[Line], kept: dict[int, Line], sealer: Sealer, format_hash: bytes, report: RebuildReport
) -> list[Line]:
    """Return the longest chain of lines of this repository that the log and the old index make together."""
    by_seq: dict[int, list[Line]] = {}
    for line in [*logged, *kept.values()]:
        by_seq.setdefault(line.seq, []).append(line)
    starts = sorted(
        (line for lines in by_seq.values() for line in lines if _is_checkpoint(line, sealer, format_hash)),
        key=lambda line: line.seq,
    )
    best: list[Line] = []
    for start in starts:
        chain = _follow(start, by_seq)
        if not best or chain[-1].seq > best[-1].seq:
            best = chain
    if not best:
        raise Damaged(
            "neither the log nor the index can be read: refs are lost",
            hint="restore log/ or index/ from a copy; the packs are left as they are",
        )
    report.lost_lines = max(by_seq) > best[-1].seq
    if report.lost_lines:
        report.problems.append(f"lines {best[-1].seq + 1} to {max(by_seq)} of the log cannot be joined to the rest")
    return best


def _follow(start: Line, by_seq: dict[int, list[Line]]) -> list[Line]:
    chain = [start]
    while True:
        tip = chain[-1].hash
        following = [line for line in by_seq.get(chain[-1].seq + 1, []) if line.previous == tip]
        if not following:
            return chain
        chain.append(following[0])


def _is_checkpoint(line: Line, sealer: Sealer, format_hash: bytes) -> bool:
    """Whether a chain of this repository may start at `line`; without keys, lines of others can be read too."""
    try:
        changes = decode_changes(sealer.open_line(line))[1]
        return any(isinstance(change, Checkpoint) and change.format_hash == format_hash for change in changes)
    except Damaged:
        return False


def _heal_log(log: Log, chain: list[Line], report: RebuildReport) -> None:
    """Make the log hold exactly `chain`, in one segment, unless it does already."""
    if _holds(log, chain):
        return
    segments = log.segments()
    report.log_healed = True
    number = segments[0] if segments else 1
    fs.write_atomic(log.path(number), b"".join(line.to_bytes() for line in chain))
    for other in segments[1:]:
        fs.unlink(log.path(other))


def _holds(log: Log, chain: list[Line]) -> bool:
    try:
        data = b"".join(fs.read_all(log.path(segment), limit=1 << 40) for segment in log.segments())
    except FileNotFoundError:
        return False
    return data == b"".join(line.to_bytes() for line in chain)


# ---- the index -----------------------------------------------------------------------------------------------


def _build(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    around: Surroundings,
    report: RebuildReport,
    observer: Observer,
) -> Owner:
    uuid = around.random(16).hex()
    index = Index.create(layout.index(uuid))
    try:
        grown = _replay(Log(layout.log), index, sealer, format, report)
        _put_records(PackDir(layout.packs), index, sealer, grown, report, observer)
        _put_kept(index, sealer, _small_records_of_old_index(layout, sealer))
        return Owner(uuid, index.inode[1], around.host)
    finally:
        index.close()


def _replay(log: Log, index: Index, sealer: Sealer, format: Format, report: RebuildReport) -> list[PackGrown]:
    """Apply every line of the log, but for the records in packs; return how packs grew, in that order."""
    grown: list[PackGrown] = []
    for at, line in log.after(BEGINNING):
        time_us, changes = decode_changes(sealer.open_line(line))
        index.ensure_room(_ROOM + 2 * line.line_bytes)
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for point in changes if not report.lines else ():
                if isinstance(point, Checkpoint):
                    editor.identify(format.repo_id, format.hash, point.keyring)
                    editor.restore(point, _no_records)
                    grown += [PackGrown(pack.pack, 0, pack.length, pack.contents) for pack in point.packs]
            editor.apply(at, line, time_us, changes, _no_records)
        grown += [change for change in changes if isinstance(change, PackGrown)]
        report.lines += 1
    return grown


def _no_records(growth: PackGrown) -> list[Placed]:
    return []  # they are read when it is known which packs are still there


def _put_records(
    packs: PackDir,
    index: Index,
    sealer: Sealer,
    grown: list[PackGrown],
    report: RebuildReport,
    observer: Observer,
) -> None:
    """Put the records of all packs that are not retired, bases before what builds on them, dead ranges left out.

    A base may lie in a later pack than what builds on it, after gc has copied it there.
    """
    read = _Records(packs, sealer.repo_id, report)
    deeper: list[tuple[PackGrown, Placed]] = []
    total = sum(growth.stop - growth.start for growth in grown)
    done = 0
    for growth in grown:
        for some in _in_parts(read(growth)):
            deeper += [(growth, placed) for placed in some if placed.header.depth]
            _put(index, sealer, [(growth, placed) for placed in some if not placed.header.depth], read)
        done += growth.stop - growth.start
        observer(Progress("rebuild-index", done, total))
    deeper.sort(key=lambda item: item[1].header.depth)
    for some_deeper in _in_parts(deeper):
        _put(index, sealer, some_deeper, read)


def _in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of what one transaction takes."""
    left = iter(items)
    while part := list(islice(left, _RECORDS_PER_TRANSACTION)):
        yield part


def _put(index: Index, sealer: Sealer, found: list[tuple[PackGrown, Placed]], read: "_Records") -> None:
    index.ensure_room(_ROOM + sum(_ROOM_PER_RECORD + 2 * len(placed.inline or b"") for _, placed in found))
    with index.write() as rows:
        editor = Editor(rows, sealer)
        for growth, placed in found:
            number = editor.pack_number(growth.pack)
            line = editor.pack(number) if number is not None else None
            if number is None or line is None or line.retired or is_within(placed.offset, line.dead):
                continue
            known = editor.place(placed.header.id)
            if known is not None and known.depth == placed.header.depth and not read.is_intact(growth, placed):
                continue  # it was stored again because one of the two was damaged: this one is
            editor.put_record(number, placed)


def _put_kept(index: Index, sealer: Sealer, kept: Iterator[tuple[bytes, Placed]]) -> None:
    """Put those small records of the old index that the packs lost, or hold damaged: commits and trees above all."""
    for some in _in_parts(kept):
        index.ensure_room(_ROOM + sum(_ROOM_PER_RECORD + 2 * len(placed.inline or b"") for _, placed in some))
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for pack, placed in sorted(some, key=lambda item: item[1].header.depth):
                number = editor.pack_number(pack)
                line = editor.pack(number) if number is not None else None
                if number is None or line is None or line.retired or is_within(placed.offset, line.dead):
                    continue
                if placed.offset < line.length and not _is_whole(editor, placed.header.id):
                    editor.put_record(number, placed)


def _is_whole(view: View, id: ObjectId) -> bool:
    small = view.inline(id)
    if small is None:
        return view.place(id) is not None
    try:
        split_record(memoryview(small), "index")
    except Malformed:
        return False
    return True


def _small_records_of_old_index(layout: Layout, sealer: Sealer) -> Iterator[tuple[bytes, Placed]]:
    """Yield (pack, record) of what the index in force holds whole, if it can be opened without risk."""
    try:
        path = layout.index(layout.read_owner().uuid)
        if Index.verify_file(path):
            return
        with Index.open(path, readonly=True) as index, index.read() as rows:
            view = View(rows, sealer)
            packs = {number: line.pack for number, line in view.packs()}
            for id, data in rows.scan("inline"):
                place = view.place(id)
                try:
                    header, _ = split_record(memoryview(data), "index")
                except Malformed:
                    continue  # it was damaged in its pack already when the index got it
                if place is not None and place.pack in packs and header.repo_id == sealer.repo_id:
                    yield packs[place.pack], Placed(place.offset, header, data)
    except (Damaged, StorageError):
        return  # it is what is being replaced; the packs have to do


class _Records:
    """Reads the records of a pack's range, skipping those whose headers are damaged."""

    def __init__(self, packs: PackDir, repo_id: bytes, report: RebuildReport) -> None:
        self._packs, self._repo_id, self._report = packs, repo_id, report

    def __call__(self, growth: PackGrown) -> Iterator[Placed]:
        name = growth.pack.hex()
        try:
            file = fs.open_file(self._packs.path(growth.pack))
        except FileNotFoundError:
            return  # told once, with the packs
        with file:
            stop = min(file.size(), growth.stop)
            for offset, header in self._headers(file, growth, stop, f"pack {name}"):
                if is_record_kind(header.kind) and header.repo_id == self._repo_id:
                    yield Placed(offset, header, self._inline(file, offset, header.record_bytes))

    def is_intact(self, growth: PackGrown, placed: Placed) -> bool:
        """Whether the payload of a record has the checksum that was stored with it; needs no key."""
        with fs.open_file(self._packs.path(growth.pack)) as file:
            data = file.pread(placed.offset, placed.header.record_bytes)
        try:
            split_record(memoryview(data), growth.pack.hex(), placed.offset)
        except Malformed:
            return False
        return True

    def _headers(self, file: fs.File, growth: PackGrown, stop: int, what: str) -> list[tuple[int, Header]]:
        try:
            return list(scan(file, growth.start, stop, what))
        except Malformed as error:
            self._report.problems.append(str(error))
            return list(salvage(file, growth.start, stop, what))

    @staticmethod
    def _inline(file: fs.File, offset: int, nbytes: int) -> bytes | None:
        return file.pread(offset, nbytes) if nbytes <= INLINE_BYTES else None


def _check_packs(packs: PackDir, view: View, report: RebuildReport) -> None:
    for _, line in view.packs():
        size = packs.size(line.pack)
        if not line.retired and size < line.length:
            report.problems.append(f"pack {line.pack.hex()} has {size} bytes where {line.length} were committed")


def _remove_old_indexes(layout: Layout, old: str | None, new: str) -> None:
    """Remove the index that was replaced, and what earlier rebuilds left where only ours can lie."""
    ours_alone = layout.index_root == layout.root / "index"
    for name in fs.list_dir(layout.index_root):
        if name != new and (name == old or (ours_alone and _is_index_name(name))):
            for file in ("data.mdb", "lock.mdb"):
                fs.unlink(layout.index_root / name / file, missing_ok=True)
            _remove_folder(layout.index_root / name)


def _is_index_name(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def _old_owner(layout: Layout) -> str | None:
    try:
        return layout.read_owner().uuid
    except Damaged:
        return None  # then nothing says which index was in force


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):  # a process that still has it open keeps it; an empty folder harms nobody
        folder.rmdir()


# ---- refs ----------------------------------------------------------------------------------------------------


def _move_lost_refs(db: LocalDatabase, report: RebuildReport) -> None:
    """Set refs whose snapshot is not complete to the newest one of their reflog that is."""
    changes = []
    for row in db.refs():
        if not isinstance(row.target, ObjectId) or _complete(db, row.target):
            continue
        with db.view() as view:
            older = [line.old for line in view.reflog(row.name)]
        target = next((id for id in older if isinstance(id, ObjectId) and _complete(db, id)), None)
        report.problems.append(f"the commit of {row.name}, {row.target.short}, is damaged")
        if target is None and _readable(db, row.target):
            continue  # nothing better is left, and what reads of this one is not to be lost sight of
        report.moved[row.name] = (str(row.target), str(target) if target else "nothing")
        changes.append(SetRef(row.name, row.target, target, "rebuild-index: its commit is damaged"))
    if changes:
        db.publish(None, changes)


def _readable(db: LocalDatabase, commit: ObjectId) -> bool:
    try:
        decode_commit(commit, bytes(db.read(commit)))
    except Damaged:
        return False
    return True


def _complete(db: LocalDatabase, commit: ObjectId) -> bool:
    """Whether a commit and its tree read, and every chunk is stored; a forgotten one needs no more than itself."""
    try:
        tree = decode_commit(commit, bytes(db.read(commit))).tree
        with db.view() as view:
            if view.mark(commit) is not None:
                return True
        root = Root.from_bytes(bytes(db.read(tree)))
        seen = {page for page in (root.state, root.files, root.ranks) if page is not None}
        stack = list(seen)
        while stack:
            links = page_links(bytes(db.read(stack.pop())))
            stack += [page for page in links.pages if page not in seen]
            seen.update(links.pages)
            if not all(db.has(chunk) for chunk in links.chunks):
                return False
    except Damaged:
        return False
    return True
