"""Spans: lengths of time as text that says exactly what it said before.

The units are those of every duration that chainstore takes; a policy is stored as text, and must mean the same to the
microsecond when it is read again.

>>> format_span(timedelta(days=1, hours=12)), parse_span("90m") == timedelta(hours=1.5)
('1d12h', True)
"""

import re
from datetime import timedelta

from chainstore.errors import InvalidInput

_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|min|sec|m|s|h|d|w)")
_MICROSECONDS = {
    "ms": 1000,
    **dict.fromkeys(("s", "sec"), 10**6),
    **dict.fromkeys(("m", "min"), 60 * 10**6),
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 604800 * 10**6,
}
_WRITTEN = ("d", "h", "m")


def format_span(span: timedelta) -> str:
    """Return a length of time such as `1d12h`, `90m`, `2.5s`."""
    left = span // timedelta(microseconds=1)
    text = ""
    for unit in _WRITTEN:
        whole, left = divmod(left, _MICROSECONDS[unit])
        text += f"{whole}{unit}" if whole else ""
    seconds = f"{left // 10**6}.{left % 10**6:06}".rstrip("0").rstrip(".")
    return f"{text}{seconds}s" if left or not text else text


def parse_span(text: str) -> timedelta:
    """Return the length of time that text such as `12h`, `1h30m`, `2w` says.

    Raises:
        InvalidInput: it says none, or one too long for any calendar.
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInput(f"{text!r} is no length of time", hint='write text such as "30m", "12h", "2w"')
    try:
        return sum((_part(number, unit) for number, unit in parts), timedelta())
    except OverflowError:
        raise InvalidInput(f"{text!r} is too long") from None


def _part(number: str, unit: str) -> timedelta:
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction.ljust(6, "0")) * _MICROSECONDS[unit]  # in millionths of a microsecond
    return timedelta(microseconds=scaled // 10**6)
