"""How much later a commit is durable with codec="auto" than with "none", on the same disk, and what it stores.

    python -m benchmarks.micro.thrift [--mb 200] [--turns 9] [--disk DIR] [--tmpfs /dev/shm] [--quick]

Every turn changes a state, in all its bytes or in few of its rows, and commits it to repositories of every codec, one
after the other, each time another one first; the figure is the median of the turns' ratios to "none".  The first two
turns are not counted: in them "auto" learns how fast the disk is.  Processor seconds are those of the whole commit, for
a GB of state.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import chainstore as cs
from benchmarks.measure import settle_disk
from benchmarks.workloads import dense_state, differences, flat, raw_bytes

CODECS = ("none", "auto", "fast", "small")
LEARNING = 2  # turns


def dense(megabytes: int) -> dict[str, torch.Tensor]:
    """Return weights and AdamW moments in fp32."""
    return flat(dense_state(megabytes))


def half(megabytes: int) -> dict[str, torch.Tensor]:
    """Return weights in bf16."""
    return {name: each.to(torch.bfloat16) for name, each in dense(2 * megabytes).items()}


def sparse(megabytes: int) -> dict[str, torch.Tensor]:
    """Return moments of an embedding of which one row in fifty was seen."""
    rows = megabytes * 1_000_000 // 4096
    moments = torch.randn(rows, 1024)
    moments[torch.arange(rows) % 50 != 0] = 0
    return {"exp_avg": moments}


STATES: dict[str, Callable[[int], dict[str, torch.Tensor]]] = {
    "dense": dense,
    "bf16": half,
    "sparse": sparse,
    "few rows change": dense,
}


def change(name: str, state: dict[str, torch.Tensor], turn: int) -> None:
    """Change every number that is not zero, or one row in a hundred."""
    for tensor in state.values():
        rows = tensor[turn % 100 :: 100] if name == "few rows change" and tensor.ndim > 1 else tensor
        rows.mul_(1.01)


def race(
    name: str, state: dict[str, torch.Tensor], folder: Path, turns: int
) -> dict[str, list[tuple[float, float, int]]]:
    """Return seconds, processor seconds and bytes stored of each codec's commits, in the order of the turns."""
    repos = {codec: cs.init(folder / codec, encrypt=False, codec=codec) for codec in CODECS}  # type: ignore[arg-type]
    found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for turn in range(turns + LEARNING):
        change(name, state, turn)
        at = turn % len(CODECS)
        for codec in (*CODECS[at:], *CODECS[:at]):
            settle_disk()
            started, cpu = time.perf_counter(), time.process_time()
            done = repos[codec].commit(state)
            taken = time.perf_counter() - started, time.process_time() - cpu, done.stats.stored_bytes
            if turn >= LEARNING:
                found[codec].append(taken)
    for codec, repo in repos.items():
        wrong = differences(state, repo.checkout())
        assert not wrong, (codec, wrong[:3])
        repo.close()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--disk", type=Path, default=None, help="a folder on a disk (default: a temporary one)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args(arguments)
    megabytes, turns = (2, 1) if options.quick else (options.mb, options.turns)
    print("| where | state | codec | durable / none | least to most | raw / stored | CPU s per GB |")
    print("|---|---|---|---|---|---|---|")
    for where, base in (("disk", options.disk), ("tmpfs", options.tmpfs)):
        for name, make in STATES.items():
            state = make(megabytes)
            with tempfile.TemporaryDirectory(dir=base) as folder:
                found = race(name, state, Path(folder), turns)
            raw = raw_bytes(state)
            for codec in CODECS:
                pairs = zip(found[codec], found["none"], strict=True)
                ratios = sorted(ours[0] / plain[0] for ours, plain in pairs)
                cpu = statistics.median(each[1] for each in found[codec]) / raw * 1e9
                size = raw / statistics.median(each[2] for each in found[codec])
                spread = f"{ratios[0]:.2f} - {ratios[-1]:.2f}"
                row = f"{statistics.median(ratios):.2f}x | {spread} | {size:.2f}x | {cpu:.2f}"
                print(f"| {where} | {name} | {codec} | {row} |", flush=True)
    print(f"\nload average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
