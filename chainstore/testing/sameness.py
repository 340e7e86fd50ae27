"""Whether two values are the same in every respect that a snapshot keeps; stricter than ==.

Independent of how values are stored, so that it can judge that.
"""

import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime, time
from decimal import Decimal
from random import Random
from typing import Any


def same_value(a: object, b: object) -> bool:
    """Return whether `a` and `b` have the same types, bits, order and keys, all the way down.

    1, True and 1.0 differ, as do 0.0 and -0.0; a NaN is the same as a NaN with the same bits.
    """
    return _traits(a) == _traits(b)


def _traits(value: object) -> object:
    """Return a value that is equal for two objects exactly when they are the same."""
    kind = type(value)
    return (kind.__module__, kind.__qualname__, _content(value))


def _content(value: object) -> object:
    match value:
        case float():
            return struct.pack("<d", value)
        case complex():
            return struct.pack("<dd", value.real, value.imag)
        case Mapping():
            return _mapping(value)
        case deque():
            return (value.maxlen, _each(value))
        case list() | tuple():
            return _each(value)
        case set() | frozenset():
            return sorted(_each(value), key=repr)
        case slice():
            return _each((value.start, value.stop, value.step))
        case datetime() | time():
            return (repr(value), value.fold)
        case Random():
            return value.getstate()
        case Decimal() | range():  # equal to others that are not the same
            return repr(value)
    return _numpy_scalar(value) if hasattr(value, "tobytes") else value


def _numpy_scalar(value: Any) -> object:
    # the padding of a long double may hold anything
    return (repr(value.dtype), repr(value) if value.dtype.char in "gG" else value.tobytes())


def _each(values: Iterable[object]) -> list[object]:
    return [_traits(value) for value in values]


def _mapping(value: Mapping[object, object]) -> object:
    factory = value.default_factory if isinstance(value, defaultdict) else None
    attributes = _each(vars(value).items()) if isinstance(value, OrderedDict) else None
    return (factory, attributes, _each(value.items()))
