"""The way back: stored entries become a state again, in fresh memory or in that of a live one.

assembly = Assembly(entries)
for destination in assembly.destinations:      # in any order, in parallel
    destination.buffer[:] = stored bytes of destination.entry
state = assembly.build()
"""

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_char
from typing import Final, cast

from chainstore.errors import ChainError, FormatTooNew, Malformed, PathNotFound
from chainstore.model.paths import Attr, Key, Path, format_path
from chainstore.model.tree import Entry
from chainstore.model.wire import Node, decode
from chainstore.state import nodes
from chainstore.state.adapters import adapter_of_code, adapter_of_type
from chainstore.state.comparison import references
from chainstore.state.leaf import MISSING, Destination
from chainstore.state.registry import REGISTRY
from chainstore.state.value_codes import FACTORIES
from chainstore.state.values import decode_value

Select = Callable[[Path], bool]
_NOT_BUILT: Final = object()
_NO_LIVE: Final = frozenset({nodes.TENSOR_STORAGE, nodes.ARRAY_STORAGE})


class _Item:
    """An entry with what lies below it, on its way to become a value."""

    __slots__ = ("buffer", "children", "code", "entry", "kept", "live", "memory", "result", "wanted")

    def __init__(self, entry: Entry) -> None:
        node = entry.node
        if type(node) is not list or not node or type(node[0]) is not int:
            raise Malformed("entry", f"no node at {format_path(entry.path)!r}")
        self.entry = entry
        self.code: int = node[0]
        self.children: list[_Item] = []
        self.kept = False  # part of what is asked for
        self.wanted = False  # its bytes are needed, if only for an alias of it
        self.live: object = MISSING
        self.memory: object = None
        self.buffer: memoryview | None = None
        self.result: object = _NOT_BUILT


class Assembly:
    """One state being rebuilt from entries.

    Args:
        entries: in walk order: a whole snapshot, or the part below `root`, and what its `references` name.
        root: the path of the entry to build.
        into: a live state of similar shape.  Where it has, at the same path, an array of the same dtype and shape,
            that array gets the stored values and is returned itself; without a copy if its memory is dense, on the
            host and in the stored order.  Everything else is made anew.
        select: says of the path of a leaf (array or plain value) whether to keep it; containers above kept leaves
            are kept, a sequence of which some items are left out comes back as a dict {index: item}.
        map_location: device for the arrays of libraries that know devices; None for the host.

    Attributes:
        destinations: what to fill before `build`, in walk order.

    Raises:
        PathNotFound: no entry at `root`.
        Malformed: entries or nodes make no sense.
        Unsupported: they come from a newer version, or need a type that is not registered or loaded.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        root: Path = (),
        into: object = MISSING,
        select: Select | None = None,
        map_location: str | None = None,
    ) -> None:
        self._device = None if map_location in (None, "cpu") else map_location
        self._items = _read_items(entries)
        found = self._items.get(root)
        if found is None:
            raise PathNotFound(format_path(root))
        self._root = found
        _keep(found, select)
        found.kept = True
        for item in list(_kept(found)):
            self._want(item)
        if into is not MISSING:
            _pair(found, into)
        self._taken: list[tuple[int, int]] = []
        self.destinations = [self._destination(item) for item in self._items.values() if _has_bytes(item)]

    def build(self) -> object:
        """Return the state; every destination must have been filled.

        Raises:
            Malformed: what was filled in, or how entries refer to each other, makes no sense.
            Unsupported: a plain value is of a type that is not known here.
        """
        return self._build(self._root)

    def _want(self, item: _Item) -> None:
        """Mark an entry and all it refers to as needed."""
        if item.wanted:
            return
        item.wanted = True
        for target in references(item.entry.node):
            for needed in _subtree(self._target(target)):
                self._want(needed)

    def _target(self, path: Path) -> _Item:
        found = self._items.get(path)
        if found is None:
            raise Malformed("snapshot", f"an alias of {format_path(path)!r}, which is not there")
        return found

    def _reference(self, item: _Item) -> _Item:
        paths = references(item.entry.node)
        if len(paths) != 1:
            raise Malformed("entry", f"{format_path(item.entry.path)!r} refers to nothing")
        return self._target(paths[0])

    def _destination(self, item: _Item) -> Destination:
        entry, spec = item.entry, item.entry.spec
        if spec is None:
            item.buffer = memoryview(bytearray(entry.nbytes))
            return Destination(entry, item.buffer, False)
        if entry.nbytes != spec.nbytes:
            raise Malformed("entry", f"{format_path(entry.path)!r} has {entry.nbytes} bytes instead of {spec.nbytes}")
        adapter = adapter_of_code(item.code)
        live = MISSING if self._device is not None or item.code in _NO_LIVE else item.live
        item.memory, buffer, is_live = adapter.allocate(entry.node, spec, live)
        if is_live and not self._take(buffer):
            # Another entry fills this memory already (tied in the live state, two in the snapshot).
            item.memory, buffer, is_live = adapter.allocate(entry.node, spec, MISSING)
        return Destination(entry, buffer, is_live)

    def _take(self, buffer: memoryview) -> bool:
        """Note live memory as a destination; False where it overlaps another one."""
        return bool(buffer.nbytes) and _note(self._taken, *_bounds(buffer))

    # ---- building ---------------------------------------------------------------------------------------------

    def _build(self, item: _Item) -> object:
        if item.result is _NOT_BUILT:
            item.result = MISSING
            item.result = self._make(item)
        if item.result is MISSING:
            raise Malformed("snapshot", f"{format_path(item.entry.path)!r} is a part of itself")
        return item.result

    def _make(self, item: _Item) -> object:
        if item.code == nodes.VALUE:
            if item.buffer is None:
                raise Malformed("entry", f"no value at {format_path(item.entry.path)!r}")
            return decode_value(decode(bytes(item.buffer), what="value"))
        if item.code in nodes.CONTAINERS:
            return self._container(item)
        if item.code == nodes.REGISTERED:
            return self._registered(item)
        return _hand_over(item.live, self._array(item))

    def _array(self, item: _Item) -> object:
        node = item.entry.node
        if item.code in nodes.STORED:
            if item.memory is None:
                raise Malformed("entry", f"an array without a dtype at {format_path(item.entry.path)!r}")
            if item.memory is item.live:
                return item.memory
            return _guarded(item, adapter_of_code(item.code).finish, node, item.memory, self._device)
        if item.code in nodes.VIEWS:
            base = self._build(self._reference(item))
            return _guarded(item, adapter_of_code(item.code).view, node, base)
        if item.code == nodes.ALIAS:
            return self._alias(item)
        parts = {_part_name(child): self._build(child) for child in item.children if child.code not in _NO_LIVE}
        return _guarded(item, adapter_of_code(item.code).compose, node, parts, self._device)

    def _alias(self, item: _Item) -> object:
        node = cast("list[Node]", item.entry.node)
        target = self._build(self._reference(item))
        if node[1] is True:
            return target
        adapter = adapter_of_type(type(target))
        if adapter is None:
            raise Malformed("entry", f"an alias of no array at {format_path(item.entry.path)!r}")
        return _guarded(item, adapter.view, node, target)

    def _registered(self, item: _Item) -> object:
        match item.entry.node, item.children:
            case [_, str(name), int(version)], [child]:
                registration = REGISTRY.by_name(name, version)
                if registration.decode is not None:
                    return registration.decode(self._build(child))
        raise Malformed("entry", f"no object of a registered type at {format_path(item.entry.path)!r}")

    def _container(self, item: _Item) -> object:
        pairs = [(c.entry.path[-1], self._build(c)) for c in item.children if c.kept]
        if item.code in nodes.SEQUENCES:
            return _sequence(item, pairs)
        made = _empty_mapping(item)
        for key, value in pairs:
            if isinstance(key, Attr):
                vars(made)[key.name] = value
            else:
                made[key] = value
        return made


def _guarded(item: _Item, make: Callable[..., object], *arguments: object) -> object:
    """Call an adapter; what its library says of nodes and parts that do not fit together becomes `Malformed`."""
    try:
        return make(*arguments)
    except ChainError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as why:
        raise Malformed(f"entry {format_path(item.entry.path)!r}", f"{why}"[:300]) from why


# ---- reading entries ------------------------------------------------------------------------------------------


def _read_items(entries: Sequence[Entry]) -> dict[Path, _Item]:
    """Return an item for each entry, those below an entry as its children."""
    items: dict[Path, _Item] = {}
    for entry in entries:
        item = _Item(entry)
        if entry.path in items:
            raise Malformed("snapshot", f"{format_path(entry.path)!r} occurs twice")
        items[entry.path] = item
        parent = items.get(entry.path[:-1]) if entry.path else None
        if parent is not None:
            parent.children.append(item)
    return items


def _subtree(item: _Item) -> Iterator[_Item]:
    yield item
    for child in item.children:
        yield from _subtree(child)


def _kept(item: _Item) -> Iterator[_Item]:
    yield item
    for child in item.children:
        if child.kept:
            yield from _kept(child)


def _keep(item: _Item, select: Select | None) -> bool:
    """Mark what `select` keeps of an entry and all below it; return whether that is anything."""
    if select is None or item.code not in nodes.CONTAINERS:
        item.kept = select is None or select(item.entry.path)
        if item.kept:
            for part in _subtree(item):
                part.kept = True
        return item.kept
    attributes = [child for child in item.children if isinstance(child.entry.path[-1], Attr)]
    inside = [_keep(child, select) for child in item.children if child not in attributes]
    item.kept = any(inside) or (not inside and select(item.entry.path))
    for child in attributes if item.kept else ():
        _keep(child, None)
    return item.kept


def _has_bytes(item: _Item) -> bool:
    if not item.wanted:
        return False
    return item.code == nodes.VALUE or (item.code in nodes.STORED and item.entry.spec is not None)


def _part_name(child: _Item) -> str:
    key = child.entry.path[-1]
    if not isinstance(key, Attr):
        raise Malformed("entry", f"{format_path(child.entry.path)!r} lies below an array")
    return key.name


# ---- live states ----------------------------------------------------------------------------------------------


def _pair(item: _Item, live: object) -> None:
    """Note for each kept entry what a live state has at its path."""
    item.live = live
    if item.code not in nodes.CONTAINERS:
        return
    for child in item.children:
        if child.kept:
            found = live_child(live, child.entry.path[-1])
            if found is not MISSING:
                _pair(child, found)


def live_child(live: object, key: Key) -> object:
    """Return what a live container holds under a key, MISSING where it holds nothing."""
    if isinstance(live, dict):
        return live.get(key, MISSING) if not isinstance(key, Attr) else MISSING
    if isinstance(live, (list, tuple, deque)) and type(key) is int and 0 <= key < len(live):
        return cast(object, live[key])
    return MISSING


def _hand_over(live: object, array: object) -> object:
    """Return `live` where it has, or can be given, the values of `array`; else `array`."""
    if live is MISSING:
        return array
    adapter = adapter_of_type(type(live))
    return live if adapter is not None and adapter.overwrite(live, array) else array


def _bounds(buffer: memoryview) -> tuple[int, int]:
    start = addressof(c_char.from_buffer(buffer))
    return start, start + buffer.nbytes


def _note(taken: list[tuple[int, int]], start: int, stop: int) -> bool:
    """Insert [start, stop) into sorted disjoint ranges; False, and nothing inserted, if it overlaps one."""
    at = bisect_left(taken, (start, stop))
    if (at < len(taken) and taken[at][0] < stop) or (at and taken[at - 1][1] > start):
        return False
    insort(taken, (start, stop))
    return True


# ---- containers -----------------------------------------------------------------------------------------------


def _sequence(item: _Item, pairs: list[tuple[Key, object]]) -> object:
    if len(pairs) != len(item.children):
        return dict(pairs)
    if [key for key, _ in pairs] != list(range(len(pairs))):
        raise Malformed("snapshot", f"{format_path(item.entry.path)!r} is a sequence with other keys")
    values = [value for _, value in pairs]
    match item.entry.node:
        case [nodes.LIST]:
            return values
        case [nodes.TUPLE]:
            return tuple(values)
        case [nodes.DEQUE, (int() | None) as longest] if longest is None or longest >= len(values):
            return deque(values, longest)
    raise Malformed("entry", f"no container at {format_path(item.entry.path)!r}")


def _empty_mapping(item: _Item) -> dict[Key, object]:
    match item.entry.node:
        case [nodes.DICT]:
            return {}
        case [nodes.ORDERED_DICT]:
            return OrderedDict()
        case [nodes.DEFAULT_DICT, None]:
            return defaultdict(None)
        case [nodes.DEFAULT_DICT, str(factory)]:
            if factory not in FACTORIES:
                raise FormatTooNew(f"defaultdict of {factory[:40]!r}", "read")
            return defaultdict(FACTORIES[factory])
    raise Malformed("entry", f"no container at {format_path(item.entry.path)!r}")
