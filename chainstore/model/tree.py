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
from typing import NamedTuple

from chainstore.errors import Malformed
from chainstore.ids import ID_BYTES, ObjectId
from chainstore.model.frame import crc32c
from chainstore.model.paths import Path, decode_key, encode_key
from chainstore.model.spec import Spec, spec_from_node, spec_node
from chainstore.model.wire import Node, decode, encode

LEAF, INDEX, EXTENTS, ROOT = 1, 2, 3, 4
PAGE_ENTRIES = 64  # expected entries of a page: 4-8 KiB at 60-120 bytes each
MAX_PAGE_BYTES = 64 << 10
MAX_EXTENTS = 256  # of one entry, in the page itself: 8 KiB of ids
MAX_LEVELS = 16

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
        return sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class Root:
    """The trees of one snapshot; None where it has none."""

    state: ObjectId | None
    files: ObjectId | None
    ranks: ObjectId | None = None

    def to_bytes(self) -> bytes:
        return encode(
            [ROOT, *(bytes(tree) if tree is not None else None for tree in (self.state, self.files, self.ranks))]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Root":
        match decode(data, what="root"):
            case [4, *trees] if len(trees) == 3 and all(t is None or isinstance(t, bytes) for t in trees):
                return cls(*(_id(tree) if isinstance(tree, bytes) else None for tree in trees))
        raise Malformed("root", "not a root page")


def write_tree(entries: Iterable[Entry], store: Store) -> ObjectId | None:
    """Store `entries` as pages and return the id of the topmost, or None where there are no entries.

    Args:
        entries: in walk order, no path twice.
        store: keeps one page and returns its id; called for lower pages first.
    """
    rows = list(_leaf_rows(entries, store))
    for _ in range(MAX_LEVELS):
        if len(rows) <= 1:
            return rows[0].id if rows else None
        rows = list(_index_rows(rows, store))
    raise AssertionError("64 ** 16 pages do not exist")


def read_tree(root: ObjectId, load: Load, under: Path = ()) -> Iterator[Entry]:
    """Yield the entries of a tree in walk order.

    Args:
        under: pages that hold nothing at or below this path are not loaded; entries are not filtered.

    Raises:
        Malformed: a page does not follow the format.
    """
    yield from _read(root, load, under, MAX_LEVELS)


def tree_pages(root: ObjectId, load: Load) -> Iterator[ObjectId]:
    """Yield the ids of every page of a tree, parents first."""
    stack = [root]
    while stack:
        page = stack.pop()
        yield page
        code, body = _page(load(page))
        if code == INDEX:
            stack.extend(_id(row[0]) for row in body)
        elif code == LEAF:
            stack.extend(p for row in body for p in _extent_pages(row[4]))


# ---- writing --------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A finished page: its id, entries below it, first path, what all its paths have in common."""

    id: ObjectId
    entries: int
    first: Path
    common: Path


def _ends_page(path: Path, level: int) -> bool:
    name = encode([encode_key(key) for key in path])
    return crc32c(bytes((level,)), name) % PAGE_ENTRIES == 0


def _leaf_rows(entries: Iterable[Entry], store: Store) -> Iterator[_Row]:
    page: list[Entry] = []
    size = 0
    for entry in entries:
        cost = 64 + 16 * len(entry.path) + min(len(entry.extents), MAX_EXTENTS) * (ID_BYTES + 4)
        if page and size + cost > MAX_PAGE_BYTES:
            yield _leaf(page, store)
            page, size = [], 0
        page.append(entry)
        size += cost
        if _ends_page(entry.path, 0):
            yield _leaf(page, store)
            page, size = [], 0
    if page:
        yield _leaf(page, store)


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


def _index_rows(rows: Sequence[_Row], store: Store) -> Iterator[_Row]:
    page: list[_Row] = []
    for row in rows:
        page.append(row)
        if len(page) > 1 and (_ends_page(row.first, 1) or len(page) >= 8 * PAGE_ENTRIES):
            yield _index(page, store)
            page = []
    if page:
        yield _index(page, store)


def _index(page: Sequence[_Row], store: Store) -> _Row:
    if len(page) == 1:
        return page[0]
    body: Node = [[bytes(row.id), row.entries, [encode_key(key) for key in row.common]] for row in page]
    common = _common([row.common for row in page])
    return _Row(store(encode([INDEX, body])), sum(row.entries for row in page), page[0].first, common)


def _shared(a: Path, b: Path) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x is not y and (type(x) is not type(y) or encode_key(x) != encode_key(y)):
            break
        count += 1
    return count


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
    if whole and extents[-1].offset == 0 and extents[-1].length <= first and len(extents) > 1:
        return [ids, first, sum(extent.length for extent in extents)]
    return [ids, [number for extent in extents for number in (extent.offset, extent.length)]]


# ---- reading --------------------------------------------------------------------------------------------------


def _read(page: ObjectId, load: Load, under: Path, levels: int) -> Iterator[Entry]:
    if not levels:
        raise Malformed("tree", "pages nest too deep")
    code, body = _page(load(page))
    if code == INDEX:
        for child, _, keys in body:
            common = tuple(decode_key(key) for key in keys)
            if _shared(common, under) == min(len(common), len(under)):
                yield from _read(_id(child), load, under, levels - 1)
    elif code == LEAF:
        yield from _entries(body, load)
    else:
        raise Malformed("tree", f"page of kind {code} where names were expected")


def _page(data: bytes) -> tuple[int, list]:  # type: ignore[type-arg]  # rows are checked where they are used
    match decode(data, what="tree page"):
        case [int(code), list(body)] if code == INDEX and all(_is_index_row(row) for row in body):
            return code, body
        case [int(code), list(body)] if code == LEAF and all(_is_leaf_row(row) for row in body):
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
    if len(node) == 4:
        for page in _extent_pages(node):
            code, body = _page(load(page))
            if code != EXTENTS or len(body) == 4:
                raise Malformed("tree page", "extents expected")
            yield from _read_extents(body, load)
        return
    match node:
        case []:
            return
        case [bytes(ids), int(length), int(total)] if length > 0:
            for i, chunk in enumerate(_ids(ids)):
                yield Extent(chunk, 0, min(length, total - i * length))
        case [bytes(ids), list(numbers)] if len(numbers) == 2 * (len(ids) // ID_BYTES):
            for i, chunk in enumerate(_ids(ids)):
                yield Extent(chunk, numbers[2 * i], numbers[2 * i + 1])
        case _:
            raise Malformed("tree page", "extents of an unknown layout")


def _extent_pages(node: list) -> Iterator[ObjectId]:  # type: ignore[type-arg]
    if len(node) == 4:
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
