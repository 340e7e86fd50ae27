"""How long `chain log -n 100` takes on a long chain: `python benchmarks/micro/log.py [COMMITS]`.

Makes a repository of 10 000 commits of a tiny state in a temporary folder (about half a minute), then times whole
processes and prints the median beside an interpreter that does nothing.  The target is 250 ms.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import chainstore as cs

TARGET_SECONDS = 0.25
RUNS = 15
CHAIN = ["-m", "chainstore.cli.main"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "chain --version": [*CHAIN, "--version"],
    "chain log -n 100": [*CHAIN, "log", "-n", "100"],
    "chain log -n 100 --json": [*CHAIN, "log", "-n", "100", "--json"],
    "chain log --oneline (all)": [*CHAIN, "log", "--oneline"],
    "chain branch": [*CHAIN, "branch"],
    "chain verify --quick": [*CHAIN, "verify", "--quick"],
}


def make(path: Path, commits: int) -> float:
    """Make the repository and return how many seconds that took."""
    start = time.perf_counter()
    with cs.init(path) as repo:
        for step in range(commits):
            state = {"w": np.full(4, step, np.float32), "step": step}
            repo.commit(state, f"step {step}", step=step, metrics={"loss": 1 / (step + 1)})
    return time.perf_counter() - start


def measure(arguments: list[str], environment: dict[str, str], runs: int) -> float:
    """Return the median wall time of a process, in seconds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> int:
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with TemporaryDirectory(prefix="chain-log-") as folder:
        os.environ["CHAIN_CONFIG_DIR"] = folder
        path = Path(folder, "run")
        print(f"{commits} commits made in {make(path, commits):.1f} s")
        environment = {**os.environ, "CHAIN_REPO": str(path)}
        found = {name: measure(arguments, environment, RUNS) for name, arguments in COMMANDS.items()}
    for name, seconds in found.items():
        print(f"{name:<28} {seconds * 1000:7.1f} ms")
    return 0 if found["chain log -n 100"] < TARGET_SECONDS else 1


if __name__ == "__main__":
    raise SystemExit(main())
