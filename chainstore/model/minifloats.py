"""Floats of one byte: what each of the 256 codes stands for, from the definition of its format.

A code is sign | exponent | fraction.  It stands for (-1)^sign * 2^(exponent - bias) * 1.fraction, or with exponent 0
for (-1)^sign * 2^(1 - bias) * 0.fraction.  `fn` formats have no infinities; `fnuz` ones also no negative zero, whose
code is their only NaN.

    >>> minifloat_values("float8_e4m3fn")[0x7E], minifloat_values("float8_e8m0fnu")[0]
    (448.0, 5.877471754111438e-39)

Source: OCP 8-bit Floating Point Specification 1.0 (e4m3fn, e5m2), OCP Microscaling Formats 1.0 (e8m0), and for fnuz
Noune et al., "8-bit Numerical Formats for Deep Neural Networks", 2022.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class _Format:
    fraction_bits: int
    bias: int
    nans: frozenset[int]  # codes without their sign; the whole code in fnuz formats
    infinity: int | None = None  # code without its sign
    unsigned_zero: bool = False


_FORMATS: Mapping[str, _Format] = MappingProxyType(
    {
        "float8_e4m3fn": _Format(3, 7, frozenset({0x7F})),
        "float8_e5m2": _Format(2, 15, frozenset({0x7D, 0x7E, 0x7F}), infinity=0x7C),
        "float8_e4m3fnuz": _Format(3, 8, frozenset({0x80}), unsigned_zero=True),
        "float8_e5m2fnuz": _Format(2, 16, frozenset({0x80}), unsigned_zero=True),
    }
)
_SCALE = "float8_e8m0fnu"  # an exponent alone: no sign, no fraction, no zero
MINIFLOATS = frozenset({*_FORMATS, _SCALE})


def minifloat_values(name: str) -> tuple[float, ...]:
    """Return the values of codes 0 to 255 of a dtype in `MINIFLOATS`; all are exact in a Python float."""
    if name == _SCALE:
        return (*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan)
    return tuple(_value(code, _FORMATS[name]) for code in range(256))


def _value(code: int, format: _Format) -> float:
    body = code & 0x7F
    if (code if format.unsigned_zero else body) in format.nans:
        return math.nan
    if body == format.infinity:
        return math.inf if code == body else -math.inf
    exponent, fraction = body >> format.fraction_bits, body & ((1 << format.fraction_bits) - 1)
    whole = 1 << format.fraction_bits if exponent else 0
    size = math.ldexp(whole + fraction, max(exponent, 1) - format.bias - format.fraction_bits)
    return size if code == body else -size
