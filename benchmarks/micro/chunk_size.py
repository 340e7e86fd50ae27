"""What the size of a chunk changes: how fast a state is stored and read, whole and in part, and what it takes.

    python -m benchmarks.micro.chunk_size [--mb 200] [--turns 7] [--folder DIR] [--quick]

Each size has a process and a repository of its own; all do a job in turns, another one first each time, and a figure is
the median of the turns' ratios to the default size.

    commit      weights and AdamW moments, fp32, all bytes new; with auto and with small
    restore     the same, whole; and 16 rows of one of its arrays, from nothing open
    moments     two arrays with rows of 4 KiB, of which one in fifty changes; without codec, where every chunk that is
                touched is stored whole, and with small, where what differs is
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import chainstore as cs
from benchmarks.chain_workers import Child, create, key_of
from benchmarks.jobs import WrongResult
from benchmarks.measure import settle_disk
from benchmarks.workloads import State, dense_state, differences, flat
from chainstore.state.chunking import TARGET_BYTES, chunk_length

SIZES = tuple(1 << shift for shift in (16, 18, 20, 22, 24))
ROW = 1024  # items
JOBS = ("commit auto", "commit small", "restore", "16 rows", "moments none", "moments small")


class Cutter:
    """Stores states in chunks of one size."""

    def __init__(self, size: int, folder: Path, megabytes: int) -> None:
        chunk_length.__defaults__ = (size,)  # in this process alone
        torch.manual_seed(0)
        self.dense = dense_state(megabytes)
        rows = max(100, megabytes * 1_000_000 // 8 // ROW)
        self.moments: State = {"exp_avg": torch.randn(rows, ROW), "exp_avg_sq": torch.rand(rows, ROW)}
        self.place = folder
        self.repo = create(folder)
        self.name = next(name for name, each in flat(self.dense).items() if each.ndim == 2)
        for branch, state in (("dense", self.dense), ("none", self.moments), ("small", self.moments)):
            self.repo.commit(state, branch=branch, codec="none")

    def do(self, job: str, turn: int) -> tuple[float, int]:
        """Return seconds, and bytes stored if any were."""
        kind, _, codec = job.partition(" ")
        if job in ("restore", "16 rows"):
            return self._restore() if job == "restore" else self._rows()
        state = self.dense if kind == "commit" else self.moments
        for tensor in flat(state).values():
            (tensor if kind == "commit" else tensor[turn % 50 :: 50]).mul_(1.001)
        settle_disk()
        branch = "dense" if kind == "commit" else codec
        started = time.perf_counter()
        done = self.repo.commit(state, branch=branch, codec=codec)
        return time.perf_counter() - started, done.stats.stored_bytes

    def _restore(self) -> tuple[float, int]:
        started = time.perf_counter()
        back = self.repo.checkout("dense")
        seconds = time.perf_counter() - started
        if wrong := differences(self.dense, back):
            raise WrongResult(f"other values came back: {', '.join(sorted(wrong)[:5])}")
        return seconds, 0

    def _rows(self) -> tuple[float, int]:
        started = time.perf_counter()
        with cs.open(self.place / "repo", key=key_of(self.place), readonly=True) as repo:
            found = repo.snapshot("dense").slice(self.name)[100:116]
        seconds = time.perf_counter() - started
        if not torch.equal(found, flat(self.dense)[self.name][100:116]):
            raise WrongResult("other rows came back")
        return seconds, 0

    def close(self) -> None:
        self.repo.close()


def race(folder: Path, megabytes: int, turns: int) -> dict[str, dict[int, list[tuple[float, int]]]]:
    """Return what each job took, by size, in the order of the turns."""
    cutters = {size: Child(Cutter, size, folder / str(size), megabytes) for size in SIZES}
    found: dict[str, dict[int, list[tuple[float, int]]]] = {job: {size: [] for size in SIZES} for job in JOBS}
    try:
        for turn in range(turns):
            at = turn % len(SIZES)
            for job in JOBS:
                for size in (*SIZES[at:], *SIZES[:at]):
                    found[job][size].append(cutters[size].ask(job, turn))
    finally:
        for cutter in cutters.values():
            cutter.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="on a disk (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args(arguments)
    megabytes, turns = (4, 1) if options.quick else (options.mb, options.turns)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = race(Path(folder), megabytes, turns)
    print("| job | " + " | ".join(f"{size >> 10} KiB" for size in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for job in JOBS:
        for what, column in enumerate(("time", "stored")):
            rows = {size: [each[what] for each in found[job][size]] for size in SIZES}
            if all(rows[TARGET_BYTES]):
                cells = (f"{_ratio(rows[size], rows[TARGET_BYTES]):.2f}x" for size in SIZES)
                print(f"| {job}: {column} | " + " | ".join(cells) + " |")
    print(f"\nload average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


def _ratio(ours: Sequence[float], default: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, default, strict=True))


if __name__ == "__main__":
    main()
