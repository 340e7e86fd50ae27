"""How long a diff of two snapshots takes, and how much memory: `python -m benchmarks.diff [--mb 600] [--repeats 5]`.

Prints for a snapshot of which one layer changed, and for one of which everything did: the median seconds and their
spread, what was read, and the peak resident memory of a process that does nothing else (`chain diff`, as a user runs
it).  Aims at 600 MB with one changed layer: less than 1.5 s and 300 MB.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import chainstore as cs

LAYER = (2048, 2048)  # 16 MiB of float32


def state(megabytes: int, seed: int) -> dict[str, object]:
    """Return weights of about so many MB (10^6 bytes) that a training run could have."""
    random = np.random.default_rng(seed)
    layers = max(1, round(megabytes * 1e6 / (4 * LAYER[0] * LAYER[1])))
    weights = {f"layers.{n}.weight": random.standard_normal(LAYER, np.float32) * 0.02 for n in range(layers)}
    return {"model": weights, "optimizer": {"param_groups": [{"lr": 0.001, "params": list(range(layers))}]}}


@contextmanager
def repository(megabytes: int, folder: str | None) -> Iterator[Path]:
    """Make a repository with three commits: `base`, `layer` (one layer changed), `all` (everything did)."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        os.environ["CHAIN_CONFIG_DIR"] = f"{place}/settings"
        path = Path(place, "repo")
        with cs.init(path) as repo:
            live = state(megabytes, seed=1)
            weights = live["model"]
            assert isinstance(weights, dict)
            repo.commit(live, tags=["base"])
            next(iter(weights.values()))[:] *= 1.01
            repo.commit(live, tags=["layer"])
            for weight in weights.values():
                weight += 0.001
            repo.commit(live, tags=["all"])
        yield path


PROGRAM = """
import sys, time
from chainstore.cli.main import main
started = time.perf_counter()
code = main(sys.argv[1:])
seconds = time.perf_counter() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, seconds, int(peak.split()[1]) / 1000, file=sys.stderr)
"""


def run(path: Path, *words: str) -> tuple[float, float, float, str]:
    """Return seconds of the command, of the whole process, its peak MB, and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-C", str(path), "diff", *words], capture_output=True, text=True, check=True
    )
    whole = time.perf_counter() - started
    code, seconds, peak = done.stderr.split()[-3:]
    assert code == "0", done.stderr
    return float(seconds), whole, float(peak), done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where the repository is made; by default the temporary directory")
    options = parser.parse_args()
    with repository(options.mb, options.folder) as path:
        for label, words in (
            ("one layer changed", ("base", "layer")),
            ("everything changed", ("layer", "all")),
            ("everything changed, no norms", ("layer", "all", "--no-norms")),
            ("nothing changed, all measured", ("all", "all", "--unchanged")),
        ):
            runs = [run(path, *words) for _ in range(options.repeats)]
            seconds = [one for one, _, _, _ in runs]
            whole = statistics.median(one for _, one, _, _ in runs)
            peak = max(one for _, _, one, _ in runs)
            print(
                f"{options.mb} MB, {label:32s} {statistics.median(seconds):.2f} s "
                f"({min(seconds):.2f}-{max(seconds):.2f})   process {whole:.2f} s   peak RSS {peak:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
