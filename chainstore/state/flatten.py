"""The walk: a live state becomes leaves, depth first, in insertion order.

Containers that hold an array, at whatever depth, become structure: an entry of their own, followed by their items.
A part of the state that holds none is one plain value, whatever it consists of.  The walk looks at everything
before anything is stored, changes nothing, and refuses with one error that names every path it cannot store.

    >>> [leaf.path for leaf in flatten({"step": 3, "config": {"lr": 0.1, "betas": (0.9, 0.999)}})]
    [(), ('step',), ('config',)]
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, cast

from chainstore.errors import UnsupportedState
from chainstore.model.paths import Attr, Key, Path, encode_key, format_path, is_key
from chainstore.model.spec import Spec
from chainstore.model.wire import Node, encode
from chainstore.state import nodes
from chainstore.state.adapters import adapter_of_type, overlap
from chainstore.state.leaf import ArrayAdapter, BytesSource, Composite, Dense, Leaf, Region
from chainstore.state.registry import REGISTRY
from chainstore.state.sharing import sharing_groups
from chainstore.state.value_codes import FACTORIES, Refused
from chainstore.state.values import describe, encode_value

MAX_DEPTH: Final = 150  # containers within containers; Python's own recursion limit is far off

MAPPINGS: Final = (dict, OrderedDict, defaultdict)
SEQUENCES: Final = (list, tuple, deque)
STRUCTURE: Final = frozenset(MAPPINGS + SEQUENCES)
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_VALUE: Final[Node] = [nodes.VALUE]
_NODES: Final[dict[type, Node]] = {
    dict: [nodes.DICT],
    list: [nodes.LIST],
    tuple: [nodes.TUPLE],
    OrderedDict: [nodes.ORDERED_DICT],
}


def flatten(state: object) -> list[Leaf]:
    """Return the leaves of `state` in walk order.

    Leaves read live memory when their sources are read; what must not change under them is the caller's to hold
    still.  `.grad`, hooks and other Python attributes of tensors are not part of a state.

    Raises:
        UnsupportedState: some values cannot be stored; names every such path with its type and the reason.

    Cost: about 10 us for each array, no pass over array data.
    """
    walk = Walk(state)
    if walk.refused:
        raise UnsupportedState(walk.refused)
    return walk.leaves


def target_node(path: Path) -> Node:
    """Return how the path of another entry stands in a node."""
    return [encode_key(key) for key in path]


class Walk:
    """One walk over a state.

    Attributes:
        leaves: what was found, in walk order.
        refused: path as text -> why its value cannot be stored.
    """

    def __init__(self, state: object) -> None:
        self.leaves: list[Leaf] = []
        self.refused: dict[str, str] = {}
        self._holders = Holders()
        self._open: set[int] = set()  # containers being walked, to tell cycles
        self._seen: dict[int, Path] = {}  # id of an array -> where it was met first
        self._alive: list[object] = []  # what ids in _seen belong to, so that none is given out twice
        self._dense: dict[int, tuple[ArrayAdapter, Dense]] = {}  # index of a leaf -> its array
        if type(state) in STRUCTURE:
            self._holders.search(state)
            self._structure(state, ())
        else:
            self._visit(state, ())
        self._share()

    def _visit(self, value: object, path: Path) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self._plain(value, path)
        elif kind in STRUCTURE:
            if self._holders.search(value):
                self._structure(value, path)
            else:
                self._plain(value, path)
        else:
            adapter = adapter_of_type(kind)
            if adapter is not None or REGISTRY.by_type(kind) is not None:
                self._object(value, path, adapter)
            else:
                self._plain(value, path)

    def _plain(self, value: object, path: Path) -> None:
        problems: dict[Path, str] = {}
        node = encode_value(value, path=path, problems=problems)
        if not problems:
            self.leaves.append(Leaf(path, _VALUE, None, BytesSource(encode(node))))
        for where, why in problems.items():
            stateful = where == path and callable(getattr(type(value), "state_dict", None))
            self._refuse(where, f"{why}; hand over its state_dict()" if stateful else why)

    def _refuse(self, path: Path, why: str) -> None:
        self.refused[format_path(path) or "(the state itself)"] = why

    def _structure(self, value: object, path: Path) -> None:
        if id(value) in self._open:
            self._refuse(path, f"{type(value).__name__} contains itself")
            return
        if len(path) > MAX_DEPTH:
            self._refuse(path, f"containers nest deeper than {MAX_DEPTH}")
            return
        self._open.add(id(value))
        try:
            self.leaves.append(Leaf(path, container_node(value), None, None))
            for key, item in self._items(value, path):
                self._visit(item, (*path, key))
        except Refused as error:
            self._refuse(path, str(error))
        finally:
            self._open.discard(id(value))

    def _items(self, value: object, path: Path) -> Iterable[tuple[Key, object]]:
        if type(value) in SEQUENCES:
            return enumerate(cast("list[object]", value))
        return self._pairs(cast("dict[Key, object]", value), path)

    def _pairs(self, value: dict[Key, object], path: Path) -> Iterator[tuple[Key, object]]:
        if type(value) is OrderedDict:
            for name, attribute in vars(value).items():
                yield Attr(name), attribute
        for key, item in value.items():
            if type(key) is int or (type(key) is str and key.isascii()) or _is_good_key(key):
                yield key, item
            else:
                self._refuse((*path, key), f"a key of type {describe(type(key))} cannot stand above an array")

    def _object(self, value: object, path: Path, adapter: ArrayAdapter | None) -> None:
        first = self._seen.get(id(value))
        if first is not None:
            self.leaves.append(Leaf(path, [nodes.ALIAS, True, target_node(first)], None, None))
            return
        try:
            found = _describe(value, adapter)
        except Refused as error:
            self._refuse(path, f"{describe(type(value))}: {error}")
            return
        self._seen[id(value)] = path
        self._alive.append(value)
        if isinstance(found, Dense):
            assert adapter is not None
            if found.region is not None:
                self._dense[len(self.leaves)] = adapter, found
            self.leaves.append(Leaf(path, found.node, found.spec, found.source))
        else:
            self._composite(value, found, path)

    def _composite(self, value: object, found: Composite, path: Path) -> None:
        if len(path) > MAX_DEPTH or id(value) in self._open:
            self._refuse(path, "contains itself" if id(value) in self._open else f"nests deeper than {MAX_DEPTH}")
            return
        self._open.add(id(value))
        self._alive.append(found.parts)
        self.leaves.append(Leaf(path, found.node, None, None))
        for name, part in found.parts.items():
            self._visit(part, (*path, Attr(name)))
        self._open.discard(id(value))

    # ---- sharing ----------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Turn arrays that show memory another one shows into aliases, or into views of one storage entry."""
        members = list(self._dense.items())
        regions = [dense.region for _, (_, dense) in members if dense.region is not None]
        storages: dict[int, Leaf] = {}
        for group in sharing_groups(regions, overlap):
            adapter = members[group[0]][1][0]
            first, storage = self._share_group(adapter, [(members[i][0], members[i][1][1]) for i in group])
            if storage is not None:
                storages[first] = storage
        if storages:
            with_storages = [(leaf, storages.get(index)) for index, leaf in enumerate(self.leaves)]
            self.leaves = [leaf for pair in with_storages for leaf in pair if leaf is not None]

    def _share_group(self, adapter: ArrayAdapter, members: list[tuple[int, Dense]]) -> tuple[int, Leaf | None]:
        """Return the index of the first member and the storage entry to put behind it, if the group needs one."""
        firsts: dict[tuple[Region | None, bytes], int] = {}
        distinct: list[tuple[int, Dense]] = []
        for index, dense in members:
            first = firsts.setdefault((dense.region, encode(dense.dtype)), index)
            if first == index:
                distinct.append((index, dense))
            else:
                self._replace(index, [nodes.ALIAS, False, target_node(self.leaves[first].path), dense.shown])
        first = distinct[0][0]
        if len(distinct) == 1:
            return first, None
        path = (*self.leaves[first].path, Attr("storage"))
        storage, start = _storage_leaf(adapter, path, [dense for _, dense in distinct])
        for index, dense in distinct:
            self._replace(index, _view_node(dense, start, target_node(path)))
        return first, storage

    def _replace(self, index: int, node: Node) -> None:
        self.leaves[index] = Leaf(self.leaves[index].path, node, None, None)


def _storage_leaf(adapter: ArrayAdapter, path: Path, arrays: list[Dense]) -> tuple[Leaf, int]:
    """Return the entry of the memory that `arrays` show, and the address of its first byte."""
    regions = [dense.region for dense in arrays if dense.region is not None]
    lowest = min(region.bounds()[0] for region in regions)
    end = max(region.bounds()[1] for region in regions)
    widest = max(regions, key=lambda region: region.itemsize)
    # Offsets must be whole items of every view: begin where the widest item would.
    start = lowest - (lowest - widest.address) % widest.itemsize
    dtypes = {dense.spec.dtype for dense in arrays}
    dtype, itemsize = (dtypes.pop(), widest.itemsize) if len(dtypes) == 1 else ("uint8", 1)
    count = -(-(end - start) // itemsize)
    spec = Spec(dtype, (count,))
    code = nodes.STORAGE_OF[cast("list[int]", arrays[0].node)[0]]
    return Leaf(path, [code], spec, adapter.gather(arrays, start, count * itemsize)), start


def _view_node(dense: Dense, start: int, target: Node) -> Node:
    region = dense.region
    assert region is not None
    code = nodes.VIEW_OF[cast("list[int]", dense.node)[0]]
    shape: Node = list(region.shape)
    strides: Node = list(region.strides)
    return [code, dense.shown, dense.dtype, shape, strides, region.address - start, target]


def is_plain(value: object, holders: "Holders") -> bool:
    """Return whether a value is neither an array, nor something that is registered, nor holds any of these."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind in STRUCTURE:
        return not holders.search(value)
    return adapter_of_type(kind) is None and REGISTRY.by_type(kind) is None


class Holders:
    """Which containers hold an array, at whatever depth (or a cycle, which the walk is to find)."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        self._open: set[int] = set()

    def search(self, value: object) -> bool:
        """Return whether a container holds one."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        if id(value) in self._open or len(self._open) > MAX_DEPTH:
            return True
        self._open.add(id(value))
        found = self._known[id(value)] = any(map(self._holds, _members(value)))
        self._open.discard(id(value))
        return found

    def _holds(self, item: object) -> bool:
        kind = type(item)
        if kind in _ATOMS:
            return False
        if kind in STRUCTURE:
            return self.search(item)
        return REGISTRY.by_type(kind) is not None or adapter_of_type(kind) is not None


def _describe(value: object, adapter: ArrayAdapter | None) -> Dense | Composite:
    registration = REGISTRY.by_type(type(value))
    if registration is not None and registration.encode is not None:
        name, version = registration.name, registration.version
        return Composite([nodes.REGISTERED, name, version], {"state": registration.encode(value)})
    if adapter is None:
        raise Refused("registered without encode and decode, which only a tensor subclass can be")
    return adapter.describe(value)


def _members(value: object) -> Iterable[object]:
    if type(value) in SEQUENCES:
        return cast("Iterable[object]", value)
    items = cast("dict[Key, object]", value).values()
    return chain(vars(value).values(), items) if type(value) is OrderedDict else items


def container_node(value: object) -> Node:
    """Return the node of a container that holds an array; `value_codes.Refused` where it could not come back."""
    if type(value) is defaultdict:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is not None and FACTORIES.get(name) is not factory:
            raise Refused(f"defaultdict with the factory {factory!r:.60}; only built-in types come back")
        return [nodes.DEFAULT_DICT, name]
    if type(value) is deque:
        return [nodes.DEQUE, value.maxlen]
    return _NODES[type(value)]


def _is_good_key(key: object) -> bool:
    return is_key(key) and type(key) is not Attr and key == key  # a NaN could stand there twice
