"""The way back from a node to a plain value, for nodes that may be anything."""

import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, cast

from chainstore.errors import Malformed
from chainstore.model.wire import MAX_DEPTH, Node
from chainstore.state import standard_values
from chainstore.state import value_codes as codes
from chainstore.state.registry import Registry
from chainstore.state.value_encoder import may_be_attribute
from chainstore.state.value_libraries import library_of_code

_BARE = frozenset((type(None), bool, int, bytes, str))


class Decoder:
    """Turns nodes into values; `depth` counts the lists around a node, so that no node can exhaust the stack."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def value(self, node: Node, depth: int) -> object:
        if type(node) is not list:
            if type(node) in _BARE:
                return node
            raise Malformed("value", f"a {type(node).__name__} is no node")
        if depth > MAX_DEPTH:
            raise Malformed("value", f"lists nest deeper than {MAX_DEPTH}")
        code = node[0] if node else None
        if type(code) is not int:
            raise Malformed("value", "a list begins with no code")
        container = _CONTAINER_DECODERS.get(code)
        if container is not None:
            return container(self, node[1:], depth + 1)
        return standard_values.decode_leaf(_leaf_decoder(code), node[1:], "value")

    def items(self, nodes: list[Node], depth: int) -> list[object]:
        if set(map(type, nodes)) <= _BARE:
            return cast("list[object]", nodes)
        return [self.value(node, depth) for node in nodes]

    def distinct(self, nodes: list[Node], depth: int, kind: Callable[[list[object]], Any]) -> Any:
        try:
            values = kind(self.items(nodes, depth))
        except TypeError as error:
            raise Malformed("value", f"an item of a set: {error}") from error
        if len(values) != len(nodes):
            raise Malformed("value", "a set holds an item twice")
        return values

    def fill(self, mapping: Any, nodes: list[Node], depth: int) -> Any:
        """Put `nodes` (key, value, key, value, ...) into an empty dict, or a subclass of dict, and return it."""
        if len(nodes) % 2:
            raise Malformed("value", "a key without its value")
        keys, values = self.items(nodes[::2], depth), self.items(nodes[1::2], depth)
        update = OrderedDict.update if type(mapping) is OrderedDict else dict.update  # that of Counter would add
        try:
            update(mapping, zip(keys, values, strict=True))
        except TypeError as error:
            raise Malformed("value", f"a key of a dict: {error}") from error
        if len(mapping) != len(keys):
            raise Malformed("value", "a dict holds a key twice")
        return mapping

    def ordered_dict(self, body: list[Node], depth: int) -> object:
        attributes, *pairs = body or [0]
        value: OrderedDict[object, object] = OrderedDict()
        if attributes is not None:
            held = self.value(attributes, depth)
            if type(held) is not dict or not all(
                type(name) is str and may_be_attribute(name, OrderedDict) for name in held
            ):
                raise Malformed("value", "attributes of an OrderedDict")
            vars(value).update(held)
        return self.fill(value, pairs, depth)

    def default_dict(self, body: list[Node], depth: int) -> object:
        name, *pairs = body or [0]
        if name is not None and (type(name) is not str or name not in codes.FACTORIES):
            raise Malformed("value", "no factory of a defaultdict")
        return self.fill(defaultdict(None if name is None else codes.FACTORIES[name]), pairs, depth)

    def deque(self, body: list[Node], depth: int) -> object:
        maxlen, *items = body or [0, 0]
        if maxlen is not None and (type(maxlen) is not int or not len(items) <= maxlen <= sys.maxsize):
            raise Malformed("value", "a deque longer than it may be")
        return deque(self.items(items, depth), maxlen)

    def slice(self, body: list[Node], depth: int) -> object:
        if len(body) != 3:
            raise Malformed("value", "a slice has three parts")
        return slice(*self.items(body, depth))

    def registered(self, body: list[Node], depth: int) -> object:
        match body:
            case [name, int(version), payload]:
                registration = self.registry.by_name(str(self.value(name, depth)), version)
                if registration.decode is None:
                    raise Malformed("value", f"{registration.name} is a tensor where only plain values may stand")
                return registration.decode(self.value(payload, depth))
        raise Malformed("value", "a registered type is a name, a version and what it was encoded to")


def _decode_floats(body: list[Node]) -> list[float]:
    match body:
        case [bytes(raw)] if len(raw) % 8 == 0 and raw:
            packed = array("d", raw)
            if sys.byteorder == "big":
                packed.byteswap()
            return packed.tolist()
    raise ValueError("floats are 8 bytes each, one at least")


def _leaf_decoder(code: int) -> Callable[[list[Node]], object]:
    standard = standard_values.DECODERS.get(code) or _FLOATS.get(code)
    if standard is not None:
        return standard
    library = library_of_code(code)
    decoder = library.DECODERS.get(code) if library is not None else None
    if decoder is not None:
        return cast("Callable[[list[Node]], object]", decoder)
    raise Malformed("value", f"unknown code {code}")


_FLOATS: dict[int, Callable[[list[Node]], object]] = {
    codes.FLOAT_LIST: _decode_floats,
    codes.FLOAT_TUPLE: lambda body: tuple(_decode_floats(body)),
}

_CONTAINER_DECODERS: dict[int, Callable[[Decoder, list[Node], int], object]] = {
    codes.LIST: Decoder.items,
    codes.TUPLE: lambda decoder, body, depth: tuple(decoder.items(body, depth)),
    codes.DICT: lambda decoder, body, depth: decoder.fill({}, body, depth),
    codes.ORDERED_DICT: Decoder.ordered_dict,
    codes.COUNTER: lambda decoder, body, depth: decoder.fill(Counter(), body, depth),
    codes.DEFAULT_DICT: Decoder.default_dict,
    codes.SET: lambda decoder, body, depth: decoder.distinct(body, depth, set),
    codes.FROZENSET: lambda decoder, body, depth: decoder.distinct(body, depth, frozenset),
    codes.DEQUE: Decoder.deque,
    codes.SLICE: Decoder.slice,
    codes.REGISTERED: Decoder.registered,
}
