"""Hypothesis strategies for plain values, nodes, keys and paths: all that the format can hold, the odd corners first.

Needs neither numpy nor torch; their values are in `library_values`.
"""

import struct
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, timedelta, timezone
from pathlib import PurePosixPath, PureWindowsPath
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from chainstore.model.keys import Attr, Key, Path
from chainstore.model.wire import Node

_ZONES = ("UTC", "Europe/Zurich", "America/Argentina/Ushuaia", "Etc/GMT+12")
_FACTORIES = (None, int, float, list, dict, set, str, bool)


def floats() -> SearchStrategy[float]:
    """All floats, NaNs with any payload, -0.0 and subnormal ones included."""
    return st.floats() | st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0])


def integers() -> SearchStrategy[int]:
    """Ints of any size, those around the limits of 64 and 128 bits often."""
    edges = [sign * (1 << bits) + step for sign in (1, -1) for bits in (8, 32, 63, 64, 128) for step in (-1, 0, 1)]
    return st.integers() | st.sampled_from(edges) | st.integers(-(1 << 600), 1 << 600)


def texts(max_size: int = 20) -> SearchStrategy[str]:
    """Any str, halves of surrogate pairs (file names that are not UTF-8) included."""
    return st.text(max_size=max_size) | st.text(st.characters(categories=["Cs", "L"]), max_size=max_size)


def zones() -> SearchStrategy[Any]:
    """Time zones: none, offsets with and without names, keys of the time zone database."""
    offsets = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))
    fixed = st.builds(timezone, offsets) | st.builds(timezone, offsets, texts(5))
    return st.none() | st.just(UTC) | fixed | st.sampled_from(_ZONES).map(ZoneInfo)


def scalars() -> SearchStrategy[Any]:
    """Plain values of the standard library that hold no others."""
    return st.one_of(
        st.none() | st.booleans() | integers() | floats() | texts(),
        st.binary(max_size=20) | st.binary(max_size=20).map(bytearray),
        st.builds(complex, floats(), floats()),
        st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)) | st.just(...),
        st.datetimes(timezones=zones(), allow_imaginary=True) | st.dates() | st.times(timezones=zones()),
        st.timedeltas() | zones(),
        st.decimals() | st.decimals(places=3) | st.fractions() | st.uuids(),
        st.builds(PurePosixPath, texts().filter(lambda text: "\0" not in text))
        | st.builds(PureWindowsPath, st.sampled_from(["", "c:", "c:\\", "\\\\host\\share\\"]), st.text("ab.\\")),
        st.integers(0, 5).map(Random),
    )


def hashable_values() -> SearchStrategy[Any]:
    """Plain values that can be keys: scalars, tuples and frozensets."""
    return _HASHABLE


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:  # a bytearray, a signaling NaN of Decimal
        return False
    return True


_HASHABLE: SearchStrategy[Any] = st.deferred(  # deferred: Hypothesis prints strategies, and these are long
    lambda: st.recursive(
        scalars().filter(_is_hashable),
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
        max_leaves=4,
    )
)


def plain_values(*, also: SearchStrategy[Any] | None = None, max_leaves: int = 12) -> SearchStrategy[Any]:
    """Every plain value that needs no library: scalars and all containers of them, nested.

    Args:
        also: more leaves, for example `library_values.library_values()`.
    """
    return st.deferred(lambda: _plain_values(scalars() if also is None else scalars() | also, max_leaves))


def _plain_values(leaves: SearchStrategy[Any], max_leaves: int) -> SearchStrategy[Any]:
    runs = st.lists(floats(), max_size=50) | st.lists(integers(), max_size=50) | st.lists(texts(), max_size=50)
    return st.recursive(leaves | runs | runs.map(tuple), _containers, max_leaves=max_leaves)


def _containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    sequences = st.lists(inner, max_size=4)
    pairs = st.lists(st.tuples(hashable_values(), inner), max_size=4)
    sets = st.sets(hashable_values(), max_size=4)
    return st.one_of(
        sequences | sequences.map(tuple) | st.builds(_deque, sequences, st.none() | st.integers(0, 3)),
        pairs.map(dict) | pairs.map(OrderedDict) | pairs.map(_counter) | st.builds(_ordered_dict, pairs, inner),
        st.builds(lambda factory, items: defaultdict(factory, items), st.sampled_from(_FACTORIES), pairs),
        sets | sets.map(frozenset) | st.builds(slice, inner, inner, inner),
    )


def _deque(items: list[Any], more: int | None) -> "deque[Any]":
    return deque(items, None if more is None else len(items) + more)


def _counter(pairs: list[tuple[Any, Any]]) -> "Counter[Any]":
    counter: Counter[Any] = Counter()
    dict.update(counter, pairs)
    return counter


def _ordered_dict(pairs: list[tuple[Any, Any]], metadata: Any) -> "OrderedDict[Any, Any]":
    value = OrderedDict(pairs)
    value._metadata = metadata  # type: ignore[attr-defined]
    return value


def nodes(*, max_leaves: int = 30) -> SearchStrategy[Node]:
    """Any node at all, whether it means something or not; lists often begin with a small int, as codes do."""
    leaves = st.none() | st.booleans() | integers() | st.text(max_size=8) | st.binary(max_size=16)

    def lists(inner: SearchStrategy[Node]) -> SearchStrategy[Node]:
        items = st.lists(inner, max_size=6)
        return items | st.builds(lambda code, rest: [code, *rest], st.integers(0, 90), items)

    return st.recursive(leaves, lists, max_leaves=max_leaves)


def keys() -> SearchStrategy[Key]:
    """Any key of a path; strings that look like other types often."""
    tricky = [
        "",
        "0",
        "-1",
        "True",
        "None",
        "1.0",
        "1e5",
        "nan",
        "inf",
        "a/b",
        "*",
        "**",
        "@x",
        '"',
        "'",
        "\\",
        "(1,)",
        "b'x'",
    ]
    plain = st.one_of(
        texts() | st.sampled_from(tricky) | st.text("0123456789.eE+-_x", max_size=6),
        integers() | st.booleans() | st.none() | floats() | st.binary(max_size=8),
        texts().map(Attr),
    )
    return st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def paths() -> SearchStrategy[Path]:
    """Any path, the empty one included."""
    return st.lists(keys(), max_size=5).map(tuple)
