"""Trees: pages of names, shapes and extents, cut where the hash of a name says so.

A snapshot is a sequence of entries in the order in which its state was walked.  The sequence is cut into pages
of 4 to 8 KiB by the names alone, independent of values and of history, so that one inserted key does not shift
the rest; pages are listed by index pages, and those by others until one is left.  Pages hold no values: whoever
has only the metadata key sees names and shapes, and no weight.

    leaf page      [1, [[shared, [key...], node, spec, extents]...]]     path = first `shared` keys of the last + keys
    index page     [2, [[page id, entries, [key...]]...]]               keys: what all paths below have in common
    extent page    [3, extents]
    root           [4, state | nil, files | nil, ranks | nil]

    extents        [ids, length, total]          n chunks of `length` bytes each, used whole, the last one shorter
                   [ids, [offset, length...]]    any others
                   [pages, total, nil, nil]      ids of extent pages, for arrays of more than MAX_EXTENTS chunks
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import is_
from typing import Any, NamedTuple, cast

from chainstore.errors import InvalidInput, Malformed
from chainstore.ids import ID_BYTES, ObjectId
from chainstore.model.frame import MAX_PAYLOAD, crc32c
from chainstore.model.paths import Key, Path, decode_key, encode_key, format_path
from chainstore.model.spec import Spec, spec_from_node, spec_node
from chainstore.model.wire import Node, decode, encode

LEAF, INDEX, EXTENTS, ROOT = 1, 2, 3, 4
PAGE_ENTRIES = 64  # expected entries of a page: 4-8 KiB at 60-120 bytes each
MAX_PAGE_BYTES = 64 << 10
MAX_EXTENTS = 256  # of one entry, in the page itself: 8 KiB of ids
MAX_LEVELS = 16
_ROW_BYTES = 64  # what a row takes besides its names, layout and extents; spec included unless it has many dimensions
_EXTENT_BYTES = ID_BYTES + 10

Store = Callable[[bytes], ObjectId]
Load = Callable[[ObjectId], bytes]


class Extent(NamedTuple):
    """`length` bytes at `offset` of a chunk."""

    chunk: ObjectId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One array, value or container of a snapshot.

    Attributes:
        path: its keys from the root.
        node: what it is and how to rebuild it; only `state` looks inside.
        spec: dtype and shape of the stored bytes of an array, else None.
        extents: where its bytes are, in order.
    """

    path: Path
    node: Node
    spec: Spec | None
    extents: tuple[Extent, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole entry."""
        return sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class Root:
    """The trees of one snapshot; None where it has none."""

    state: ObjectId | None
    files: ObjectId | None
    ranks: ObjectId | None = None

    def to_bytes(self) -> bytes:
        """Return the root as a page."""
        return encode(
            [ROOT, *(bytes(tree) if tree is not None else None for tree in (self.state, self.files, self.ranks))]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Root":
        """Return the root that `data` encodes; Malformed where it is none."""
        match decode(data, what="root"):
            case [4, *trees] if len(trees) == 3 and all(t is None or isinstance(t, bytes) for t in trees):
                return cls(*(_id(tree) if isinstance(tree, bytes) else None for tree in trees))
        raise Malformed("root", "not a root page")


def write_tree(entries: Iterable[Entry], store: Store) -> ObjectId | None:
    """Store `entries` as pages and return the id of the topmost, or None where there are no entries.

    Args:
        entries: in walk order, no path twice.
        store: keeps one page and returns its id; called for lower pages first.

    Raises:
        InvalidInput: one entry alone, its names and layout, would not fit a page.
    """
    return Pages().write(tuple(entries), store)


def read_tree(root: ObjectId, load: Load, under: Path = ()) -> Iterator[Entry]:
    """Yield the entries of a tree in walk order.

    Args:
        under: pages that hold nothing at or below this path are not loaded; entries are not filtered.

    Raises:
        Malformed: a page does not follow the format.
    """
    yield from _read(root, load, under, MAX_LEVELS, set())


class Links(NamedTuple):
    """What one page names, each once: pages below it, and chunks."""

    pages: tuple[ObjectId, ...]
    chunks: tuple[ObjectId, ...]


def page_links(data: bytes, *, strict: bool = False) -> Links:
    """Return what a page other than a root names; for walks that look at each page once.

    Args:
        strict: also demand that encoding the page again gives the same bytes.

    Raises:
        Malformed: it does not follow the format.
    """
    code, body = _page(data, strict)
    if code == INDEX:
        return Links(tuple(dict.fromkeys(_id(row[0]) for row in body)), ())
    lists = [body] if code == EXTENTS else [row[4] for row in body]
    pages = dict.fromkeys(page for extents in lists for page in _extent_pages(extents))
    chunks = dict.fromkeys(e.chunk for extents in lists if len(extents) != 4 for e in _read_plain(extents))
    return Links(tuple(pages), tuple(chunks))


class Below(NamedTuple):
    """What an index page says of a page below it: its id, how many entries it holds, what their paths share."""

    page: ObjectId
    entries: int
    common: Path


def pages_below(data: bytes) -> tuple[Below, ...]:
    """Return the rows of an index page; () where it is a page of another kind.

    Raises:
        Malformed: it does not follow the format.
    """
    code, body = _page(data)
    if code != INDEX:
        return ()
    return tuple(Below(_id(page), entries, tuple(map(decode_key, keys))) for page, entries, keys in body)


def tree_pages(root: ObjectId, load: Load) -> Iterator[ObjectId]:
    """Yield the id of every page of a tree once, parents first."""
    seen, stack = {root}, [root]
    while stack:
        page = stack.pop()
        yield page
        below = [child for child in page_links(load(page)).pages if child not in seen]
        seen.update(below)
        stack.extend(below)


# ---- writing --------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A finished page: its id, entries below it, first path, what all its paths have in common."""

    id: ObjectId
    entries: int
    first: Path
    common: Path


class _Cut(NamedTuple):
    """Where a page was cut: of which entries, or rows of the level below, it consists; and what was stored for it."""

    start: int
    stop: int
    row: _Row
    stored: tuple[ObjectId, ...]


class Pages:
    """The pages of one tree, so that those that stay as they are need not be made again for the next one."""

    def __init__(self) -> None:
        self._levels: list[list[_Cut]] = []
        self._entries: Sequence[Entry] = ()

    def write(
        self, entries: Sequence[Entry], store: Store, rely: Callable[[ObjectId], bool] = lambda id: False
    ) -> ObjectId | None:
        """Store entries as `write_tree` does.

        Args:
            entries: after the first time: as many as then, with the same paths, nodes, specs and numbers of extents.
            rely: whether a page is stored, and will be when what this tree is for is published.
        """
        levels = self._write_again(entries, store, rely) if self._levels else _write_first(entries, store)
        self._levels, self._entries = levels, entries
        return levels[-1][0].row.id if entries else None

    def _write_again(
        self, entries: Sequence[Entry], store: Store, rely: Callable[[ObjectId], bool]
    ) -> list[list[_Cut]]:
        keeper = _Keeper(store)
        again: list[list[_Cut]] = []
        parts, old_parts = cast("Sequence[object]", entries), cast("Sequence[object]", self._entries)
        for level, cuts in enumerate(self._levels):
            make: Callable[[Any, Store], _Row] = _leaf if level == 0 else _index
            now = []
            for cut in cuts:
                start, stop, row, stored = cut
                part = parts[start:stop]
                if not (all(map(is_, part, old_parts[start:stop])) and all(map(rely, stored))):
                    row = make(part, keeper.store)
                    cut = _Cut(start, stop, row if row.id != cut.row.id else cut.row, keeper.taken())
                now.append(cut)
            again.append(now)
            parts, old_parts = [cut.row for cut in now], [cut.row for cut in cuts]
        return again


class _Keeper:
    """Stores pages, and knows which."""

    def __init__(self, store: Store) -> None:
        self._store, self._ids = store, list[ObjectId]()

    def store(self, page: bytes) -> ObjectId:
        id = self._store(page)
        self._ids.append(id)
        return id

    def taken(self) -> tuple[ObjectId, ...]:
        """Return the ids since it was asked last."""
        ids, self._ids = tuple(self._ids), []
        return ids


def _write_first(entries: Sequence[Entry], store: Store) -> list[list[_Cut]]:
    keeper = _Keeper(store)
    levels = [_cuts(_leaf_rows(entries, keeper.store), keeper)]
    for level in range(1, MAX_LEVELS):
        if len(levels[-1]) <= 1:
            return levels
        levels.append(_cuts(_index_rows([cut.row for cut in levels[-1]], level, keeper.store), keeper))
    raise AssertionError("64 ** 16 pages do not exist")


def _cuts(rows: Iterator[tuple[_Row, int]], keeper: _Keeper) -> list[_Cut]:
    """Return where the pages of a level were cut; each row comes with how many entries or rows are in its page."""
    cuts: list[_Cut] = []
    for row, count in rows:
        start = cuts[-1].stop if cuts else 0
        cuts.append(_Cut(start, start + count, row, keeper.taken()))
    return cuts


def _ends_page(name: bytes, level: int) -> bool:
    return crc32c(bytes((level,)), name) % PAGE_ENTRIES == 0


def _name(path: Path) -> bytes:
    return encode([encode_key(key) for key in path])


def _leaf_rows(entries: Sequence[Entry], store: Store) -> Iterator[tuple[_Row, int]]:
    page: list[Entry] = []
    size = 0
    lengths: dict[int, int] = {}  # of nodes, by their ids, for most entries share theirs
    for entry in entries:
        name = _name(entry.path)
        length = lengths.get(id(entry.node))
        if length is None:
            length = lengths[id(entry.node)] = len(encode(entry.node))
        cost = _cost(entry, name, length)
        if page and size + cost > MAX_PAGE_BYTES:
            yield _leaf(page, store), len(page)
            page, size = [], 0
        page.append(entry)
        size += cost
        if _ends_page(name, 0):
            yield _leaf(page, store), len(page)
            page, size = [], 0
    if page:
        yield _leaf(page, store), len(page)


def _cost(entry: Entry, name: bytes, node_bytes: int) -> int:
    """Return at least the bytes that an entry takes in a page."""
    count = len(entry.extents)
    extents = count * _EXTENT_BYTES if count <= MAX_EXTENTS else -(-count // MAX_EXTENTS) * ID_BYTES
    shape = 9 * len(entry.spec.shape) if entry.spec is not None else 0
    cost = _ROW_BYTES + len(name) + node_bytes + shape + extents
    if cost > MAX_PAGE_BYTES - _ROW_BYTES:
        raise InvalidInput(f"{format_path(entry.path):.200} takes {cost} bytes for its name and layout alone")
    return cost


def _leaf(page: Sequence[Entry], store: Store) -> _Row:
    rows: list[Node] = []
    previous: Path = ()
    for entry in page:
        shared = _shared(previous, entry.path) if rows else 0
        keys = [encode_key(key) for key in entry.path[shared:]]
        spec = spec_node(entry.spec) if entry.spec is not None else None
        rows.append([shared, keys, entry.node, spec, _extents_node(entry.extents, store)])
        previous = entry.path
    common = _common([entry.path for entry in page])
    return _Row(store(encode([LEAF, rows])), len(page), page[0].path, common)


def _index_rows(rows: Sequence[_Row], level: int, store: Store) -> Iterator[tuple[_Row, int]]:
    page: list[_Row] = []
    size = 0
    for row in rows:
        cost = _ROW_BYTES + len(_name(row.common))
        if len(page) > 1 and size + cost > MAX_PAGE_BYTES:
            yield _index(page, store), len(page)
            page, size = [], 0
        page.append(row)
        size += cost
        if len(page) > 1 and _ends_page(_name(row.first), level):
            yield _index(page, store), len(page)
            page, size = [], 0
    if page:
        yield _index(page, store), len(page)


def _index(page: Sequence[_Row], store: Store) -> _Row:
    if len(page) == 1:
        return page[0]
    body: Node = [[bytes(row.id), row.entries, [encode_key(key) for key in row.common]] for row in page]
    common = _common([row.common for row in page])
    return _Row(store(encode([INDEX, body])), sum(row.entries for row in page), page[0].first, common)


def _shared(a: Path, b: Path) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if not _same(x, y):
            break
        count += 1
    return count


def _same(x: Key, y: Key) -> bool:
    """Whether two keys are one: (1,) and (True,) are equal in Python, but not the same name."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    return x == y if type(x) in (str, int, bytes) else encode(encode_key(x)) == encode(encode_key(y))


def _common(paths: Sequence[Path]) -> Path:
    shared = min((_shared(a, b) for a, b in pairwise(paths)), default=len(paths[0]))
    return paths[0][:shared]


def _extents_node(extents: Sequence[Extent], store: Store) -> Node:
    if len(extents) <= MAX_EXTENTS:
        return _plain_extents(extents)
    groups = [extents[i : i + MAX_EXTENTS] for i in range(0, len(extents), MAX_EXTENTS)]
    pages = b"".join(store(encode([EXTENTS, _plain_extents(group)])) for group in groups)
    return [pages, sum(extent.length for extent in extents), None, None]


def _plain_extents(extents: Sequence[Extent]) -> Node:
    if not extents:
        return []
    ids = b"".join(extent.chunk for extent in extents)
    first = extents[0].length
    whole = all(e.offset == 0 and e.length == first for e in extents[:-1])
    if whole and extents[-1].offset == 0 and 0 < extents[-1].length <= first and len(extents) > 1:
        return [ids, first, sum(extent.length for extent in extents)]
    return [ids, [number for extent in extents for number in (extent.offset, extent.length)]]


# ---- reading --------------------------------------------------------------------------------------------------


def _read(page: ObjectId, load: Load, under: Path, levels: int, seen: set[ObjectId]) -> Iterator[Entry]:
    if not levels:
        raise Malformed("tree", "pages nest too deep")
    if page in seen:
        raise Malformed("tree", "a page holds its entries twice")  # few pages could stand for endlessly many entries
    seen.add(page)
    code, body = _page(load(page))
    if code == INDEX:
        for child, _, keys in body:
            common = tuple(decode_key(key) for key in keys)
            if _shared(common, under) == min(len(common), len(under)):
                yield from _read(_id(child), load, under, levels - 1, seen)
    elif code == LEAF:
        yield from _entries(body, load)
    else:
        raise Malformed("tree", f"page of kind {code} where names were expected")


def _page(data: bytes, strict: bool = False) -> tuple[int, list]:  # type: ignore[type-arg]  # rows: checked in use
    match decode(data, what="tree page", strict=strict):
        case [int(code), list(body)] if code == INDEX and body and all(_is_index_row(row) for row in body):
            return code, body
        case [int(code), list(body)] if code == LEAF and body and all(_is_leaf_row(row) for row in body):
            return code, body
        case [int(code), list(body)] if code == EXTENTS:
            return code, body
    raise Malformed("tree page", "unknown layout")


def _is_index_row(row: Node) -> bool:
    return isinstance(row, list) and len(row) == 3 and isinstance(row[0], bytes) and isinstance(row[2], list)


def _is_leaf_row(row: Node) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and isinstance(row[0], int)
        and isinstance(row[1], list)
        and isinstance(row[4], list)
    )


def _entries(body: list, load: Load) -> Iterator[Entry]:  # type: ignore[type-arg]
    path: Path = ()
    for shared, keys, node, spec, extents in body:
        if not 0 <= shared <= len(path):
            raise Malformed("tree page", "a path that continues nothing")
        path = (*path[:shared], *(decode_key(key) for key in keys))
        yield Entry(path, node, spec_from_node(spec) if spec is not None else None, tuple(_read_extents(extents, load)))


def _read_extents(node: list, load: Load) -> Iterator[Extent]:  # type: ignore[type-arg]
    if len(node) != 4:
        yield from _read_plain(node)
        return
    for page in _extent_pages(node):
        code, body = _page(load(page))
        if code != EXTENTS or len(body) == 4:
            raise Malformed("tree page", "extents expected")
        yield from _read_plain(body)


def _read_plain(node: list) -> Iterator[Extent]:  # type: ignore[type-arg]
    match node:
        case []:
            return
        case [bytes(ids), int(length), int(total)] if length * (len(ids) // ID_BYTES - 1) < total:
            for i, chunk in enumerate(_ids(ids)):
                yield _extent(chunk, 0, min(length, total - i * length))
        case [bytes(ids), list(numbers)] if len(numbers) == 2 * (len(ids) // ID_BYTES):
            for i, chunk in enumerate(_ids(ids)):
                yield _extent(chunk, numbers[2 * i], numbers[2 * i + 1])
        case _:
            raise Malformed("tree page", "extents of an unknown layout")


def _extent(chunk: ObjectId, offset: Node, length: Node) -> Extent:
    if type(offset) is not int or type(length) is not int or not 0 <= offset <= offset + length <= MAX_PAYLOAD:
        raise Malformed("tree page", "an extent outside of any chunk")
    return Extent(chunk, offset, length)


def _extent_pages(node: list) -> Iterator[ObjectId]:  # type: ignore[type-arg]
    if len(node) == 4:
        if not isinstance(node[0], bytes):
            raise Malformed("tree page", "extents of an unknown layout")
        yield from _ids(node[0])


def _ids(data: bytes) -> Iterator[ObjectId]:
    if len(data) % ID_BYTES:
        raise Malformed("tree page", "a cut-off id")
    for start in range(0, len(data), ID_BYTES):
        yield ObjectId(data[start : start + ID_BYTES])


def _id(data: bytes) -> ObjectId:
    if len(data) != ID_BYTES:
        raise Malformed("tree page", "a cut-off id")
    return ObjectId(data)
