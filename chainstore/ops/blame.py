"""Blame: which commits, and which paths in them, damaged objects hit.

Pages are shared by commits, so what is hit is found once for each page; then each commit only walks down to the pages
that have something to tell.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.paths import Path, format_path
from chainstore.model.tree import EXTENTS, Below, Entry, pages_below, read_tree
from chainstore.model.wire import encode
from chainstore.ops.verify_walk import Bad, Fetch

EVERYTHING = "**"
_NO_EXTENTS = encode([EXTENTS, []])


@dataclass(slots=True)
class Hit:
    """What a damaged object hits.

    Attributes:
        commits: ids as text.  paths: of what is in them.
        span: of a page that cannot be read, how many entries it lists and between which others they stand; "" where
            the page above it cannot be read either.
    """

    commits: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    span: str = ""


@dataclass(slots=True)
class _Page:
    """What one page has to tell: damaged objects at paths of its own, and pages below that have something to tell."""

    hits: list[tuple[ObjectId, str]] = field(default_factory=list)
    below: list[ObjectId] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        return not (self.hits or self.below)


class Blame:
    """Finds what `bad` objects hit in `kept` commits, given with their root pages."""

    def __init__(self, fetch: Fetch, bad: Mapping[ObjectId, Bad]) -> None:
        self._fetch, self._bad = fetch, bad
        self._pages: dict[ObjectId, _Page] = {}
        self._spans: dict[ObjectId, str] = {}

    def of(self, kept: Sequence[tuple[ObjectId, ObjectId]]) -> dict[ObjectId, Hit]:
        """Return what each damaged page and chunk hits; those that no commit reaches are left out."""
        reached: dict[ObjectId, list[str]] = {}
        for commit, tree in kept:
            for page in self._telling(tree):
                reached.setdefault(page, []).append(str(commit))
        paths: dict[ObjectId, dict[str, None]] = {}
        pages: dict[ObjectId, dict[ObjectId, None]] = {}
        for page in reached:
            for id, path in self._pages[page].hits:
                paths.setdefault(id, {})[path] = None
                pages.setdefault(id, {})[page] = None
        shared: dict[tuple[ObjectId, ...], tuple[str, ...]] = {}  # thousands of chunks lie on the same pages
        found = {}
        for id, where in pages.items():
            on = tuple(where)
            if on not in shared:
                shared[on] = tuple(dict.fromkeys(commit for page in on for commit in reached[page]))
            found[id] = Hit(shared[on], tuple(paths[id]), self._spans.get(id, ""))
        return found

    def _telling(self, tree: ObjectId) -> Iterator[ObjectId]:
        """Yield the pages of a snapshot that have something to tell."""
        if tree not in self._pages:
            self._pages[tree] = self._root(tree)
        stack, seen = [tree], {tree}
        while stack:
            page = stack.pop()
            told = self._pages[page]
            if told.hits:
                yield page
            stack += [below for below in told.below if below not in seen]
            seen.update(told.below)

    def _root(self, tree: ObjectId) -> _Page:
        page = _Page([(tree, EVERYTHING)] if tree in self._bad else [])
        root = self._fetch.root(tree)
        for top in (root.state, root.files, root.ranks) if root is not None else ():
            if top is not None and not self._look(top, EVERYTHING).silent:
                page.below.append(top)
        return page

    def _look(self, id: ObjectId, where: str) -> _Page:
        """Return what a page has to tell; `where` is what all its paths have in common."""
        if id in self._pages:
            return self._pages[id]
        page = self._pages[id] = _Page([(id, where)] if id in self._bad else [])
        data = self._fetch.page(id)
        if data is None:
            return page
        try:
            rows = pages_below(data)
            page.below = [row.page for row in rows if not self._look(row.page, _below(row.common)).silent]
            for number, row in enumerate(rows):
                if row.page in self._bad:
                    self._spans[row.page] = self._span(rows, number)
            if not rows:
                page.hits += self._hits(id, data)
        except Malformed:
            if not page.hits:
                page.hits.append((id, where))
        return page

    def _span(self, rows: Sequence[Below], number: int) -> str:
        last = self._edge(rows[number - 1].page, -1) if number else None
        first = self._edge(rows[number + 1].page, 0) if number + 1 < len(rows) else None
        between = [f"after {last}" if last is not None else "", f"before {first}" if first is not None else ""]
        return ", ".join([f"{rows[number].entries:,} entries", *filter(None, between)])

    def _edge(self, page: ObjectId, which: int) -> str | None:
        """Return the first (0) or last (-1) path at or below a page, if that can be read."""
        data = self._fetch.page(page)
        try:
            while data is not None and (rows := pages_below(data)):
                page = rows[which].page
                data = self._fetch.page(page)
            if data is None:
                return None
            whole = data
            paths = [e.path for e in read_tree(page, lambda id: whole if id == page else _NO_EXTENTS)]
        except Malformed:
            return None
        return format_path(paths[which]) if paths else None

    def _hits(self, id: ObjectId, data: bytes) -> Iterator[tuple[ObjectId, str]]:
        """Yield the damaged objects that a page of entries names, each with the path of its entry."""
        missing: list[ObjectId] = []

        def load(page: ObjectId) -> bytes:
            if page == id:
                return data
            if page in self._bad:
                missing.append(page)
            found = self._fetch.page(page)
            return found if found is not None else _NO_EXTENTS

        for entry in read_tree(id, load):
            yield from self._hits_of(entry, missing)
            missing.clear()

    def _hits_of(self, entry: Entry, missing: Sequence[ObjectId]) -> Iterator[tuple[ObjectId, str]]:
        hit = dict.fromkeys([*missing, *(extent.chunk for extent in entry.extents if extent.chunk in self._bad)])
        if hit:
            path = format_path(entry.path)
            yield from ((id, path) for id in hit)


def _below(common: Path) -> str:
    return f"{format_path(common)}/{EVERYTHING}" if common else EVERYTHING
