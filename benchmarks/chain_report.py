"""What a run of `benchmarks.chains` found: kept as JSON, shown as tables."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchmarks.report import Unusable, size

SCHEMA = "chainstore.chains/1"
OURS = "chainstore"
GB = 1e9


@dataclass(frozen=True, slots=True)
class Storing:
    """How one peer stored one chain.

    Attributes:
        peer: "chainstore CODEC", a rule, torch.save, a backup program.
        ours: whether it is chainstore.
        raw_bytes: of all states.  first_bytes: of the first of them.
        stored_bytes: after each state, of everything that is needed for those so far; of a repository these are
            records, of a rule what it compressed, of torch.save a file each, of a backup program by what its
            repository grew.
        disk_bytes: what the repository takes at the end, in whole blocks; None where there is none.
        delta_share: of the bytes that were new, those stored as a difference; None for others.
        seconds, cpu_seconds: of all states together.
        to_save, to_sync: median of a state's time, the first left out, over that of torch.save without and with fsync
            in the same turns; None for rules, which write nothing.
        peak_bytes: of memory, above the state.
    """

    chain: str
    peer: str
    ours: bool
    raw_bytes: int
    first_bytes: int
    stored_bytes: tuple[int, ...]
    disk_bytes: int | None
    delta_share: float | None
    seconds: float
    cpu_seconds: float
    to_save: float | None
    to_sync: float | None
    peak_bytes: int

    @property
    def ratio(self) -> float:
        """Raw over stored, of the whole chain."""
        return self.raw_bytes / max(1, self.stored_bytes[-1])

    @property
    def each(self) -> list[float]:
        """The same of each state, as if all had as many raw bytes."""
        raw = self.raw_bytes / len(self.stored_bytes)
        return [raw / max(1, b - a) for a, b in pairwise((0, *self.stored_bytes))]

    @property
    def later(self) -> float:
        """The same without the first state, which has nothing to differ from."""
        stored = self.stored_bytes[-1] - self.stored_bytes[0]
        return (self.raw_bytes - self.first_bytes) / max(1, stored)


@dataclass(frozen=True, slots=True)
class Restoring:
    """How long restores of one kind took.

    Attributes:
        part: "whole", "layer" or "tensor".  cache: "warm" or "cold".
        depth: differences in a row that had to be undone, at most.
        seconds: of each restore.
        to_whole: their median over that at depth 0; None where there is none.  to_load: over that of torch.load.
    """

    chain: str
    peer: str
    part: str
    cache: str
    depth: int
    seconds: tuple[float, ...]
    to_whole: float | None
    to_load: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Subject:
    """A chain that was measured.

    Attributes:
        id, what: for the table.  states: how many.  state_bytes: of one.
        target: raw over stored that is meant to be reached after the first state; None for none.
        bound: what an order-0 coder of the planes of integer differences would; None where nobody asked.
        facts: what else was found, in words.
    """

    chain: str
    id: str
    what: str
    states: int
    state_bytes: int
    target: float | None
    bound: float | None
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ChainResults:
    """All of one run.

    Attributes:
        size: "quick", "default" or "full"; a quick one says nothing about speed.
        skipped: peers that were not there.
    """

    size: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    skipped: tuple[str, ...]
    subjects: tuple[Subject, ...]
    storing: tuple[Storing, ...]
    restoring: tuple[Restoring, ...]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ChainResults":
        """Read what `to_json` wrote.

        Raises:
            Unusable: it is something else.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise Unusable(f"not JSON: {error}") from error
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise Unusable(f"not {SCHEMA}")
        subjects = tuple(_made(Subject, row) for row in data.pop("subjects"))
        storing = tuple(_made(Storing, row) for row in data.pop("storing"))
        restoring = tuple(_made(Restoring, row) for row in data.pop("restoring"))
        skipped = tuple(data.pop("skipped"))
        return cls(skipped=skipped, subjects=subjects, storing=storing, restoring=restoring, **data)

    def of(self, subject: Subject) -> tuple[list[Storing], list[Restoring]]:
        """Return what was found about one chain."""
        name = subject.chain
        return [r for r in self.storing if r.chain == name], [r for r in self.restoring if r.chain == name]


def _made(kind: Any, row: Mapping[str, Any]) -> Any:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if kind is Subject:
        values["facts"] = tuple((what, found) for what, found in values["facts"])
    return kind(**values)


STORING_HEAD = (
    *("peer", "raw / stored", "later", "on disk", "differences"),
    *("s/GB", "CPU s/GB", "/ torch.save", "/ + fsync", "peak"),
)
RESTORING_HEAD = ("restore", "peer", "depth", "median", "restores", "/ depth 0", "/ torch.load")


def storing_cells(row: Storing) -> list[str]:
    """Return a row of the table about storing."""
    share = "" if row.delta_share is None else f"{row.delta_share:.0%}"
    disk = "" if row.disk_bytes is None else times(row.raw_bytes / row.disk_bytes)
    spent = [f"{value / row.raw_bytes * GB:.2f}" for value in (row.seconds, row.cpu_seconds)]
    ratios = ["" if value is None else f"{value:.2f}" for value in (row.to_save, row.to_sync)]
    return [row.peer, times(row.ratio), times(row.later), disk, share, *spent, *ratios, size(row.peak_bytes)]


def restoring_cells(row: Restoring) -> list[str]:
    """Return a row of the table about restoring."""
    zero = "" if row.to_whole is None else f"{row.to_whole:.2f}"
    what = f"{row.part}, {row.cache}"
    return [
        what,
        row.peer,
        str(row.depth),
        f"{row.median * 1e3:.1f} ms",
        str(len(row.seconds)),
        zero,
        f"{row.to_load:.2f}",
    ]


SUMMARY_HEAD = (
    *("chain", "by", "raw / stored", "later", "best peer, later", "target", "entropy"),
    *("CPU s/GB", "/ torch.save", "/ + fsync", "deepest restore"),
)


def summary_rows(results: ChainResults) -> list[list[str]]:
    """Return a row for each chain that was stored: what our smallest did, next to the best peer."""
    rows = []
    for subject in results.subjects:
        storing, restoring = results.of(subject)
        ours = max((row for row in storing if row.ours), key=lambda row: row.later, default=None)
        if ours is None:
            continue
        peer = max((row for row in storing if not row.ours), key=lambda row: row.later)
        deepest = max((row for row in restoring if row.peer == ours.peer), key=lambda row: row.depth)
        zero = "" if deepest.to_whole is None else f"{deepest.to_whole:.2f} of depth 0, "
        rows.append(
            [
                f"{subject.id} {subject.chain}",
                ours.peer.removeprefix(f"{OURS} "),
                times(ours.ratio),
                times(ours.later),
                f"{times(peer.later)} {peer.peer}",
                "" if subject.target is None else times(subject.target),
                "" if subject.bound is None else times(subject.bound),
                f"{ours.cpu_seconds / ours.raw_bytes * GB:.2f}",
                *("" if value is None else f"{value:.2f}" for value in (ours.to_save, ours.to_sync)),
                f"depth {deepest.depth}: {zero}{deepest.to_load:.2f} of torch.load",
            ]
        )
    return rows


def summary(results: ChainResults) -> Iterator[str]:
    """Yield the lines that a terminal shows for all chains together."""
    rows = summary_rows(results)
    if rows:
        yield from _columns([list(SUMMARY_HEAD), *rows])


def heading(subject: Subject) -> str:
    return f"{subject.id} {subject.chain}: {subject.what}; {subject.states} states of {size(subject.state_bytes)}"


def verdict(subject: Subject, rows: Sequence[Storing]) -> list[str]:
    """Return what is said below the table: the target, next to the entropy where it is missed; the best peer; facts."""
    out = [f"{what}: {found}" for what, found in subject.facts]
    ours = max((row for row in rows if row.ours), key=lambda row: row.later, default=None)
    if ours is None:
        return out
    states = ours.each[1:]
    out.append(
        f"{ours.peer}, states after the first: median {times(statistics.median(states))}, worst {times(min(states))}"
    )
    others = [row for row in rows if not row.ours]
    if others:
        best = max(others, key=lambda row: row.later)
        out.append(
            f"best peer: {best.peer}, {times(best.later)}; ours stores {best.later / ours.later:.2f} times as much"
        )
    if subject.target is not None:
        text = f"target: {times(subject.target)}, {'missed' if ours.later < subject.target else 'reached'} with "
        text += f"{times(ours.later)} after the first state, {times(ours.ratio)} with it"
        if subject.bound is not None:
            text += f"; order-0 entropy of the integer differences: {times(subject.bound)}"
        out.append(text)
    return out


def table(results: ChainResults, subject: Subject) -> Iterator[str]:
    """Yield the lines that a terminal shows for one chain."""
    storing, restoring = results.of(subject)
    yield heading(subject)
    for head, rows in (
        (STORING_HEAD, [storing_cells(row) for row in storing]),
        (RESTORING_HEAD, [restoring_cells(row) for row in restoring]),
    ):
        if rows:
            yield from _columns([list(head), *rows])
    yield from (f"  {text}" for text in verdict(subject, storing))


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def times(value: float) -> str:
    """Say a ratio with three digits."""
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"
