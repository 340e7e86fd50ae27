"""A chart in the terminal: how much a repository holds, and how much it takes, commit by commit.

The full column is what is stored, the light one above it what it would be in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chainstore.cli.wording import size

HEIGHT = 12
MIN_WIDTH, MAX_WIDTH = 8, 100


@dataclass(frozen=True, slots=True)
class Ink:
    """What a chart is drawn with.

    Attributes:
        stored: parts of a column, from nothing to a whole cell.  logical: a cell above it.
        corner, line, tick: of the frame.
    """

    stored: str
    logical: str
    corner: str
    line: str
    tick: str


UNICODE = Ink(" ▁▂▃▄▅▆▇█", "░", "└", "─", "┤")
ASCII = Ink(" #", ".", "+", "-", "|")


def ink_for(encoding: str | None) -> Ink:
    """Return what a stream of this encoding can show."""
    signs = UNICODE.stored + UNICODE.logical + UNICODE.corner + UNICODE.line + UNICODE.tick
    try:
        signs.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def draw(
    points: Sequence[tuple[int, int]], width: int, ink: Ink, paint: Callable[[str, str], str], ends: tuple[str, str]
) -> Iterator[str]:
    """Yield the lines of a chart.

    Args:
        points: (logical, stored) bytes up to each commit, oldest first; one at least.
        width: columns of the terminal.
        paint: (text, "stored" or "logical") -> text as it is to be printed.
        ends: what the first and the last commit are called.
    """
    top = max(max(logical, stored) for logical, stored in points) or 1
    labels = {0: size(top), HEIGHT // 2: size(top / 2), HEIGHT - 1: "0 B"}
    margin = max(map(len, labels.values()))
    columns = min(max(width - margin - 2, MIN_WIDTH), MAX_WIDTH)
    sampled = [points[-(-(column + 1) * len(points) // columns) - 1] for column in range(columns)]
    for row in range(HEIGHT):
        floor = (HEIGHT - 1 - row) * top / HEIGHT
        cells = [_cell(logical, stored, floor, top / HEIGHT, ink) for logical, stored in sampled]
        yield f"{labels.get(row, ''):>{margin}} {ink.tick}" + _painted(cells, ink, paint)
    yield " " * margin + f" {ink.corner}" + ink.line * columns
    first, last = ends
    gap = columns - len(first) - len(last)
    yield " " * (margin + 2) + (first + " " * gap + last if gap > 0 else last[-columns:])


def _cell(logical: int, stored: int, floor: float, height: float, ink: Ink) -> str:
    """Return what stands in the cell that begins at `floor` bytes and is `height` bytes high."""
    full = len(ink.stored) - 1
    part = round((stored - floor) / height * full)
    if part >= 1 or (stored > 0 and floor == 0):
        return ink.stored[min(max(part, 1), full)]
    return ink.logical if logical - floor >= height / 2 or (logical > floor == 0) else " "


def _painted(cells: Sequence[str], ink: Ink, paint: Callable[[str, str], str]) -> str:
    """Return cells in one line, painted in runs."""
    line = ""
    at = 0
    while at < len(cells):
        kind = _kind(cells[at], ink)
        end = at
        while end < len(cells) and _kind(cells[end], ink) == kind:
            end += 1
        run = "".join(cells[at:end])
        line += paint(run, kind) if kind else run
        at = end
    return line.rstrip()


def _kind(cell: str, ink: Ink) -> str:
    return "" if cell == " " else "logical" if cell == ink.logical else "stored"
