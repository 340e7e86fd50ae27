"""Retracing: a walk over a state that has the form of one walked before, at a fifth of that walk's cost.

    trace = Trace.of(state, flatten(state))     # None where the state holds what cannot be retraced
    contents = trace.follow(later_state)        # the bytes of each leaf; None where its form is another one

What a walk finds depends on types, keys, dtypes, shapes, strides, flags and on which arrays share memory.  All of
that is looked at anew and compared, object by object; nothing is concluded from an object being the same.  What is
saved is making paths, nodes and leaves of it again.  A trace keeps nothing of a state alive.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

from chainstore.model.paths import Path
from chainstore.model.wire import Node, encode
from chainstore.state import nodes
from chainstore.state.adapters import adapter_of_type
from chainstore.state.flatten import MAPPINGS, SEQUENCES, STRUCTURE, Holders, container_node, is_plain, target_node
from chainstore.state.leaf import ArrayAdapter, Dense, Leaf
from chainstore.state.registry import REGISTRY
from chainstore.state.value_codes import Refused
from chainstore.state.values import encode_value
from chainstore.state.walked import Content, Retraced, Walked, content_of

_EXACT_KEYS: Final = frozenset({str, int, bool, bytes})  # equal and of one type is the same, unlike 0.0 and -0.0
_KINDS_WITH_NODES: Final = (defaultdict, deque)  # of which the node says more than the type does


class _Changed(Exception):
    """The state has another form."""


@dataclass(frozen=True, slots=True)
class _Plain:
    index: int
    path: Path  # how deep values nest counts from the root


@dataclass(frozen=True, slots=True)
class _Array:
    """What was found of an array.

    Attributes:
        outline: what its adapter says of it in short; None if only a full description tells.
        described: what of that must be the same, where there is no outline.
        span: device, and the first and the last address of its memory, counted from its own; None for aliases and
            where it shares with nobody.
        shows: for an alias, the index of the leaf that has its bytes, and whether it is the very same object.
    """

    index: int
    adapter: ArrayAdapter
    outline: object
    described: object
    span: tuple[str, int, int] | None
    shows: tuple[int, bool] | None


@dataclass(frozen=True, slots=True)
class _Branch:
    kind: type
    node: Node
    keys: list[object]
    kinds: list[type]  # of the keys, for 1 == True == 1.0
    attributes: tuple[str, ...]  # of an OrderedDict: they come before its items
    children: "tuple[_Branch | _Array | _Plain, ...]"


class Trace:
    """The form of a state.

    Args:
        root: what is at its root.
        leaves: how many it has.
    """

    def __init__(self, root: _Branch, leaves: int, types: Mapping[type, ArrayAdapter]) -> None:
        self._root, self._count, self._types = root, leaves, types
        self._addresses: list[int] = []  # of the arrays when what they share was last looked at

    @classmethod
    def of(cls, state: object, leaves: Sequence[Leaf]) -> "Trace | None":
        """Return the form of a state whose leaves these are; None where it holds more than containers and arrays."""
        if type(state) not in STRUCTURE:
            return None
        builder = _Builder(leaves)
        try:
            root = builder.add(state)
        except _Changed:
            return None
        assert isinstance(root, _Branch)
        return cls(root, len(leaves), builder.types) if builder.done else None

    def follow(self, state: object) -> list[Content] | None:
        """Return the contents of the leaves of a state, None where a walk must tell what is the matter with it.

        Addresses are good for as long as the arrays in `state` are.
        """
        step = self._walk(state)
        return step.contents if step is not None else None

    def retrace(self, state: object, walked: "Walked") -> "Retraced | None":
        """Return the leaves of a state, as a walk would; None where one must tell what is the matter with it.

        Args:
            walked: what is known of the leaves of the state that this is the trace of.
        """
        step = self._walk(state)
        return Retraced(walked, step.contents, step.objects) if step is not None else None

    def _walk(self, state: object) -> "_Following | None":
        for kind, adapter in self._types.items():
            if REGISTRY.by_type(kind) is not None or adapter_of_type(kind) is not adapter:
                return None
        step = _Following(self._count)
        try:
            step.branch(self._root, state)
        except _Changed:
            return None
        if step.addresses != self._addresses:
            if step.overlap():
                return None  # perhaps who did not share memory does
            self._addresses = step.addresses
        return step


class _Following:
    """One walk along a trace.

    Attributes:
        contents: of each leaf.
        addresses: of the arrays that are no aliases and have memory that others could show, in walk order.
        objects: index of a leaf -> its array.
    """

    def __init__(self, count: int) -> None:
        self.contents: list[Content] = [None] * count
        self.addresses: list[int] = []
        self.objects: dict[int, object] = {}
        self._arrays: list[_Array] = []  # that these belong to
        self._ids: set[int] = set()
        self._holders = Holders()

    def overlap(self) -> bool:
        """Return whether the memory of two arrays lies over each other."""
        spans = []
        for array, address in zip(self._arrays, self.addresses, strict=True):
            device, first, end = cast("tuple[str, int, int]", array.span)
            spans.append((device, address + first, address + end))
        return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(sorted(spans)))

    def branch(self, was: _Branch, value: object) -> None:
        kind = was.kind
        if type(value) is not kind:
            raise _Changed
        if kind in _KINDS_WITH_NODES and container_node(value) != was.node:
            raise _Changed
        children = iter(was.children)
        if kind in SEQUENCES:
            items = cast("Sequence[object]", value)
            if len(items) != len(was.children):
                raise _Changed
            for item in items:
                self._visit(next(children), item)
            return
        table = cast("dict[object, object]", value)
        keys = list(table)
        if keys != was.keys or [*map(type, keys)] != was.kinds:
            raise _Changed
        if was.attributes or kind not in (dict, defaultdict):
            attributes = vars(value)
            if tuple(attributes) != was.attributes:
                raise _Changed
            for item in attributes.values():
                self._visit(next(children), item)
        for item in table.values():
            self._visit(next(children), item)

    def _visit(self, was: "_Branch | _Array | _Plain", value: object) -> None:
        if type(was) is _Array:
            self._array(was, value)
        elif type(was) is _Branch:
            self.branch(was, value)
        else:
            self._plain(cast(_Plain, was), value)

    def _plain(self, was: _Plain, value: object) -> None:
        if not is_plain(value, self._holders):
            raise _Changed
        problems: dict[Path, str] = {}
        node = encode_value(value, path=was.path, problems=problems)
        if problems:
            raise _Changed
        self.contents[was.index] = encode(node)

    def _array(self, was: _Array, value: object) -> None:
        index, shows = was.index, was.shows
        if shows is not None and shows[1]:
            if value is not self.objects[shows[0]]:
                raise _Changed
            return
        if id(value) in self._ids:
            raise _Changed  # the same object at a second place
        self._ids.add(id(value))
        self.objects[index] = value
        if was.outline is None:
            self._describe(was, value)
            return
        outline = was.adapter.outline(value)
        if outline is None or outline[0] != was.outline:
            raise _Changed
        address = outline[1]
        if shows is not None:
            if address != self.contents[shows[0]]:
                raise _Changed
            return
        self.contents[index] = address
        self.addresses.append(address)
        self._arrays.append(was)

    def _describe(self, was: _Array, value: object) -> None:
        if adapter_of_type(type(value)) is not was.adapter:
            raise _Changed
        try:
            found = was.adapter.describe(value)
        except Refused as error:
            raise _Changed from error
        if not isinstance(found, Dense) or _what_counts(found) != was.described:
            raise _Changed
        self.contents[was.index] = content_of(found.source)
        if found.region is not None:
            self.addresses.append(found.region.address)
            self._arrays.append(was)


class _Builder:
    """Makes a trace of a state and its leaves, by walking them side by side."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.types: dict[type, ArrayAdapter] = {}
        self._leaves = enumerate(leaves)
        self._count, self._used = len(leaves), 0
        self._paths = [leaf.path for leaf in leaves]
        self._outlined: set[int] = set()  # leaves whose bytes lie where their outline says
        self._indices: dict[bytes, int] = {}  # of leaves, by their paths; made where there are aliases

    @property
    def done(self) -> bool:
        return self._used == self._count

    def add(self, value: object) -> "_Branch | _Array | _Plain":
        index, leaf = self._next()
        code = cast("list[Node]", leaf.node)[0]
        kind = type(value)
        if code == nodes.VALUE:
            return _Plain(index, leaf.path)
        if kind in STRUCTURE:
            return self._branch(value, leaf)
        adapter = adapter_of_type(kind)
        if adapter is None or REGISTRY.by_type(kind) is not None:
            raise _Changed
        self.types[kind] = adapter
        outline = adapter.outline(value)
        if code == nodes.ALIAS:
            _, same, target, *_ = cast("list[Node]", leaf.node)
            shows = self._index_of(target), bool(same)
            if not same and (outline is None or shows[0] not in self._outlined):
                raise _Changed
            return _Array(index, adapter, None if outline is None else outline[0], None, None, shows)
        if leaf.source is None:
            raise _Changed  # it consists of parts, or is a view
        if outline is not None and getattr(leaf.source, "address", None) is not None:
            self._outlined.add(index)
            return _Array(index, adapter, outline[0], None, ("cpu", 0, leaf.source.nbytes), None)
        found = adapter.describe(value)
        assert isinstance(found, Dense)
        span, region = None, found.region
        if region is not None:
            first, end = region.bounds()
            span = region.device, first - region.address, end - region.address
        return _Array(index, adapter, None, _what_counts(found), span, None)

    def _branch(self, value: object, leaf: Leaf) -> _Branch:
        children = tuple(self.add(item) for item in _items(value))
        if type(value) in SEQUENCES:
            return _Branch(type(value), leaf.node, [], [], (), children)
        table = cast("dict[object, object]", value)
        if not _EXACT_KEYS.issuperset(map(type, table)):
            raise _Changed
        attributes = () if type(value) in (dict, defaultdict) else tuple(vars(value))
        return _Branch(type(value), leaf.node, [*table], [*map(type, table)], attributes, children)

    def _index_of(self, target: Node) -> int:
        if not self._indices:
            self._indices = {encode(target_node(path)): index for index, path in enumerate(self._paths)}
        return self._indices[encode(target)]

    def _next(self) -> tuple[int, Leaf]:
        self._used += 1
        try:
            return next(self._leaves)
        except StopIteration:
            raise _Changed from None


def _items(value: object) -> Iterator[object]:
    """Yield the items of a container in the order of a walk."""
    if type(value) in MAPPINGS:
        if type(value) not in (dict, defaultdict):
            yield from vars(value).values()
        yield from cast("dict[object, object]", value).values()
    else:
        yield from cast("Sequence[object]", value)


def _what_counts(found: Dense) -> object:
    """Return everything that is said of an array but for where its memory is."""
    region = found.region
    place = None if region is None else (region.itemsize, region.shape, region.strides, region.device)
    address = getattr(found.source, "address", None)
    return found.node, found.spec, found.shown, found.dtype, place, type(found.source), address is None
