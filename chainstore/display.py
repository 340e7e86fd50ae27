"""How values show themselves to people: sizes and counts in words, and small HTML tables for notebooks.

Whatever goes into a table is escaped: messages, paths and file names come from anywhere.

    >>> size(9_980_000), count(3, "commit")
    ('9.98 MB', '3 commits')
    >>> table("a < b", [("step", 7)])
    '<table><caption>a &lt; b</caption><tbody><tr><th>step</th><td>7</td></tr></tbody></table>'
"""

from collections.abc import Iterable, Sequence
from html import escape

_UNITS = ("B", "kB", "MB", "GB", "TB")
_MAX_TEXT = 200  # characters of one cell


def size(nbytes: float) -> str:
    """Return a number of bytes in decimal units, as disks are sold."""
    for unit in _UNITS[:-1]:
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.0f} {_UNITS[-1]}" if nbytes >= 999.5 else f"{nbytes:.3g} {_UNITS[-1]}"


def count(number: int, noun: str) -> str:
    """Return `3 commits`, `1 commit`, `2 branches`."""
    plural = "es" if noun.endswith(("ch", "x", "s")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else plural)


def some(texts: Sequence[str], most: int = 5) -> str:
    """Return the first of some texts, and how many more there are: `a, b and 7 more`."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most:,} more" if len(texts) > most else "")


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return an HTML table; the first cell of each row names it.

    Args:
        head: names of the columns; none for a table of names and values.
    """
    names = f"<thead><tr>{''.join(f'<th>{_cell(name)}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(
        f"<tr><th>{_cell(first)}</th>{''.join(f'<td>{_cell(value)}</td>' for value in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table><caption>{_cell(title)}</caption>{names}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    """Return a value as HTML text: escaped, not too long, and nothing in it that UTF-8 cannot say."""
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return escape(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "...")
