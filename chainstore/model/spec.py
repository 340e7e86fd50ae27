"""Specs: the dtype and shape of an array's stored bytes, without torch or numpy.

dtypes carry torch's names.  What only numpy knows (longdouble, `<U5`, structured records, foreign byte orders) is
stored as raw items of a fixed size, "raw20"; the entry's node then says what the items are.

    >>> Spec("bfloat16", (3, 4)).nbytes
    24
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Literal

from chainstore.errors import Malformed, Unsupported
from chainstore.model.wire import Node

Kind = Literal["float", "complex", "int", "uint", "bool", "bits"]

MAX_NBYTES = 1 << 62  # an array's bytes fit a signed 64-bit offset with room to add
MAX_DIMENSIONS = 64  # of both numpy and torch
_RAW = re.compile(r"raw([1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class Dtype:
    """What one item of an array is: `itemsize` bytes of a `kind`.

    Packed types (uint4, float4_e2m1fn_x2, bits4x2...) count bytes, as torch does: one item is one byte.
    """

    name: str
    itemsize: int
    kind: Kind


def _table() -> dict[str, Dtype]:
    sizes: dict[Kind, dict[int, str]] = {
        "bool": {1: "bool"},
        "uint": {
            1: "uint8 uint1 uint2 uint3 uint4 uint5 uint6 uint7 quint8 quint4x2 quint2x4",
            2: "uint16",
            4: "uint32",
            8: "uint64",
        },
        "int": {1: "int8 int1 int2 int3 int4 int5 int6 int7 qint8", 2: "int16", 4: "int32 qint32", 8: "int64"},
        "float": {
            1: "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
            2: "float16 bfloat16",
            4: "float32",
            8: "float64",
        },
        "complex": {4: "complex32", 8: "complex64", 16: "complex128"},
        "bits": {1: "bits8 bits1x8 bits2x4 bits4x2", 2: "bits16"},
    }
    return {
        name: Dtype(name, itemsize, kind)
        for kind, names in sizes.items()
        for itemsize, text in names.items()
        for name in text.split()
    }


DTYPES: Mapping[str, Dtype] = MappingProxyType(_table())


def find_dtype(name: str) -> Dtype:
    """Return what a dtype name stands for, "raw<itemsize>" included.

    Raises:
        Unsupported: this version knows no dtype of that name.
    """
    found = DTYPES.get(name)
    if found is not None:
        return found
    raw = _RAW.fullmatch(name)
    if raw is None:
        raise Unsupported(f"unknown dtype {name[:40]!r}")
    return Dtype(name, int(raw[1]), "bits")


@dataclass(frozen=True, slots=True)
class Spec:
    """The dtype and shape of an array as it is stored.

    Attributes:
        dtype: a name in `DTYPES`, or "raw<itemsize>".
        shape: sizes of the dimensions; () for a single item.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
        return find_dtype(self.dtype).itemsize

    @property
    def kind(self) -> Kind:
        return find_dtype(self.dtype).kind

    @property
    def count(self) -> int:
        """Number of items."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * find_dtype(self.dtype).itemsize


def spec_node(spec: Spec) -> Node:
    """Return the encodable form of a spec: [dtype, size of each dimension...]."""
    return [spec.dtype, *spec.shape]


def spec_from_node(node: Node) -> Spec:
    """Return the spec a node stands for.

    Raises:
        Malformed: it is no spec, or its array would not fit an address space.
        Unsupported: its dtype is of a newer version.
    """
    match node:
        case [str(dtype), *shape] if len(shape) <= MAX_DIMENSIONS and all(
            type(size) is int and 0 <= size <= MAX_NBYTES for size in shape
        ):
            spec = Spec(dtype, tuple(shape))  # type: ignore[arg-type]  # checked above
            # Zeros do not excuse the other sizes: strides are computed from them.
            if prod(size or 1 for size in spec.shape) * spec.itemsize <= MAX_NBYTES:
                return spec
    raise Malformed("spec", "not a dtype and a shape")
