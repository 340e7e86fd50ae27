"""What a run found: kept as JSON, shown as tables, compared with another run."""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.jobs import Row

SCHEMA = "chainstore.benchmark/1"
OURS = "chainstore"
YARDSTICKS = ("torch.save + fsync", "torch.save")  # a run is compared with another by the ratio to one of these
SLOWER = 1.25  # a ratio that grew by so much is a regression; two runs on a quiet machine differ by less than 1.15
FATTER = 1.02  # bytes stored hardly vary, but for the blocks that the index happens to grow by
FATTER_BYTES = 64 << 10
HUNGRIER = 1.25
HUNGRIER_BYTES = 32 << 20


class Unusable(Exception):
    """A run that was kept cannot serve for what it is asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Results:
    """All of one run.

    Attributes:
        quick: whether the sizes were the small ones, which say nothing about speed.
        machine: where it ran, in words.  versions: of the peers.  skipped: peers that were not there.
    """

    quick: bool
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    skipped: tuple[str, ...]
    rows: tuple[Row, ...]

    def lines(self) -> dict[tuple[str, str], dict[str, Row]]:
        """Return the rows by job and workload, then by peer, in the order in which they ran."""
        found: dict[tuple[str, str], dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault((row.job, row.workload), {})[row.peer] = row
        return found

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Results":
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
        rows = tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in data.pop("rows"))
        return cls(rows=rows, skipped=tuple(data.pop("skipped")), **data)


def machine(folder: Path) -> dict[str, str]:
    """Say what the run is on: processor, memory, file system; no names, no paths."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory / (1 << 30):.0f} GiB",
        "file system": _file_system(folder),
        "python": platform.python_version(),
        "kernel": platform.release().split("-")[0],
    }


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def seconds(value: float) -> str:
    """Say a time with three digits."""
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def size(value: int) -> str:
    """Say bytes in decimal units with three digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(value) >= factor:
            return f"{_three(value / factor)} {unit}"
    return f"{value} B"


def title(row: Row) -> str:
    return f"{row.job}: {row.what} ({size(row.raw_bytes)})"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines that a terminal shows for one job on one workload."""
    yield title(rows[0])
    head = ("peer", "median", "min - max", "turns", "CPU", "peak", "stored", "time / ours")
    form = "  {:<20} {:>9}  {:<21} {:>5} {:>9} {:>9} {:>9}  {:>11}"
    yield form.format(*head)
    ours = next((row.median for row in rows if row.peer == OURS), None)
    for row in rows:
        span = f"{seconds(min(row.seconds))} - {seconds(max(row.seconds))}"
        yield form.format(
            row.peer,
            seconds(row.median),
            span,
            len(row.seconds),
            seconds(row.cpu_seconds),
            size(row.peak_bytes),
            "" if row.stored_bytes is None else size(row.stored_bytes),
            f"{_three(row.median / ours)}x" if ours else "",
        ).rstrip()


def worst(results: Results, count: int = 2) -> list[tuple[str, str]]:
    """Return the jobs at which we are slowest, next to the fastest peer, whether durable or not."""
    ratios = {}
    for line, by_peer in results.lines().items():
        others = [row.median for name, row in by_peer.items() if name != OURS]
        if OURS in by_peer and others:
            ratios[line] = by_peer[OURS].median / min(others)
    return sorted(ratios, key=lambda line: -ratios[line])[:count]


def regressions(old: Results, new: Results) -> list[str]:
    """Say what got worse from one run to another, as ratios to a peer of the same run.

    Raises:
        Unusable: the two have different sizes, or nothing in common.
    """
    if old.quick != new.quick:
        raise Unusable("one run was quick and the other was not: their ratios say nothing about each other")
    before, after = old.lines(), new.lines()
    both = [line for line in after if line in before and OURS in before[line] and OURS in after[line]]
    if not both:
        raise Unusable("the two runs have no job in common")
    return [text for line in both for text in _worse(line, before[line], after[line])]


def _worse(line: tuple[str, str], old: Mapping[str, Row], new: Mapping[str, Row]) -> Iterator[str]:
    name, was, now = " of ".join(line), old[OURS], new[OURS]
    peer = next((peer for peer in (*YARDSTICKS, *new) if peer != OURS and peer in old and peer in new), None)
    if peer:
        before, after = was.median / old[peer].median, now.median / new[peer].median
        best = min(now.seconds) / new[peer].median  # one slow turn is no regression
        if after > before * SLOWER and best > before:
            yield f"{name}: takes {after:.2f} times as long as {peer}, was {before:.2f}"
    stored, stores = was.stored_bytes, now.stored_bytes
    if stored is not None and stores is not None and stores > stored * FATTER + FATTER_BYTES:
        yield f"{name}: stores {size(stores)}, was {size(stored)}"
    if now.peak_bytes > was.peak_bytes * HUNGRIER + HUNGRIER_BYTES:
        yield f"{name}: peak memory {size(now.peak_bytes)}, was {size(was.peak_bytes)}"


def _three(value: float) -> str:
    """Return a number with three digits that count, never in powers of ten."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _file_system(folder: Path) -> str:
    """Return the type of the file system under a folder."""
    place, best, kind = str(folder.resolve()), "", "?"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if (place + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, name
    return f"{kind}, {shutil.disk_usage(folder).total / 1e9:.0f} GB"
