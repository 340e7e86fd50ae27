"""Verify: prove what is stored, from a look at the log to a read of every byte.

quick    log, index and small files agree; every ref names a commit that is there
links    quick, and every reachable commit and tree page reads, every chunk they name has a record in its pack
data     links, and every reachable chunk reads and hashes to its id
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from chainstore.display import count, size, table
from chainstore.errors import ChainError, Damaged, IdMismatch, InvalidInput, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.model.paths import format_path
from chainstore.model.tree import Root, page_links, read_tree
from chainstore.observe import Observer, Progress
from chainstore.odb.layout import Format
from chainstore.odb.local import LocalDatabase
from chainstore.odb.view import View
from chainstore.ops.history import read_commit
from chainstore.ops.pipeline import run
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING

Level = Literal["quick", "links", "data"]
LEVELS: tuple[Level, ...] = ("quick", "links", "data")
_SMALL_FILE_BYTES = 1 << 20
_TELL_EVERY = 16  # chunks
_MOST_SHOWN = 20  # damages in a notebook


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was stored.

    Attributes:
        what: a sentence.
        id: the object, 64 hex digits, or "".
        commits: ids of the commits that are hit.  paths: what is hit in them.
    """

    what: str
    id: str = ""
    commits: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class VerifyReport:
    """What a verification looked at and found; `damaged` is empty when all is well.

    Attributes:
        level: "quick", "links" or "data".
        lines, refs, commits, pages, chunks: how many were looked at; pages and chunks are those that commits reach.
        read_bytes: of chunks, at level "data".
        damaged: what is not as it was stored.
    """

    level: Level
    lines: int = 0
    refs: int = 0
    commits: int = 0
    pages: int = 0
    chunks: int = 0
    read_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def __repr__(self) -> str:
        found = "all is well" if self.ok else f"{len(self.damaged)} damaged"
        counts = {"log line": self.lines, "ref": self.refs, "commit": self.commits, "chunk": self.chunks}
        looked = ", ".join(count(number, noun) for noun, number in counts.items())
        return f"<VerifyReport {self.level}: {found}; {looked}, {size(self.read_bytes)} read>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        looked = [(name, getattr(self, name)) for name in ("lines", "refs", "commits", "pages", "chunks")]
        damage = [("damaged", found.what) for found in self.damaged[:_MOST_SHOWN]]
        if len(self.damaged) > _MOST_SHOWN:
            damage.append(("damaged", f"and {len(self.damaged) - _MOST_SHOWN} more, in .damaged"))
        title = f"verify {self.level}: {'all is well' if self.ok else f'{len(self.damaged)} damaged'}"
        return table(title, [*looked, ("read", size(self.read_bytes)), *damage])


def verify(db: LocalDatabase, level: Level, *, threads: int, observer: Observer) -> VerifyReport:
    """Look at everything that `level` covers; damage is collected, not raised.

    Raises:
        InvalidInput: there is no such level.
    """
    if level not in LEVELS:
        raise InvalidInput(f"no level {level!r}: choose quick, links or data")
    report = VerifyReport(level)
    _try(report, lambda: _check_small_files(db))
    if _check_index(db, report):
        _try(report, lambda: _check_log(db, report))
        _try(report, lambda: _check_packs(db, report))
        tips = _check_refs(db, report)
        if level != "quick":
            _check_reachable(db, report, tips, level, threads, observer)
    return report


def _try(report: VerifyReport, check: Callable[[], None]) -> None:
    try:
        check()
    except ChainError as error:
        report.damaged.append(Damage(str(error), getattr(error, "id", "")))


def _check_small_files(db: LocalDatabase) -> None:
    for name in ("format", "format.bak"):
        Format.from_bytes(_small_file(db, name))
    if db.sealer.encrypted:
        for name in ("keyring", "keyring.bak"):
            db.layout.parse_keyring(_small_file(db, name))


def _small_file(db: LocalDatabase, name: str) -> bytes:
    try:
        return fs.read_all(db.layout.root / name, _SMALL_FILE_BYTES)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None


def _check_index(db: LocalDatabase, report: VerifyReport) -> bool:
    """Whether the index can be read at all; its structure is walked without LMDB."""
    problems = Index.verify_file(db.index_path)
    report.damaged += [Damage(f"the index: {problem}") for problem in problems]
    return not problems


def _check_log(db: LocalDatabase, report: VerifyReport) -> None:
    """Every line of every segment parses, follows the one before, opens, and is in the index as it is in the log."""
    with db.view() as view:
        end = view.position()
        at = BEGINNING
        for here, line in db.log.after(BEGINNING):
            at = here
            db.sealer.open_line(line)
            if at.seq > end.seq:
                break  # not in the index yet: it is settled by the next writer
            if at.segment == end.segment and view.line(at.seq) != line.to_bytes():
                raise Damaged(f"line {at.seq} of the log is another in the index")
            report.lines += 1
        if at.seq < end.seq:
            raise Damaged(f"the log ends at line {at.seq}, the index at line {end.seq}")


def _check_packs(db: LocalDatabase, report: VerifyReport) -> None:
    with db.view() as view:
        for _, pack in view.packs():
            size = db.packs.size(pack.pack)
            if size < pack.length and not pack.retired:
                what = f"pack {pack.pack.hex()} has {size} bytes where {pack.length} were committed"
                report.damaged.append(Damage(what))


def _check_refs(db: LocalDatabase, report: VerifyReport) -> list[ObjectId]:
    """Return the commits that refs, tags, HEAD and reflogs name."""
    tips: dict[ObjectId, str] = {}
    try:
        with db.view() as view:
            for row in view.refs():
                report.refs += 1
                if isinstance(row.target, ObjectId):
                    tips.setdefault(row.target, row.name)
            for line in view.reflogs():
                for target in (line.old, line.new):
                    if isinstance(target, ObjectId):
                        tips.setdefault(target, f"the reflog of {line.name}")
    except ChainError as error:
        report.damaged.append(Damage(str(error)))
    for id, name in tips.items():
        try:
            read_commit(db, id)
        except Damaged as error:
            report.damaged.append(Damage(f"{name} names a commit that is damaged: {error}", str(id), (str(id),)))
    return list(tips)


def _check_reachable(
    db: LocalDatabase, report: VerifyReport, tips: list[ObjectId], level: Level, threads: int, observer: Observer
) -> None:
    chunks: dict[ObjectId, None] = {}
    pages: set[ObjectId] = set()
    commits = list(_commits(db, report, tips))
    kept = _kept(db, commits)
    for number, commit in enumerate(kept):
        observer(Progress("verify", number, len(kept)))
        _walk(db, report, commit, pages, chunks)
    report.commits, report.pages, report.chunks = len(commits), len(pages), len(chunks)
    bad = _check_places(db, chunks)
    if level == "data":
        bad |= _read_all(db, report, [id for id in chunks if id not in bad], threads, observer)
    if bad:
        report.damaged += _explain(db, kept, bad)


def _kept(db: LocalDatabase, commits: list[Commit]) -> list[Commit]:
    """Return the commits whose snapshots were not forgotten: of the others, anything may be gone."""
    with db.view() as view:
        return [commit for commit in commits if view.mark(commit.id) is None]


def _commits(db: LocalDatabase, report: VerifyReport, tips: list[ObjectId]) -> Iterator[Commit]:
    seen, queue = set(tips), list(tips)
    while queue:
        id = queue.pop()
        try:
            commit = read_commit(db, id)
        except Damaged as error:
            if id not in tips:
                report.damaged.append(Damage(str(error), str(id), (str(id),)))
            continue
        yield commit
        for parent in commit.parents:
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)


def _walk(
    db: LocalDatabase, report: VerifyReport, commit: Commit, seen: set[ObjectId], chunks: dict[ObjectId, None]
) -> None:
    """Look at every page of a snapshot that was not seen before, and collect the chunks that they name."""
    stack = [] if commit.tree in seen else list(_trees(db, report, commit))
    seen.add(commit.tree)
    while stack:
        page = stack.pop()
        if page in seen:
            continue
        seen.add(page)
        try:
            links = page_links(bytes(db.read(page)), strict=True)
        except Damaged as error:
            report.damaged.append(_page_damage(commit, page, error))
            continue
        chunks.update(dict.fromkeys(links.chunks))
        stack += links.pages


def _trees(db: LocalDatabase, report: VerifyReport, commit: Commit) -> tuple[ObjectId, ...]:
    try:
        root = Root.from_bytes(bytes(db.read(commit.tree)))
    except Damaged as error:
        report.damaged.append(_page_damage(commit, commit.tree, error))
        return ()
    return tuple(tree for tree in (root.state, root.files, root.ranks) if tree is not None)


def _page_damage(commit: Commit, page: ObjectId, error: Damaged) -> Damage:
    return Damage(f"a page of {commit.short} is damaged: {error}", str(page), (str(commit.id),))


def _check_places(db: LocalDatabase, chunks: dict[ObjectId, None]) -> dict[ObjectId, str]:
    bad: dict[ObjectId, str] = {}
    sizes: dict[bytes, int] = {}
    with db.view() as view:
        for id in chunks:
            why = _misplaced(db, view, id, sizes)
            if why:
                bad[id] = why
    return bad


def _misplaced(db: LocalDatabase, view: View, id: ObjectId, sizes: dict[bytes, int]) -> str | None:
    try:
        place = view.place(id)
        if place is None:
            return "it is not in the store"
        name = view.pack(place.pack).pack
    except Damaged as error:
        return str(error)
    if name not in sizes:
        sizes[name] = db.packs.size(name)
    return f"pack {name.hex()} ends before it" if place.offset + place.length > sizes[name] else None


def _read_all(
    db: LocalDatabase, report: VerifyReport, chunks: list[ObjectId], threads: int, observer: Observer
) -> dict[ObjectId, str]:
    bad: dict[ObjectId, str] = {}
    done = 0
    lock = threading.Lock()

    def read(id: ObjectId) -> None:
        nonlocal done
        nbytes, why = 0, ""
        try:
            nbytes = len(db.read(id))
        except (Damaged, StorageError) as error:
            why = error.why if isinstance(error, IdMismatch) else str(error)
        with lock:
            done += 1
            report.read_bytes += nbytes
            if why:
                bad[id] = why
            if done % _TELL_EVERY == 0:
                observer(Progress("verify", done, len(chunks)))

    run(chunks, read, threads=threads)
    return bad


def _explain(db: LocalDatabase, commits: list[Commit], bad: dict[ObjectId, str]) -> list[Damage]:
    """Return which commits and paths the damaged chunks hit."""
    hit: dict[ObjectId, tuple[dict[str, None], dict[str, None]]] = {id: ({}, {}) for id in bad}
    for commit in commits:
        try:
            root = Root.from_bytes(bytes(db.read(commit.tree)))
            for tree in (root.state, root.files):
                for entry in read_tree(tree, lambda id: bytes(db.read(id))) if tree is not None else ():
                    for extent in entry.extents:
                        if extent.chunk in hit:
                            hit[extent.chunk][0][str(commit.id)] = None
                            hit[extent.chunk][1][format_path(entry.path)] = None
        except (Damaged, Malformed):
            continue  # told already
    return [
        Damage(f"a chunk of {', '.join(paths) or 'nothing'} is damaged: {bad[id]}", str(id), tuple(where), tuple(paths))
        for id, (where, paths) in hit.items()
    ]
