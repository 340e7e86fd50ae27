"""The one encoding of everything that is not array data: deterministic CBOR without maps.

A *node* is None, a bool, an int of any size, a str, bytes, or a list of nodes.  By convention a list that means
something begins with a code, `[code, ...]`; what a code says is up to the module that owns it.  There are no maps
(a dict is its pairs, in order), no floats (they travel as 8 raw bytes, so that NaN payloads and -0.0 survive) and
no tags but the two of big integers, so one node has exactly one encoding and decoding runs no foreign code.

Source: RFC 8949, section 4.2.1 (core deterministic encoding requirements).
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Never, TypeAlias

import cbor2

from chainstore.errors import Malformed

Node: TypeAlias = bool | int | str | bytes | list["Node"] | None
Encodable: TypeAlias = bool | int | str | bytes | Sequence["Encodable"] | None  # a node, tuples standing for lists

MAX_DEPTH = 200  # lists within lists; a state of 150 levels fits, the C stack of no host is in danger

_SCALARS = frozenset((type(None), bool, int, str, bytes))
_DECODED = _SCALARS | {list}
_ENCODED = _DECODED | {tuple}

# Every tag that cbor2 would interpret by itself, bignums (2, 3) excepted.  Naming them replaces its interpreters,
# among them ones that compile regular expressions or raise to powers; the rest reaches the hook for unknown tags.
_TAGS = (0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


def encode(node: Encodable) -> bytes:
    """Return the only encoding of `node`; equal nodes give equal bytes on every host.

    Tuples are accepted and encoded as lists.

    Raises:
        TypeError: something in `node` is of another type (subclasses included).
        ValueError: lists nest deeper than `MAX_DEPTH`, or a str holds half a surrogate pair.

    Cost: about 60 ns per item, half of it the check that `decode` will take it back.
    """
    _check_encodable(node)
    return cbor2.dumps(node)


def decode(data: bytes | bytearray | memoryview, *, what: str = "node", strict: bool = False) -> Node:
    """Return the node that `data` encodes; its lists are lists, never tuples.

    Args:
        data: exactly one encoded node.  A bytearray or memoryview is copied.
        what: named in the error.
        strict: also demand that `data` is *the* encoding of the node (shortest integers and lengths); for bytes
            that no object id vouches for yet.

    Raises:
        Malformed: `data` is anything else: cut short, with bytes after the node, with maps, floats, foreign tags or
            indefinite lengths, or nested deeper than `MAX_DEPTH`.  Nothing else is ever raised, and memory stays
            proportional to len(data), whatever the bytes.
    """
    stream = BytesIO(data)
    try:
        node = _decoder(stream).decode()
    except cbor2.CBORDecodeError as error:
        raise Malformed(what, str(error.__cause__ or error)) from error
    if stream.tell() != len(data):
        raise Malformed(what, f"{len(data) - stream.tell()} bytes follow the end", stream.tell())
    problem = _problem(node)
    if problem is not None:
        raise Malformed(what, problem)
    if strict and cbor2.dumps(node) != data:
        raise Malformed(what, "it is not in its shortest form")
    return node  # type: ignore[no-any-return]


def _decoder(stream: BytesIO) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        stream,
        tag_hook=_refuse_tag,
        object_hook=_refuse_map,
        semantic_decoders=_REFUSED_TAGS,
        max_depth=MAX_DEPTH,
        allow_indefinite=False,
        strict_hashable_types=True,  # a map is refused only once it is read: no colliding keys until then
    )


def _refuse_tag(value: object, immutable: bool) -> Never:
    raise ValueError("tags are not part of the format")


def _refuse_map(value: object, immutable: bool) -> Never:
    raise ValueError("maps are not part of the format")


_REFUSED_TAGS = dict.fromkeys(_TAGS, _refuse_tag)


def _problem(node: object) -> str | None:
    """Return what no node may have in it: an item of another type, or a list too deep, which an empty one still is."""
    if type(node) is not list:
        return None if type(node) in _SCALARS else f"{type(node).__name__} is not part of the format"
    level = [node]
    for _ in range(MAX_DEPTH):
        below: list[list[object]] = []
        for items in level:
            kinds = set(map(type, items))
            if not kinds <= _DECODED:
                return f"{min(kind.__name__ for kind in kinds - _DECODED)} is not part of the format"
            if list in kinds:
                below.extend(item for item in items if type(item) is list)
        if not below:
            return None
        level = below
    return f"lists nest deeper than {MAX_DEPTH}"


def _check_encodable(node: Encodable) -> None:
    level: list[object] = [[node]]
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        for items in level:
            kinds = set(map(type, items))  # type: ignore[call-overload]
            if not kinds <= _ENCODED:
                raise TypeError(f"a node cannot hold {', '.join(sorted(k.__qualname__ for k in kinds - _ENCODED))}")
            if list in kinds or tuple in kinds:
                below.extend(item for item in items if type(item) in (list, tuple))  # type: ignore[attr-defined]
        if not below:
            return
        level = below
    raise ValueError(f"a node cannot hold more than {MAX_DEPTH} lists within lists")
