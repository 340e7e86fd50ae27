"""How numbers, times and tables are written for people.

>>> size(9_980_000), count(3, "commit"), duration(0.0042), shape((3, 4))
('9.98 MB', '3 commits', '4.2 ms', '3 x 4')
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from chainstore.display import count as count
from chainstore.display import size as size

_AGES = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "days"), (math.inf, 0, ""))
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_BLOCK = 64  # rows that are read before the first is printed, so that columns line up


def duration(seconds: float) -> str:
    """Return seconds with two digits that matter: `4.2 ms`, `1.3 s`, `2 min 05 s`, `3 h 12 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"


def age(then: datetime, now: datetime) -> str:
    """Return how long ago something was, `2 h ago`; the date once that is longer than two months."""
    seconds = (now - then).total_seconds()
    if seconds < 0:
        return f"{then:%Y-%m-%d %H:%M}"
    for limit, unit, name in _AGES:
        if seconds < limit and unit:
            whole = int(seconds // unit)
            return f"{whole} {name.removesuffix('s') if whole == 1 and name == 'days' else name} ago"
    return f"{then:%Y-%m-%d}"


def moment(then: datetime) -> str:
    """Return a time as people write it, to the second, UTC."""
    return f"{then:%Y-%m-%d %H:%M:%S} UTC"


def number(value: float) -> str:
    """Return a metric: six digits that matter, whole numbers without a point."""
    return f"{value:.6g}"


def shape(dims: Sequence[int]) -> str:
    """Return a shape: `3 x 4`, `scalar`."""
    return " x ".join(map(str, dims)) if dims else "scalar"


def first_line(text: str, limit: int = 72) -> str:
    """Return the first line of a message, cut where it is long; nothing in it can move the cursor."""
    line = printable(text.partition("\n")[0])
    return line if len(line) <= limit else line[: limit - 3] + "..."


def printable(text: str) -> str:
    """Return text with everything escaped that a terminal would act upon; new lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def table(rows: Iterable[Sequence[str]], indent: str = "") -> Iterator[str]:
    """Yield rows as lines with their columns below each other; widths only grow, and rows are read in blocks.

    The last cell of a row is not padded; colour takes no room.
    """
    widths: list[int] = []
    source = iter(rows)
    while block := list(islice(source, _BLOCK)):
        for row in block:
            widths += [0] * (len(row) - len(widths))
            widths[: len(row)] = map(max, widths, map(_width, row))
        for row in block:
            cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False))
            yield indent + "  ".join(cells).rstrip()


def _width(cell: str) -> int:
    return len(_COLOR.sub("", cell)) if "\x1b" in cell else len(cell)
