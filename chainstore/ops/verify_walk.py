"""The walk: every commit and page that refs, tags, HEAD and reflogs lead to, each read once.

What is damaged is noted by id.  Where another repository is at hand, the walk goes on through what that one holds, so
that one walk finds everything that is missing here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from chainstore.errors import Damaged, IdMismatch, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit, decode_commit
from chainstore.model.tree import Links, Root, page_links
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.odb.view import View

T = TypeVar("T")
_TELL_EVERY = 64  # commits
_PLACES_PER_VIEW = 4096  # look-ups in one transaction: a long one would keep the index from reusing its pages


@dataclass(frozen=True, slots=True)
class Bad:
    """An object that is not as it was stored.

    Attributes:
        check: "commits", "pages" or "chunks".
        why: what is wrong.
        pack, offset: where its record is; "" and -1 where it has none.
    """

    check: str
    why: str
    pack: str = ""
    offset: int = -1


@dataclass(slots=True)
class Reach:
    """What the refs lead to.

    Attributes:
        tips: commits that refs and reflogs name -> how.
        commits: (commit, root page) of every commit that reads.
        kept: those of them that were not forgotten: of the others, anything may be gone.
        pages: every page of those.
        chunks: every chunk that those pages name, with the bytes of its record (0 until it was looked up).
    """

    tips: dict[ObjectId, str] = field(default_factory=dict)
    commits: list[tuple[ObjectId, ObjectId]] = field(default_factory=list)
    kept: list[tuple[ObjectId, ObjectId]] = field(default_factory=list)
    pages: set[ObjectId] = field(default_factory=set)
    chunks: dict[ObjectId, int] = field(default_factory=dict)


class Fetch:
    """Reads commits and pages, and notes those that do not read.

    Args:
        source: another repository that has what is damaged here, or None.

    Attributes:
        bad: what was noted, by id.
    """

    def __init__(self, db: LocalDatabase, source: LocalDatabase | None = None) -> None:
        self.db, self.source = db, source
        self.bad: dict[ObjectId, Bad] = {}

    def commit(self, id: ObjectId) -> Commit | None:
        """Return a commit, or None."""
        return self._get(id, "commits", lambda data: decode_commit(id, data))

    def root(self, id: ObjectId) -> Root | None:
        """Return the root page of a snapshot, or None."""
        return self._get(id, "pages", Root.from_bytes)

    def links(self, id: ObjectId) -> Links | None:
        """Return what a page names, or None."""
        return self._get(id, "pages", lambda data: page_links(data, strict=True))

    def page(self, id: ObjectId) -> bytes | None:
        """Return the bytes of a page, or None."""
        return self._get(id, "pages", lambda data: data)

    def note(self, id: ObjectId, check: str, why: str) -> None:
        """Take note that an object is damaged; the first reason stays."""
        if id not in self.bad:
            self.bad[id] = Bad(check, why, *self._where(id))

    def _get(self, id: ObjectId, check: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(bytes(self.db.read(id)))
        except (Damaged, StorageError) as error:
            self.note(id, check, reason(error))
        if self.source is None:
            return None
        try:
            return parse(bytes(self.source.read(id)))
        except (Damaged, StorageError):
            return None

    def _where(self, id: ObjectId) -> tuple[str, int]:
        try:
            with self.db.view() as view:
                place = view.place(id)
                return (view.pack(place.pack).pack.hex(), place.offset) if place is not None else ("", -1)
        except Damaged:
            return "", -1


def reason(error: Damaged | StorageError) -> str:
    """Return what is wrong, without the name of the object."""
    return error.why if isinstance(error, IdMismatch) else str(error)


def find_tips(view: View) -> tuple[int, dict[ObjectId, str]]:
    """Return how many refs there are, and the commits that refs, tags, HEAD and reflogs name.

    Raises:
        Damaged: a row does not read.
    """
    tips: dict[ObjectId, str] = {}
    refs = view.refs()
    for row in refs:
        if isinstance(row.target, ObjectId):
            tips.setdefault(row.target, row.name)
    for line in view.reflogs():
        for target in (line.old, line.new):
            if isinstance(target, ObjectId):
                tips.setdefault(target, f"the reflog of {line.name}")
    return len(refs), tips


def walk_commits(fetch: Fetch, reach: Reach) -> set[ObjectId]:
    """Read the tips and all their ancestors, and return their ids; what a marked commit holds is not asked for."""
    seen, queue = set(reach.tips), list(reach.tips)
    while queue:
        id = queue.pop()
        commit = fetch.commit(id)
        if commit is None:
            continue
        reach.commits.append((id, commit.tree))
        for parent in commit.parents:
            if parent not in seen:
                seen.add(parent)
                queue.append(parent)
    with fetch.db.view() as view:
        marked = {bytes(mark.commit) for mark in view.marks()}
    reach.kept = [pair for pair in reach.commits if pair[0] not in marked]
    return seen


def walk_pages(fetch: Fetch, reach: Reach, observer: Observer) -> None:
    """Read every page of the kept snapshots once, and collect the chunks that they name."""
    for number, (_, tree) in enumerate(reach.kept):
        if number % _TELL_EVERY == 0:
            observer(Progress("verify names", number, len(reach.kept)))
        if tree in reach.pages:
            continue
        reach.pages.add(tree)
        root = fetch.root(tree)
        stack = [page for page in (root.state, root.files, root.ranks) if page is not None] if root else []
        while stack:
            page = stack.pop()
            if page in reach.pages:
                continue
            reach.pages.add(page)
            links = fetch.links(page)
            if links is not None:
                reach.chunks.update(dict.fromkeys(links.chunks, 0))
                stack += links.pages


def check_places(fetch: Fetch, reach: Reach) -> None:
    """Every object has a record, in a pack that is long enough, and so has everything that it builds on."""
    sizes: dict[bytes, int] = {}
    bases: dict[ObjectId, _Found] = {}
    for some, check in _in_parts(reach):
        with fetch.db.view() as view:
            for id in some:
                found = _look_up(fetch.db, view, id, sizes)
                why = found.why or _look_below(fetch.db, view, found, sizes, bases)
                if why:
                    fetch.note(id, check, why)
                elif check == "chunks":
                    reach.chunks[id] = found.length


def _in_parts(reach: Reach) -> Iterator[tuple[list[ObjectId], str]]:
    for check, ids in (
        ("commits", [id for id, _ in reach.commits]),
        ("pages", list(reach.pages)),
        ("chunks", list(reach.chunks)),
    ):
        for start in range(0, len(ids), _PLACES_PER_VIEW):
            yield ids[start : start + _PLACES_PER_VIEW], check


class _Found(NamedTuple):
    """The bytes of a record, what is wrong with its place, and what it builds on."""

    length: int
    why: str
    bases: tuple[ObjectId, ...] = ()


def _look_up(db: LocalDatabase, view: View, id: ObjectId, sizes: dict[bytes, int]) -> _Found:
    try:
        place = view.place(id)
        if place is None:
            return _Found(0, "it is not in the store")
        name = view.pack(place.pack).pack
        bases = view.bases(id) if place.n_bases else ()
    except (Damaged, Malformed) as error:
        return _Found(0, str(error))
    if len(bases) != place.n_bases:
        return _Found(0, "the index does not name what it builds on")
    if name not in sizes:
        sizes[name] = db.packs.size(name)
    if place.offset + place.length <= sizes[name]:
        return _Found(place.length, "", bases)
    if not sizes[name]:
        return _Found(0, f"pack {name.hex()} is missing")
    return _Found(0, f"pack {name.hex()} ends before it")


def _look_below(
    db: LocalDatabase, view: View, found: _Found, sizes: dict[bytes, int], looked_up: dict[ObjectId, _Found]
) -> str:
    """Return what is wrong with the places of what an object builds on."""
    seen, queue = set(found.bases), list(found.bases)
    while queue:
        id = queue.pop()
        if id not in looked_up:
            looked_up[id] = _look_up(db, view, id, sizes)
        base = looked_up[id]
        if base.why:
            return f"its base {id.short} is damaged: {base.why}"
        queue += (new := [below for below in base.bases if below not in seen])
        seen.update(new)
    return ""
