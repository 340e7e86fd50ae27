"""Plain values of the standard library that hold no others: how each is taken apart and put together again.

`ENCODERS` maps exact types to functions that return a node or raise `Refused`; `DECODERS` maps codes to functions
that take what follows the code and raise ValueError, TypeError, OverflowError or ArithmeticError on anything that
no encoder makes.
"""

import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from random import Random
from types import EllipsisType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from chainstore.errors import Malformed, Unsupported
from chainstore.model.keys import decode_text, encode_text
from chainstore.model.wire import Node
from chainstore.state import value_codes as codes
from chainstore.state.value_codes import Refused

_RANDOM_WORDS = 625  # of the Mersenne twister: 624 and the position
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")  # never a path out of the time zone database
_PATHS = {kind.__name__: kind for kind in (PurePosixPath, PureWindowsPath, type(PurePosixPath()))}
_FOREIGN_PATHS = {"PosixPath": PurePosixPath, "WindowsPath": PureWindowsPath}


def encode_float(value: float) -> Node:
    return [codes.FLOAT, struct.pack("<d", value)]


def decode_float(body: list[Node]) -> float:
    (raw,) = body
    value: float = struct.unpack("<d", _raw(raw))[0]
    return value


def _encode_complex(value: complex) -> Node:
    return [codes.COMPLEX, struct.pack("<dd", value.real, value.imag)]


def _decode_complex(body: list[Node]) -> complex:
    (raw,) = body
    return complex(*struct.unpack("<dd", _raw(raw)))


def _decode_str(body: list[Node]) -> str:
    (raw,) = body
    return decode_text(_raw(raw))


def _decode_bytearray(body: list[Node]) -> bytearray:
    (raw,) = body
    return bytearray(_raw(raw))


def _encode_range(value: range) -> Node:
    return [codes.RANGE, value.start, value.stop, value.step]


def _decode_range(body: list[Node]) -> range:
    start, stop, step = _ints(body)
    return range(start, stop, step)


def _decode_ellipsis(body: list[Node]) -> EllipsisType:
    () = body
    return ...


# ---- dates and times


def _encode_datetime(value: datetime) -> Node:
    day = [value.year, value.month, value.day]
    return [codes.DATETIME, *day, *_clock(value)]


def _clock(value: datetime | time) -> list[Node]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, _encode_zone(value.tzinfo)]


def _decode_datetime(body: list[Node]) -> datetime:
    *numbers, fold, zone = body
    year, month, day, hour, minute, second, microsecond = _ints(numbers)
    zone_info = _decode_zone(zone)
    return datetime(year, month, day, hour, minute, second, microsecond, zone_info, fold=_int(fold))


def _encode_time(value: time) -> Node:
    return [codes.TIME, *_clock(value)]


def _decode_time(body: list[Node]) -> time:
    *numbers, fold, zone = body
    hour, minute, second, microsecond = _ints(numbers)
    return time(hour, minute, second, microsecond, _decode_zone(zone), fold=_int(fold))


def _encode_date(value: date) -> Node:
    return [codes.DATE, value.year, value.month, value.day]


def _decode_date(body: list[Node]) -> date:
    year, month, day = _ints(body)
    return date(year, month, day)


def _encode_timedelta(value: timedelta) -> Node:
    return [codes.TIMEDELTA, value.days, value.seconds, value.microseconds]


def _decode_timedelta(body: list[Node]) -> timedelta:
    days, seconds, microseconds = _ints(body)
    value = timedelta(days, seconds, microseconds)
    _same([value.days, value.seconds, value.microseconds], body)
    return value


def _encode_zone(zone: tzinfo | None) -> Node:
    if zone is None:
        return None
    if type(zone) is timezone:
        return _encode_timezone(zone)
    if type(zone) is ZoneInfo:
        return _encode_zone_info(zone)
    raise Refused(f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}; use zoneinfo or an offset")


def _decode_zone(node: Node) -> tzinfo | None:
    match node:
        case None:
            return None
        case [codes.TIMEZONE, *body]:
            return _decode_timezone(body)
        case [codes.ZONE_INFO, *body]:
            return _decode_zone_info(body)
    raise ValueError("no time zone")


def _encode_timezone(value: timezone) -> Node:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    return [codes.TIMEZONE, offset.days, offset.seconds, offset.microseconds, encode_text(name[0]) if name else None]


def _decode_timezone(body: list[Node]) -> timezone:
    *numbers, name = body
    offset = _decode_timedelta(numbers)
    return timezone(offset) if name is None else timezone(offset, _text(name))


def _encode_zone_info(value: ZoneInfo) -> Node:
    if value.key is None or not _ZONE_KEY.fullmatch(value.key):
        raise Refused(f"its time zone {value.key!r} has no key of the time zone database")
    return [codes.ZONE_INFO, value.key]


def _decode_zone_info(body: list[Node]) -> ZoneInfo:
    (key,) = body
    if not isinstance(key, str) or not _ZONE_KEY.fullmatch(key):
        raise ValueError("no key of a time zone")
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the key is a folder, or too long
        raise Unsupported(
            f"this snapshot holds a time in the zone {key!r:.80}, which this machine does not know",
            hint="install the time zone database: `pip install tzdata`",
        ) from error


# ---- numbers, names, generators


def _encode_decimal(value: Decimal) -> Node:
    return [codes.DECIMAL, str(value)]


def _decode_decimal(body: list[Node]) -> Decimal:
    (text,) = body
    value = Decimal(_text(text))
    _same(str(value), text)
    return value


def _encode_fraction(value: Fraction) -> Node:
    return [codes.FRACTION, value.numerator, value.denominator]


def _decode_fraction(body: list[Node]) -> Fraction:
    numerator, denominator = _ints(body)
    value = Fraction(numerator, denominator)
    _same([value.numerator, value.denominator], body)
    return value


def _encode_uuid(value: UUID) -> Node:
    return [codes.UUID, value.bytes]


def _decode_uuid(body: list[Node]) -> UUID:
    (raw,) = body
    return UUID(bytes=_raw(raw))


def _encode_path(value: PurePath) -> Node:
    return [codes.PATH, type(value).__name__, encode_text(str(value))]


def _decode_path(body: list[Node]) -> PurePath:
    """Return the path; one that belongs to another operating system comes back as its pure class."""
    name, text = body
    kind = _PATHS.get(_text(name)) or _FOREIGN_PATHS[_text(name)]
    value = kind(_text(text))
    _same(str(value), _text(text))
    return value


def _encode_random(value: Random) -> Node:
    version, words, gauss = value.getstate()
    return [codes.RANDOM, version, None if gauss is None else encode_float(gauss), *words]


def _decode_random(body: list[Node]) -> Random:
    version, gauss, *words = body
    if version != 3 or len(words) != _RANDOM_WORDS or not all(0 <= word < 1 << 32 for word in _ints(words)):
        raise ValueError("no state of random.Random")
    value = Random(0)
    value.setstate((3, tuple(words), None if gauss is None else _decode_gauss(gauss)))
    return value


def _decode_gauss(node: Node) -> float:
    match node:
        case [codes.FLOAT, *body]:
            return decode_float(body)
    raise ValueError("no float")


# ---- checks: what they raise becomes Malformed


def _int(node: Node) -> int:
    if type(node) is not int:
        raise TypeError("an int was expected")
    return node


def _ints(nodes: list[Node]) -> list[int]:
    return [_int(node) for node in nodes]


def _raw(node: Node) -> bytes:
    if type(node) is not bytes:
        raise TypeError("bytes were expected")
    return node


def _text(node: Node) -> str:
    match node:
        case str(text):
            return text
        case [codes.TEXT, bytes(raw)]:
            return decode_text(raw)
    raise TypeError("text was expected")


def _same(value: object, stored: object) -> None:
    if value != stored:
        raise ValueError("not in its normal form")


ENCODERS: dict[type, Callable[[Any], Node]] = {
    float: encode_float,
    complex: _encode_complex,
    str: encode_text,
    bytearray: lambda value: [codes.BYTEARRAY, bytes(value)],
    range: _encode_range,
    EllipsisType: lambda value: [codes.ELLIPSIS],
    datetime: _encode_datetime,
    date: _encode_date,
    time: _encode_time,
    timedelta: _encode_timedelta,
    timezone: _encode_timezone,
    ZoneInfo: _encode_zone_info,
    Decimal: _encode_decimal,
    Fraction: _encode_fraction,
    UUID: _encode_uuid,
    **dict.fromkeys((PurePosixPath, PureWindowsPath, PosixPath, WindowsPath), _encode_path),
    Random: _encode_random,
}

DECODERS: dict[int, Callable[[list[Node]], object]] = {
    codes.FLOAT: decode_float,
    codes.COMPLEX: _decode_complex,
    codes.TEXT: _decode_str,
    codes.BYTEARRAY: _decode_bytearray,
    codes.RANGE: _decode_range,
    codes.ELLIPSIS: _decode_ellipsis,
    codes.DATETIME: _decode_datetime,
    codes.DATE: _decode_date,
    codes.TIME: _decode_time,
    codes.TIMEDELTA: _decode_timedelta,
    codes.TIMEZONE: _decode_timezone,
    codes.ZONE_INFO: _decode_zone_info,
    codes.DECIMAL: _decode_decimal,
    codes.FRACTION: _decode_fraction,
    codes.UUID: _decode_uuid,
    codes.PATH: _decode_path,
    codes.RANDOM: _decode_random,
}


def decode_leaf(decoder: Callable[[list[Node]], object], body: list[Node], what: str) -> object:
    """Return `decoder(body)`, with what it raises on a hostile body turned into Malformed."""
    try:
        return decoder(body)
    except (ValueError, TypeError, OverflowError, ArithmeticError, LookupError, struct.error) as error:
        if isinstance(error, (Malformed, Unsupported)):
            raise
        raise Malformed(what, str(error)) from error
