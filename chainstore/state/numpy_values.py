"""Plain values of NumPy: scalars, dtypes, and random generators by their state.  Loaded on first use only.

Arrays are no plain values; they are leaves of their own.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Generator, Philox, RandomState, SeedSequence
from numpy.random.bit_generator import BitGenerator

from chainstore.errors import Unsupported
from chainstore.model.keys import decode_text, encode_text
from chainstore.model.wire import Node
from chainstore.state import value_codes as codes
from chainstore.state.value_codes import Refused

_SCALARS = frozenset(np.sctypeDict.values()) - {np.object_}
_TEXTS: dict[type, str] = {np.str_: "U", np.bytes_: "S"}
_DTYPE = re.compile(r"\|O|[<>][qQ]|[<>|](?:[biufcmMSUV][0-9]{1,9}|[mM]8\[[0-9]{0,9}[a-zA-Zμ]{1,7}\])")
_LONG_DOUBLE = re.compile(r"([<>])([gG])([0-9]{1,3})")
_MANTISSA = int(np.finfo(np.longdouble).nmant)  # a long double's bytes mean something else on every processor
_X87_BYTES = 10  # of the 16 (or 12) that an x87 long double occupies; the others are whatever was there
_MAX_POOL = 1024  # words of a SeedSequence; NumPy's default is 4, mixing takes time quadratic in it

# What follows the seed sequence of each bit generator: (place in NumPy's state, words, largest value).
# Position counters are bounded, because NumPy's setters believe them and would read outside of the state.
_32, _64, _128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_TAIL = (("has_uint32", 1, 1), ("uinteger", 1, _32))
LAYOUTS: Final[dict[str, tuple[tuple[str, int, int], ...]]] = {
    "PCG64": (("state.state", 1, _128), ("state.inc", 1, _128), *_TAIL),
    "PCG64DXSM": (("state.state", 1, _128), ("state.inc", 1, _128), *_TAIL),
    "MT19937": (("state.key", 624, _32), ("state.pos", 1, 624)),
    "Philox": (
        ("state.counter", 4, _64),
        ("state.key", 2, _64),
        ("buffer", 4, _64),
        ("buffer_pos", 1, 4),
        *_TAIL,
    ),
    "SFC64": (("state.state", 4, _64), *_TAIL),
}
_BIT_GENERATORS: dict[str, type[BitGenerator]] = {
    kind.__name__: kind for kind in (PCG64, PCG64DXSM, MT19937, Philox, SFC64)
}


def encode(value: object) -> Node | None:
    """Return a NumPy value as a node, None when it is of no type that this module knows.

    Raises:
        Refused: of such a type, and yet it cannot be stored.
    """
    kind = type(value)
    if kind in _SCALARS:
        return _encode_scalar(value)
    if isinstance(value, np.dtype):
        return [codes.NUMPY_DTYPE, dtype_node(value)]
    encoder = _ENCODERS.get(kind)
    return encoder(value) if encoder is not None else None


# ---- dtypes


def dtype_node(dtype: np.dtype[Any]) -> Node:
    """Return a dtype as a node.

    A simple one is NumPy's text for it ("<f4", ">M8[ns]"), a long double its order, letter and mantissa bits
    ("<g63"), the longlong that is not int64 "<q".  A sub-array is ["sub", dtype, size, ...], a record
    ["record", item bytes, aligned, field, ...] with fields [name, title or None, offset, dtype].

    Raises:
        Refused: NumPy could not make the same dtype again from that (metadata, dtypes of other packages).
    """
    node = _dtype_node(dtype)
    try:
        again = dtype_from_node(node)
    except (ValueError, TypeError, Unsupported):
        again = None
    if again != dtype or again.type is not dtype.type or dtype.metadata is not None:
        raise Refused(f"numpy dtype {dtype!r} cannot be told in NumPy's own words")
    return node


def _dtype_node(dtype: np.dtype[Any]) -> Node:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", _dtype_node(base), *shape]
    if dtype.names is not None and dtype.fields is not None:
        fields = [_field_node(name, *dtype.fields[name]) for name in dtype.names]
        return ["record", dtype.itemsize, dtype.isalignedstruct, *fields]
    if dtype.char in "gG":
        return f"{dtype.str[0]}{dtype.char}{_MANTISSA}"
    if dtype.char in "qQ" and dtype.type is not np.dtype(dtype.str).type:
        return dtype.str[0] + dtype.char  # a second type of 64 bits, next to the one that "<i8" names
    return dtype.str


def _field_node(name: str, dtype: np.dtype[Any], offset: int, title: object = None) -> Node:
    if title is not None and not isinstance(title, str):
        raise Refused("a field's title is not a str")
    return [encode_text(name), None if title is None else encode_text(title), offset, _dtype_node(dtype)]


def dtype_from_node(node: Node) -> np.dtype[Any]:
    """Return the dtype that `dtype_node` described.

    Raises:
        ValueError, TypeError: it describes none.
        Unsupported: a long double of another processor.
    """
    match node:
        case str(text):
            return _simple_dtype(text)
        case ["sub", base, *shape] if shape and all(type(size) is int and size >= 0 for size in shape):
            return np.dtype((dtype_from_node(base), tuple(shape)))
        case ["record", int(item_bytes), bool(aligned), *fields]:
            return _record_dtype(item_bytes, aligned, fields)
    raise ValueError("no dtype")


def _simple_dtype(text: str) -> np.dtype[Any]:
    if _DTYPE.fullmatch(text):
        return np.dtype(text)
    long_double = _LONG_DOUBLE.fullmatch(text)
    if not long_double:
        raise ValueError("no dtype")
    if int(long_double[3]) != _MANTISSA:
        raise Unsupported(
            f"this snapshot holds long doubles of {long_double[3]} mantissa bits, here they have {_MANTISSA}"
        )
    return np.dtype(long_double[2]).newbyteorder(long_double[1])  # type: ignore[arg-type]


def _record_dtype(item_bytes: int, aligned: bool, fields: list[Node]) -> np.dtype[Any]:
    names, titles, offsets, formats = [], [], [], []
    for field in fields:
        name, title, offset, dtype = _list(field)
        if type(offset) is not int or offset < 0:
            raise ValueError("an offset is an int")
        names.append(_text(name))
        titles.append(None if title is None else _text(title))
        offsets.append(offset)
        formats.append(dtype_from_node(dtype))
    parts = {"names": names, "formats": formats, "offsets": offsets, "itemsize": item_bytes}
    if any(title is not None for title in titles):
        parts["titles"] = titles
    return np.dtype(parts, align=aligned)  # type: ignore[call-overload, no-any-return]


# ---- scalars


def _encode_scalar(value: Any) -> Node:
    if type(value) is np.str_:
        return [codes.NUMPY_SCALAR, "U", encode_text(str.__str__(value))]  # str(value) would drop zeros at its end
    if type(value) is np.bytes_:
        return [codes.NUMPY_SCALAR, "S", bytes(value)]
    if value.dtype.hasobject:
        raise Refused("a numpy record that holds Python objects")
    return [codes.NUMPY_SCALAR, dtype_node(value.dtype), scalar_bytes(value)]


def scalar_bytes(value: Any) -> bytes:
    """Return a scalar's bytes; what a long double does not use of them is zero."""
    raw: bytes = value.tobytes()
    if value.dtype.char not in "gG" or _MANTISSA != 63:
        return raw
    step = np.dtype(np.longdouble).itemsize
    return b"".join(raw[at : at + _X87_BYTES].ljust(step, b"\0") for at in range(0, len(raw), step))


def _decode_scalar(body: list[Node]) -> object:
    described, raw = body
    if described == "U":
        return np.str_(_text(raw))
    if type(raw) is not bytes:
        raise TypeError("a scalar is its bytes")
    if described == "S":
        return np.bytes_(raw)
    dtype = dtype_from_node(described)
    if dtype.hasobject or dtype.subdtype is not None or dtype.kind in "SU" or dtype.itemsize != len(raw):
        raise ValueError("no scalar of that dtype")
    if not raw:
        return np.zeros((), dtype)[()]
    return np.frombuffer(bytearray(raw), dtype)[0]


# ---- random generators


def _encode_seed_sequence(value: SeedSequence) -> Node:
    entropy: Node = _entropy_node(value.entropy)
    key = [int(word) for word in value.spawn_key]
    node: list[Node] = [codes.SEED_SEQUENCE, entropy, value.pool_size, value.n_children_spawned, *key]
    if value.pool_size > _MAX_POOL or not np.array_equal(_decode_seed_sequence(node[1:]).pool, value.pool):
        raise Refused("a numpy SeedSequence of unusual entropy, which could not be made again")
    return node


def _entropy_node(entropy: Any) -> Node:
    if entropy is None or isinstance(entropy, (int, np.integer)):
        return None if entropy is None else int(entropy)
    try:
        return [codes.LIST, *(int(word) for word in entropy)]
    except (TypeError, ValueError):
        raise Refused("a numpy SeedSequence whose entropy is no int and no sequence of ints") from None


def _decode_seed_sequence(body: list[Node]) -> SeedSequence:
    entropy, pool_size, spawned, *key = body
    pool_size, spawned, *words = _naturals([pool_size, spawned, *key])
    if pool_size > _MAX_POOL or spawned > _64:
        raise ValueError("no seed sequence")
    seed: Any = _naturals([entropy])[0] if not isinstance(entropy, list) else _naturals(_coded(entropy, codes.LIST))
    return SeedSequence(seed, spawn_key=words, pool_size=pool_size, n_children_spawned=spawned)


def _encode_bit_generator(value: Any) -> Node:
    seed = value.seed_seq
    if seed is not None and type(seed) is not SeedSequence:
        raise Refused(f"a numpy bit generator seeded by a {type(seed).__qualname__}")
    name = type(value).__name__
    state = value.state
    words: list[Node] = []
    for place, _, _ in LAYOUTS[name]:
        part = state
        for step in place.split("."):
            part = part[step]
        words += [int(word) for word in np.atleast_1d(np.asarray(part, object))]
    return [codes.BIT_GENERATOR, name, None if seed is None else _encode_seed_sequence(seed), *words]


def _decode_bit_generator(body: list[Node]) -> Any:
    name, seed, *nodes = body
    words = _naturals(nodes)
    state: dict[str, Any] = {"bit_generator": _text(name), "state": {}}
    for place, count, largest in LAYOUTS[_text(name)]:
        part, words = words[:count], words[count:]
        if len(part) != count or max(part) > largest:
            raise ValueError("no state of that bit generator")
        holder, _, last = ("", "", place) if "." not in place else place.partition(".")
        array = np.array(part, np.uint32 if largest == _32 else np.uint64) if count > 1 else part[0]
        (state[holder] if holder else state)[last] = array
    if words:
        raise ValueError("no state of that bit generator")
    return _with_state(_BIT_GENERATORS[_text(name)], seed, state)


def _with_state(kind: Any, seed: Node, state: dict[str, Any]) -> Any:
    if "inc" in state["state"] and not state["state"]["inc"] & 1:
        raise ValueError("the increment of a PCG64 is odd")
    if seed is None:
        value = kind(0) if kind is not MT19937 else RandomState(0)._bit_generator
    else:
        value = kind(_decode_seed_sequence(_coded(seed, codes.SEED_SEQUENCE)))
    value.state = state
    return value


def _encode_generator(value: Generator) -> Node:
    return [codes.GENERATOR, _inner(value.bit_generator)]


def _inner(bit_generator: object) -> Node:
    if type(bit_generator) not in _ENCODERS:
        raise Refused(f"its bit generator is a {type(bit_generator).__module__}.{type(bit_generator).__qualname__}")
    return _encode_bit_generator(bit_generator)


def _decode_generator(body: list[Node]) -> Generator:
    (node,) = body
    return Generator(_decode_bit_generator(_coded(node, codes.BIT_GENERATOR)))


def _encode_random_state(value: RandomState) -> Node:
    state: dict[str, Any] = value.get_state(legacy=False)
    inner = _inner(value._bit_generator)
    return [codes.RANDOM_STATE, inner, int(state["has_gauss"]), struct.pack("<d", state["gauss"])]


def _decode_random_state(body: list[Node]) -> RandomState:
    node, has_gauss, raw = body
    if type(has_gauss) is not int or has_gauss not in (0, 1) or type(raw) is not bytes:
        raise ValueError("no state of a RandomState")
    bit_generator = _decode_bit_generator(_coded(node, codes.BIT_GENERATOR))
    value = RandomState(bit_generator)
    state = {**bit_generator.state, "has_gauss": has_gauss, "gauss": struct.unpack("<d", raw)[0]}
    value.set_state(state)
    return value


# ---- checks: what they raise becomes Malformed


def _list(node: Node) -> list[Node]:
    if type(node) is not list:
        raise TypeError("a list was expected")
    return node


def _coded(node: Node, code: int) -> list[Node]:
    found, *body = _list(node)
    if found != code:
        raise ValueError(f"code {code} was expected")
    return body


def _text(node: Node) -> str:
    match node:
        case str(text):
            return text
        case [codes.TEXT, bytes(raw)]:
            return decode_text(raw)
    raise TypeError("text was expected")


def _naturals(nodes: list[Node]) -> list[int]:
    if not all(type(node) is int and node >= 0 for node in nodes):
        raise TypeError("ints of at least 0 were expected")
    return nodes  # type: ignore[return-value]


_ENCODERS: dict[type, Callable[[Any], Node]] = {
    SeedSequence: _encode_seed_sequence,
    **dict.fromkeys(_BIT_GENERATORS.values(), _encode_bit_generator),
    Generator: _encode_generator,
    RandomState: _encode_random_state,
}

DECODERS: dict[int, Callable[[list[Node]], object]] = {
    codes.NUMPY_SCALAR: _decode_scalar,
    codes.NUMPY_DTYPE: lambda body: dtype_from_node(*body),
    codes.SEED_SEQUENCE: _decode_seed_sequence,
    codes.BIT_GENERATOR: _decode_bit_generator,
    codes.GENERATOR: _decode_generator,
    codes.RANDOM_STATE: _decode_random_state,
}
