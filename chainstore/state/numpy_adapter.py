"""numpy arrays: every dtype whose items are plain memory, in the order in which they lie.

Only `adapters` loads this module, when a state or a snapshot holds an array.  Exactly `numpy.ndarray` is stored:
subclasses (masked arrays, matrices, memory maps, records) carry more than memory and are refused.

Flags in `shown`: 1 is read-only.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import numpy as np

from chainstore.errors import Malformed
from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.wire import Node
from chainstore.state import nodes
from chainstore.state.leaf import BytesSource, Composite, Dense, Region, Source
from chainstore.state.numpy_memory import HostSource, gather_host, memory_bytes
from chainstore.state.sharing import is_packed, row_major, squeeze_repeats
from chainstore.state.value_codes import Refused
from chainstore.state.values import decode_value, encode_value

READ_ONLY: Final = 1

Array: TypeAlias = "np.ndarray[Any, Any]"

_SHARED: Final = ("bool", "float16", "float32", "float64", "complex64", "complex128")
_INTS: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES: Final = {name: np.dtype(name) for name in _SHARED + _INTS}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@lru_cache(maxsize=1 << 10)
def _dtype_name(dtype: "np.dtype[Any]") -> tuple[str, Node]:
    """Return the dtype of an array's bytes and, where that does not say it all, the dtype as a node.

    Raises:
        Refused: its items are not plain memory.
    """
    name = _NAMES.get(dtype)
    if name is not None and dtype.isnative:
        return name, None
    if dtype.hasobject or dtype.kind == "T":
        raise Refused(f"items of dtype {dtype} are Python objects; hand over array.tolist()")
    if dtype.itemsize == 0:
        raise Refused(f"items of dtype {dtype!r} have no bytes")
    problems: dict[Path, str] = {}
    node = encode_value(dtype, problems=problems)
    for why in problems.values():
        raise Refused(why)
    return f"raw{dtype.itemsize}", node


class NumpyAdapter:
    """The array adapter of numpy."""

    def describe(self, value: object) -> Dense | Composite:
        if type(value) is not np.ndarray:
            raise Refused("a subclass of numpy.ndarray; hand over numpy.asarray(it), or register the type")
        name, dtype = _dtype_name(value.dtype)
        shape, steps, itemsize = value.shape, value.strides, value.dtype.itemsize
        base = squeeze_repeats(shape, steps) if value.size else shape
        ordered = row_major(base, itemsize)
        own = tuple(o if b != s else t for b, s, o, t in zip(base, shape, ordered, steps, strict=True))
        packed = not value.size or is_packed(base, own, itemsize)
        shown = 0 if value.flags.writeable else READ_ONLY
        in_order = not packed or own == ordered or not value.size
        node = _node(shown, dtype, None if in_order else [*own], [*shape] if base != shape else None)
        spec = Spec(name, base)
        source: Source = BytesSource(b"")
        region = None
        address = value.__array_interface__["data"][0]
        if spec.nbytes:
            source = HostSource(Region(address, itemsize, base, steps), spec.nbytes, packed, value)
            region = Region(address, itemsize, shape, steps, "numpy")
        return Dense(node, spec, source, shown, name if dtype is None else dtype, region)

    def outline(self, value: object) -> tuple[object, int] | None:
        return None  # a state holds few of them

    def gather(self, arrays: Sequence[Dense], start: int, nbytes: int) -> Source:
        return gather_host(arrays, start, nbytes)

    def allocate(self, node: Node, spec: Spec, live: object) -> tuple[object, memoryview, bool]:
        _, dtype_node, steps, shape = _parse(node)
        dtype = _dtype(spec.dtype, dtype_node)
        ordered = row_major(spec.shape, dtype.itemsize)
        if steps is not None and not (
            len(steps) == len(spec.shape) and (0 in spec.shape or is_packed(spec.shape, steps, dtype.itemsize))
        ):
            raise Malformed("entry", "strides that leave gaps")
        array, is_live = cast(Array, live), False
        if type(live) is np.ndarray and shape is None and _fits(live, dtype, spec.shape, steps or ordered):
            is_live = True
        elif steps is None or 0 in spec.shape:
            array = np.empty(spec.shape, dtype)
        else:
            array = np.ndarray(spec.shape, dtype, np.empty(spec.nbytes, np.uint8), 0, steps)
        return array, memory_bytes(array.__array_interface__["data"][0], spec.nbytes, array), is_live

    def finish(self, node: Node, memory: object, device: str | None) -> object:
        array = cast(Array, memory)
        shown, _, _, shape = _parse(node)
        if shape is not None:
            repeats = [0 if b == 1 and s > 1 else 1 for s, b in zip(shape, array.shape, strict=False)]
            if len(shape) != array.ndim or squeeze_repeats(shape, repeats) != array.shape:
                raise Malformed("entry", "a shape its bytes do not expand to")
            steps = tuple(step * repeat for step, repeat in zip(array.strides, repeats, strict=True))
            array = np.lib.stride_tricks.as_strided(array, shape, steps)
        return _dress(array, shown)

    def view(self, node: Node, base: object) -> object:
        if type(base) is np.ndarray:
            match node:
                case [nodes.ALIAS, _, _, int(shown)]:
                    return _alias(base, shown)
                case [nodes.ARRAY_VIEW, int(shown), dtype, list(shape), list(steps), int(offset), _]:
                    kind = _dtype(dtype, None) if isinstance(dtype, str) else _dtype("", dtype)
                    return _dress(_on(base, kind, _numbers(shape), _numbers(steps), offset), shown)
        raise Malformed("entry", "not a view of an array")

    def compose(self, node: Node, parts: Mapping[str, object], device: str | None) -> object:
        raise Malformed("entry", "no array consists of parts")

    def overwrite(self, live: object, array: object) -> bool:
        if type(live) is not np.ndarray or type(array) is not np.ndarray or not live.flags.writeable:
            return False
        if live.dtype != array.dtype or live.shape != array.shape:
            return False
        if live is not array:
            np.copyto(live, array)
        return True


def _node(shown: int, dtype: Node, steps: Node, shape: Node) -> Node:
    node: list[Node] = [nodes.ARRAY, shown, dtype, steps, shape]
    while len(node) > 1 and not node[-1]:
        node.pop()
    return node


def _numbers(node: object) -> tuple[int, ...]:
    if not isinstance(node, list) or not all(type(n) is int and abs(n) < 1 << 62 for n in node):
        raise Malformed("entry", "not a list of numbers")
    return tuple(node)


def _parse(node: Node) -> tuple[int, Node, tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return (shown, dtype, strides, expanded shape) of a stored array's node."""
    match node:
        case [nodes.ARRAY, *fields] if len(fields) <= 4:
            shown, dtype, steps, shape = fields + [None] * (4 - len(fields))
            if shown is None or isinstance(shown, int):
                return (
                    shown or 0,
                    dtype,
                    None if steps is None else _numbers(steps),
                    None if shape is None else _numbers(shape),
                )
        case [nodes.ARRAY_STORAGE]:
            return 0, None, None, None
        case [nodes.ARRAY_STORAGE, dtype]:
            return 0, dtype, None, None
    raise Malformed("entry", "not an array")


def _dtype(name: str, node: Node) -> "np.dtype[Any]":
    if node is None:
        found = _DTYPES.get(name)
        if found is not None:
            return found
        if name.startswith("raw"):
            return np.dtype(f"V{int(name[3:])}")  # the storage of views with dtypes of their own
        raise Malformed("entry", f"numpy has no dtype {name!r:.40}")
    dtype = decode_value(node)
    if not isinstance(dtype, np.dtype) or dtype.hasobject or dtype.kind == "T" or not dtype.itemsize:
        raise Malformed("entry", "not a dtype of plain items")
    if name and name != f"raw{dtype.itemsize}":
        raise Malformed("entry", f"a dtype of {dtype.itemsize} bytes over {name!r:.40}")
    return dtype


def _on(base: Array, dtype: "np.dtype[Any]", shape: tuple[int, ...], steps: tuple[int, ...], offset: int) -> Array:
    """Return an array on the memory of `base`, which must contain it."""
    if len(shape) != len(steps) or min(shape, default=0) < 0:
        raise Malformed("entry", "a view of no shape")
    first, end = Region(offset, dtype.itemsize, shape, steps).bounds()
    if first < 0 or end > base.nbytes:
        raise Malformed("entry", "a view beyond its storage")
    return np.ndarray(shape, dtype, base, offset, steps)


def _alias(base: Array, shown: int) -> Array:
    if base.flags.writeable or shown & READ_ONLY or type(base.base) is not np.ndarray:
        return _dress(base.view(), shown)
    owner = base.base  # writable: `_dress` made a read-only view of it
    offset = base.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return _on(owner, base.dtype, base.shape, base.strides, offset)


def _dress(array: Array, shown: int) -> Array:
    if shown & READ_ONLY:
        array = array.view()
        array.flags.writeable = False
    return array


def _fits(live: Array, dtype: "np.dtype[Any]", shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    return bool(
        live.dtype == dtype and live.shape == shape and live.strides == steps and live.flags.writeable and live.size
    )


ADAPTER: Final = NumpyAdapter()
