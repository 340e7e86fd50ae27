"""The graph beside a log: lines from each commit down to its parents.

    *    merge
    |\\
    | *  on a branch
    * |  on another
    |/
    *    where they parted
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from chainstore.ids import ObjectId
from chainstore.model.commit import Commit


@dataclass(frozen=True, slots=True)
class Drawn:
    """What stands left of one commit.

    Attributes:
        node: before its line.  bars: before further lines of it.  links: lines between it and the next commit.
    """

    node: str
    bars: str
    links: tuple[str, ...]


def in_order(commits: Sequence[Commit]) -> list[Commit]:
    """Return commits, none before a child of its that is among them, else in the order they came in."""
    place = {commit.id: at for at, commit in enumerate(commits)}
    children = dict.fromkeys(place, 0)
    for commit in commits:
        for parent in set(commit.parents):
            if parent in children:
                children[parent] += 1
    ready = [place[id] for id, count in children.items() if not count]
    ordered = []
    while ready:
        commit = commits[heappop(ready)]
        ordered.append(commit)
        for parent in set(commit.parents):
            if parent in children:
                children[parent] -= 1
                if not children[parent]:
                    heappush(ready, place[parent])
    return ordered


def draw(commits: Sequence[Commit]) -> Iterator[Drawn]:
    """Yield what stands left of each of `commits`, which are `in_order`; parents that are not among them end a line."""
    shown = {commit.id for commit in commits}
    awaited: list[ObjectId] = []
    for commit in commits:
        if commit.id not in awaited:
            awaited.append(commit.id)
        at = awaited.index(commit.id)
        node = " ".join("*" if column == at else "|" for column in range(len(awaited)))
        parents = [parent for parent in dict.fromkeys(commit.parents) if parent in shown]
        links = _go_on(awaited, at, parents)
        bars = " ".join("|" if column != at or parents else " " for column in range(len(node) // 2 + 1))
        yield Drawn(node, bars, links)


def _go_on(awaited: list[ObjectId], at: int, parents: Sequence[ObjectId]) -> tuple[str, ...]:
    """Put the parents of the commit in column `at` in its place, and return the lines that draw it."""
    links = []
    if not parents:
        if at < len(awaited) - 1:
            links.append(_closing(len(awaited), at, at, ends=True))
        del awaited[at]
        return tuple(links)
    awaited[at] = parents[0]
    for parent in parents[1:]:
        links.append(_opening(len(awaited), at))
        awaited.insert(at + 1, parent)
    while len(set(awaited)) < len(awaited):
        high = next(column for column, id in enumerate(awaited) if id in awaited[:column])
        links.append(_closing(len(awaited), awaited.index(awaited[high]), high))
        del awaited[high]
    return tuple(links)


def _opening(columns: int, at: int) -> str:
    """Draw a new column right of `at`: `| |\\ \\`."""
    row = [" "] * (2 * columns)
    for column in range(columns):
        if column <= at:
            row[2 * column] = "|"
        if column >= at:
            row[2 * column + 1] = "\\"
    return "".join(row).rstrip()


def _closing(columns: int, low: int, high: int, *, ends: bool = False) -> str:
    """Draw how column `high` goes over into `low`, and those right of it move up: `|_|/ /`."""
    row = [" "] * (2 * columns)
    for column in range(columns):
        if column < high:
            row[2 * column] = "|"
        elif column > high or not ends:
            row[2 * column - 1] = "/"
    for column in range(low + 1, high):
        row[2 * column - 1] = "_"
    return "".join(row).rstrip()
