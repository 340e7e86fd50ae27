"""The keys that paths are made of, and how they travel on the wire.

A key is a bare node where it can be, else `[code, ...]`, so that 1, True, 1.0 and "1" stay four different keys:

    str, int, bool, None, bytes       bare
    float                             [1, 8 bytes, little-endian]
    tuple                             [2, key, ...]
    Attr                              [3, name]
    str with half a surrogate pair    [4, UTF-8 with such halves let through]
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from chainstore.errors import InvalidInput, Malformed
from chainstore.model.wire import Node

MAX_KEY_DEPTH = 16  # tuples within tuples within one key

FLOAT, TUPLE, ATTR, TEXT = 1, 2, 3, 4  # on disk, see docs/format.md; never reused
_BARE_TYPES = frozenset((str, int, bool, type(None), bytes))


@dataclass(frozen=True, slots=True)
class Attr:
    """An internal part of a composite value, such as the indices of a sparse tensor; no key of a dict."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


Key: TypeAlias = "str | int | bool | bytes | float | tuple[Key, ...] | Attr | None"
Path: TypeAlias = tuple[Key, ...]


def is_key(value: object, depth: int = 0) -> bool:
    """Return whether `value` is of a type that a path can hold (subclasses are not, nor deeply nested tuples)."""
    if type(value) is tuple:
        return depth < MAX_KEY_DEPTH and all(is_key(item, depth + 1) for item in value)
    return type(value) in _BARE_TYPES or type(value) in (float, Attr)


def encode_key(key: Key) -> Node:
    """Return `key` as a node; equal nodes for keys that are equal and of equal types, and only for those.

    Raises:
        InvalidInput: it is no key (see `is_key`).
    """
    kind = type(key)
    if kind is str:
        return encode_text(key)  # type: ignore[arg-type]
    if kind in _BARE_TYPES:
        return key  # type: ignore[return-value]
    if not is_key(key):
        raise InvalidInput(f"{kind.__qualname__} cannot be a key in a path")
    if isinstance(key, Attr):
        return [ATTR, encode_text(key.name)]
    if isinstance(key, tuple):
        return [TUPLE, *map(encode_key, key)]
    return [FLOAT, struct.pack("<d", key)]


def decode_key(node: Node) -> Key:
    """Return the key that `node` stands for.

    Raises:
        Malformed: it stands for none.
    """
    if type(node) is not list:
        if type(node) in _BARE_TYPES:
            return node  # type: ignore[return-value]
        raise Malformed("key", f"{type(node).__name__} is no node")
    match node:
        case [code, *items] if type(code) is not int or code not in _DECODERS:
            raise Malformed("key", f"unknown code {code!r:.40}")
        case [code, *items]:
            return _DECODERS[code](items)  # type: ignore[index]
    raise Malformed("key", "an empty list")


def _decode_float(items: list[Node]) -> Key:
    match items:
        case [bytes(raw)] if len(raw) == 8:
            value: float = struct.unpack("<d", raw)[0]
            return value
    raise Malformed("key", "a float is 8 bytes")


def _decode_tuple(items: list[Node]) -> Key:
    key = tuple(map(decode_key, items))
    if not is_key(key):
        raise Malformed("key", f"tuples nest deeper than {MAX_KEY_DEPTH}")
    return key


def _decode_attr(items: list[Node]) -> Key:
    match items:
        case [str(name)]:
            return Attr(name)
        case [[code, bytes(raw)]] if code == TEXT:
            return Attr(decode_text(raw))
    raise Malformed("key", "an attribute is its name")


def _decode_text(items: list[Node]) -> Key:
    match items:
        case [bytes(raw)]:
            return decode_text(raw)
    raise Malformed("key", "a text is its bytes")


_DECODERS: dict[int, Callable[[list[Node]], Key]] = {
    FLOAT: _decode_float,
    TUPLE: _decode_tuple,
    ATTR: _decode_attr,
    TEXT: _decode_text,
}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, as os.fsdecode makes of a file name that is not UTF-8
        return False
    return True


def encode_text(text: str) -> Node:
    """Return a str as a node: itself, unless it holds half a surrogate pair, which UTF-8 cannot carry."""
    if text.isascii() or _is_utf8(text):
        return text
    return [TEXT, text.encode("utf-8", "surrogatepass")]


def decode_text(raw: bytes) -> str:
    """Return the str whose UTF-8, halves of surrogate pairs let through, is `raw`.

    Raises:
        Malformed: `raw` is not that, or needs no such care and should have stood as a str.
    """
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Malformed("text", str(error), error.start) from error
    if _is_utf8(text):
        raise Malformed("text", "it should stand as text")
    return text
