"""One walk over a plain value that turns it into a node, or finds everything in it that cannot be stored."""

import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, cast

from chainstore.model.keys import Attr, Key, Path, encode_text, is_key
from chainstore.model.wire import Node, encode
from chainstore.state import standard_values
from chainstore.state import value_codes as codes
from chainstore.state.registry import Registration, Registry
from chainstore.state.value_codes import Refused
from chainstore.state.value_libraries import library_of_type

MAX_DEPTH: Final = 150  # containers within containers of a state, from its root

_BARE = frozenset((type(None), bool, int, bytes, str))  # stand on the wire as they are; str with one exception
PLAIN_SCALARS: Final = frozenset((*_BARE, *standard_values.ENCODERS))  # types whose objects hold no other objects
_LONG = 32  # items from which on it pays to ask for the types of all first
_pack_float = Struct("<d").pack
_FACTORY_NAMES = {kind: name for name, kind in codes.FACTORIES.items()}


class Encoder:
    """One walk over one value; `trail` is the way from its root to where the walk is, `open` what encloses that."""

    def __init__(self, path: Path, problems: dict[Path, str], registry: Registry) -> None:
        self.path, self.problems, self.registry = path, problems, registry
        self.trail: list[Key] = []
        self.open: set[int] = set()

    def node(self, value: object) -> Node:
        kind = type(value)
        if kind is str:
            return encode_text(cast(str, value))
        if kind in _BARE:
            return cast(Node, value)
        try:
            scalar = standard_values.ENCODERS.get(kind)
            if scalar is not None:
                return scalar(value)
            container = CONTAINERS.get(kind)
            if container is not None:
                return self.enclosed(value, container)
            return self.other(value)
        except Refused as reason:
            self.problems[(*self.path, *self.trail)] = f"{describe(kind)}: {reason}"
            return None

    def enclosed(self, value: object, encode_container: "Callable[[Encoder, Any], Node]") -> Node:
        if id(value) in self.open:
            raise Refused("contains itself")
        if len(self.path) + len(self.trail) > MAX_DEPTH:
            raise Refused(f"nested deeper than {MAX_DEPTH} levels")
        self.open.add(id(value))
        try:
            return encode_container(self, value)
        finally:
            self.open.discard(id(value))

    def other(self, value: object) -> Node:
        kind = type(value)
        registration = self.registry.by_type(kind)
        if registration is not None:
            return self.enclosed(value, lambda encoder, it: encoder.registered(registration, it))
        library = library_of_type(kind)
        node: Node = library.encode(value) if library is not None else None
        if node is None:
            raise Refused(_why_unknown(value))
        return node

    def registered(self, registration: Registration, value: object) -> Node:
        if registration.encode is None:
            raise Refused("a tensor where only plain values may stand")
        payload = self.child(Attr("encoded"), registration.encode(value))
        return [codes.REGISTERED, encode_text(registration.name), registration.version, payload]

    def child(self, key: object, value: object) -> Node:
        self.trail.append(cast(Key, key) if is_key(key) else Attr(f"key {key!r:.60}"))
        try:
            return self.node(value)
        finally:
            self.trail.pop()

    def items(self, values: Sequence[object]) -> list[Node]:
        """Return the nodes of values that are found by position."""
        if len(values) >= _LONG and set(map(type, values)) <= _BARE - {str}:
            return list(cast("Sequence[Node]", values))
        return [_simple(value) or self.child(index, value) for index, value in enumerate(values)]

    def pairs(self, mapping: Mapping[object, object]) -> list[Node]:
        nodes: list[Node] = []
        for key, value in mapping.items():
            nodes.append(_simple(key) or self.child(key, key))
            nodes.append(_simple(value) or self.child(key, value))
        return nodes

    def sorted_items(self, values: Iterable[object]) -> list[Node]:
        """Return the nodes of a set in an order that depends on them alone (hashes of str differ by process)."""
        nodes = [_simple(value) or self.child(Attr(f"item {place}"), value) for place, value in enumerate(values)]
        return sorted(nodes, key=encode) if not self.problems else nodes

    def attributes(self, value: object) -> Node:
        held = vars(value)
        if not held:
            return None
        shadowing = sorted(name for name in held if not may_be_attribute(name, type(value)))
        if shadowing:
            raise Refused(f"its attribute {shadowing[0]!r} hides one of its class")
        nodes: list[Node] = [codes.DICT]
        for name, item in held.items():
            nodes += [encode_text(name), self.child(Attr(name), item)]
        return nodes


def _simple(value: object) -> Node:
    """Return the node of a value of the commonest types, None (or another false node) where it takes a closer look.

    Half the cost of a list of mixed numbers is saved by asking here before its items are walked one by one.
    """
    kind = type(value)
    if kind is int or kind is bool or kind is bytes:
        return cast(Node, value)
    if kind is str:
        return cast(Node, value) if cast(str, value).isascii() else None
    return [codes.FLOAT, _pack_float(value)] if kind is float else None


def may_be_attribute(name: str, kind: type) -> bool:
    return name.isidentifier() and not hasattr(kind, name)


def _sequence(code: int, floats_code: int) -> "Callable[[Encoder, Any], Node]":
    def encode_sequence(encoder: Encoder, value: list[object] | tuple[object, ...]) -> Node:
        if value and type(value[0]) is float and set(map(type, value)) == {float}:
            return [floats_code, _float_bytes(cast("list[float]", value))]
        return [code, *encoder.items(value)]

    return encode_sequence


def _float_bytes(values: Iterable[float]) -> bytes:
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _encode_counter(encoder: Encoder, value: "Counter[object]") -> Node:
    if vars(value):
        raise Refused("has attributes of its own")
    return [codes.COUNTER, *encoder.pairs(value)]


def _encode_defaultdict(encoder: Encoder, value: "defaultdict[object, object]") -> Node:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORY_NAMES:
        raise Refused(f"its default factory is {factory!r}, not None or one of {', '.join(codes.FACTORIES)}")
    return [codes.DEFAULT_DICT, None if factory is None else _FACTORY_NAMES[factory], *encoder.pairs(value)]


def _encode_slice(encoder: Encoder, value: Any) -> Node:
    parts = (("start", value.start), ("stop", value.stop), ("step", value.step))
    return [codes.SLICE, *(encoder.child(Attr(name), part) for name, part in parts)]


CONTAINERS: dict[type, Callable[[Encoder, Any], Node]] = {
    list: _sequence(codes.LIST, codes.FLOAT_LIST),
    tuple: _sequence(codes.TUPLE, codes.FLOAT_TUPLE),
    dict: lambda encoder, value: [codes.DICT, *encoder.pairs(value)],
    OrderedDict: lambda encoder, value: [codes.ORDERED_DICT, encoder.attributes(value), *encoder.pairs(value)],
    Counter: _encode_counter,
    defaultdict: _encode_defaultdict,
    set: lambda encoder, value: [codes.SET, *encoder.sorted_items(value)],
    frozenset: lambda encoder, value: [codes.FROZENSET, *encoder.sorted_items(value)],
    deque: lambda encoder, value: [codes.DEQUE, value.maxlen, *encoder.items(value)],
    slice: _encode_slice,
}


def describe(kind: type) -> str:
    """Return a type's name for people: builtins without their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _why_unknown(value: object) -> str:
    kind = type(value)
    if isinstance(value, type):
        return f"a class ({describe(value)}), not a value"
    native = next((base for base in kind.__mro__[1:] if base in PLAIN_SCALARS or base in CONTAINERS), None)
    if native is not None:
        return f"a subclass of {describe(native)} that is not registered"
    if callable(value):
        return "code cannot be stored"
    return "a type that is not registered"
