"""Mutations: what chance and a hostile hand do to bytes that follow a format.

Flips, splices and cuts come from chance; lengths that promise gigabytes, lists within lists and nodes of another
type are what a parser is attacked with, and chance alone would hardly find them.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence

import cbor2

Node = object
Change = Callable[[random.Random, Sequence[bytes]], bytes]

NUMBERS = (0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 255, 256, 4080, 65535, 1 << 20, (1 << 30) + 1, (1 << 31) - 1, 1 << 31)
LARGE = (*NUMBERS, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
HEADS = (  # of CBOR items: lengths without content, endless lists, maps, floats, tags
    *(bytes((major << 5 | 27,)) + b"\x7f" + b"\xff" * 7 for major in range(8)),
    *(bytes((major << 5 | 26,)) + b"\x7f\xff\xff\xff" for major in range(8)),
    *(b"\x9f", b"\xbf", b"\x5f", b"\x7f", b"\xff", b"\xa1\x01\x01", b"\xf9\x7e\x00", b"\xfb" + bytes(8), b"\xf7"),
    *(
        b"\xc2\x58\xff" + b"\xff" * 255,
        b"\xc3\x40",
        b"\xc4\x82\x1b" + b"\xff" * 8 + b"\x01",
        b"\xd8\x1c\x81\xd8\x1d\x00",
    ),
    *(b"\x81" * 199 + b"\x80", b"\x81" * 5000, b"\xc2" * 1000, b"\xd8\x23\x78\x1e(a+)+$" + b"a" * 40),
)
NODES: tuple[Node, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 4, 12, 255, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63)),
    *(
        1 << 2000,
        -(1 << 64),
        "",
        "\0",
        "a" * 300,
        "9" * 5000,
        "heads/main",
        "\U0010ffff",
        b"",
        b"\0",
        bytes(8),
        bytes(16),
    ),
    *(bytes(31), bytes(32), bytes(33), bytes(64), b"\xff" * 8, [], [[]], [None], [1], [4, b"\xff"], [2, [2, [2, "a"]]]),
    [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]],
)
JSON: tuple[object, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        1.5,
        1e308,
        float("inf"),
        float("nan"),
        1 << 64,
        10**4000,
        "",
        "a",
        "0" * 32,
        "g" * 32,
    ),
    *(
        [],
        {},
        [[]],
        {"": {}},
        {"x": [True, True, True]},
        {"x": [1, 0, 0]},
        {"x": None},
        ["a"],
        "\0",
        "\ud800",
        "../../..",
    ),
)


def mutated(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return one of `samples` after one to four things happened to it."""
    data = bytearray(source.choice(samples))
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 4))):
        data = source.choice(_MUTATIONS)(source, data, samples)
    return bytes(data)


def mutated_node(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return the encoding of one of `samples`, which are CBOR, after one to four of its nodes became others."""
    try:
        node = cbor2.loads(source.choice(samples))
        for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
            node = _change(source, node, samples)
        return bytes(cbor2.dumps(node))
    except (cbor2.CBORError, RecursionError):  # a sample that is malformed on purpose
        return mutated(source, samples)


def mutated_json(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return one of `samples`, which are JSON objects, after one to three of their fields became others."""
    data = source.choice(samples)
    try:
        fields = json.loads(data)
        for _ in range(source.choice((1, 1, 2, 3))):
            name = source.choice(list(fields))
            match source.randrange(4):
                case 0:
                    fields.pop(name)
                case 1 if isinstance(fields[name], str) and fields[name]:
                    fields[name] = mutated(source, [fields[name].encode()]).decode("latin-1")
                case 2 if isinstance(fields[name], int):
                    fields[name] += source.choice((1, -1, *LARGE))
                case _:
                    fields[name] = source.choice(JSON)
        return json.dumps(fields).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # malformed on purpose
        return mutated(source, samples)


def _flip(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    for _ in range(source.choice((1, 1, 2, 8))):
        if data:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return data


def _number(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    layout = source.choice(("<B", "<H", "<I", "<Q", ">H", ">I", ">Q"))
    width = struct.calcsize(layout)
    if len(data) >= width:
        at = source.randrange(len(data) - width + 1)
        data[at : at + width] = struct.pack(layout, source.choice(LARGE) & ((1 << 8 * width) - 1))
    return data


def _cut(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    return data[: source.randrange(len(data) + 1)]


def _leave_out(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    start, stop = _range(source, data)
    del data[start:stop]
    return data


def _repeat(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    start, stop = _range(source, data)
    data[start:start] = data[start:stop] * source.choice((1, 1, 2, 16))
    return data


def _insert(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    at = source.randrange(len(data) + 1)
    data[at:at] = source.choice(HEADS) if source.random() < 0.5 else source.randbytes(source.choice((1, 2, 8, 40)))
    return data


def _overwrite(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    at, new = source.randrange(len(data) + 1), source.choice(HEADS)
    data[at : at + len(new)] = new
    return data


def _splice(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    other = source.choice(samples)
    return data[: source.randrange(len(data) + 1)] + other[source.randrange(len(other) + 1) :]


def _zero(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> bytearray:
    start, stop = _range(source, data)
    data[start:stop] = bytes(stop - start) if source.random() < 0.5 else b"\xff" * (stop - start)
    return data


_MUTATIONS = (
    _flip,
    _flip,
    _flip,
    _number,
    _number,
    _number,
    _cut,
    _leave_out,
    _repeat,
    _insert,
    _overwrite,
    _splice,
    _zero,
)


def _range(source: random.Random, data: bytearray) -> tuple[int, int]:
    start = source.randrange(len(data) + 1)
    return start, min(len(data), start + source.choice((1, 2, 4, 8, 32, 64, 512)))


def _change(source: random.Random, node: Node, samples: Sequence[bytes]) -> Node:
    """Return `node` with one node somewhere inside of it changed, most often deep inside."""
    if type(node) is not list or not node or source.random() < 0.1:
        return _other(source, node, samples)
    lists = [place for place, item in enumerate(node) if type(item) is list]
    place = source.choice(lists) if lists and source.random() < 0.75 else source.randrange(len(node))
    match source.randrange(8):
        case 0:
            return node[:place] + node[place + 1 :]
        case 1:
            return node[:place] + [node[place]] * source.choice((2, 3, 40)) + node[place + 1 :]
        case 2:
            return [*node[:place], source.choice(NODES), *node[place:]]
    return [*node[:place], _change(source, node[place], samples), *node[place + 1 :]]


def _other(source: random.Random, node: Node, samples: Sequence[bytes]) -> Node:
    chance = source.random()
    if chance < 0.15:
        return cbor2.loads(source.choice(samples))
    if chance < 0.6 and type(node) is int:
        return source.choice((node + 1, node - 1, -node, node + (1 << 32), *LARGE))
    if chance < 0.6 and type(node) is bytes and node:
        return bytes(_MUTATIONS[source.randrange(len(_MUTATIONS))](source, bytearray(node), [node]))
    if chance < 0.6 and type(node) is str and node:
        at = source.randrange(len(node))
        return node[:at] + source.choice(("", "/", "~", "\0", "ß", "9", "(", '"')) + node[at + source.randrange(2) :]
    return source.choice(NODES)
