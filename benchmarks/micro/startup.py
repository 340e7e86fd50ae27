"""How long `chain` takes to start: `python benchmarks/micro/startup.py [RUNS]`.

Times whole processes in a fresh repository, byte code cached, and prints least and median wall time and the median of
the processor's time (which a busy machine changes less) beside an interpreter that does nothing.  Targets, of the wall
medians: `--help` of every command 200 ms; log, status, branch and verify --quick 250 ms.
`--imports COMMAND` prints instead which modules take longest to load (`python -X importtime`).
"""

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import chainstore as cs
from chainstore.cli.main import SECTIONS

HELP_TARGET_SECONDS, LOOK_TARGET_SECONDS = 0.2, 0.25
RUNS = 9
CHAIN = ["-m", "chainstore.cli.main"]
LOOKS = [["log"], ["status"], ["branch"], ["verify", "--quick"]]
HELPS = [[name, "--help"] for section in SECTIONS.values() for name in section]
_SHOWN = 25


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose byte code is cached in `folder`, whatever this process was told."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    places = {"CHAIN_CONFIG_DIR": str(folder), "CHAIN_REPO": str(folder / "run")}
    return {**kept, **places, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def measure(arguments: list[str], environment: dict[str, str], runs: int) -> list[tuple[float, float]]:
    """Return wall and processor seconds of so many processes, after one that is not counted."""
    seconds = []
    for _ in range(runs + 1):
        start, used = time.perf_counter(), _children_seconds()
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
        seconds.append((time.perf_counter() - start, _children_seconds() - used))
    return seconds[1:]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(name: str, seconds: list[tuple[float, float]], target: float | None) -> bool:
    """Print one line, and return whether the target was met."""
    walls, used = ([1000 * each[column] for each in seconds] for column in (0, 1))
    median = statistics.median(walls)
    missed = target is not None and median > 1000 * target
    told = f"{min(walls):6.0f} {median:6.0f} ms {statistics.median(used):6.0f} ms used"
    print(f"{name:<30} {told}{'   over the target' if missed else ''}")
    return not missed


def print_imports(words: list[str], environment: dict[str, str]) -> None:
    """Print the modules that take longest to load, without those that they load in turn."""
    program = [sys.executable, "-X", "importtime", *CHAIN, *words]
    lines = subprocess.run(program, env=environment, capture_output=True, text=True).stderr.splitlines()
    found = [re.fullmatch(r"import time: +(\d+) \| +(\d+) \| ( *)(\S+)", line) for line in lines]
    times = sorted(((int(each[1]), each[4]) for each in found if each), reverse=True)
    for microseconds, module in times[:_SHOWN]:
        print(f"{microseconds / 1000:8.1f} ms  {module}")
    print(f"{sum(each for each, _ in times) / 1000:8.1f} ms  in all {len(times)}")


def main(arguments: list[str]) -> int:
    with TemporaryDirectory(prefix="chain-startup-") as name:
        folder = Path(name)
        environment = environment_of(folder)
        os.environ["CHAIN_CONFIG_DIR"] = name
        with cs.init(folder / "run") as repo:
            repo.commit({"n": 1}, "one", step=1)
        if arguments[:1] == ["--imports"]:
            measure([*CHAIN, *arguments[1:]], environment, 1)
            print_imports(arguments[1:], environment)
            return 0
        runs = int(arguments[0]) if arguments else RUNS
        report("python -c pass", measure(["-c", "pass"], environment, runs), None)
        met = [
            report(f"chain {' '.join(words)}", measure([*CHAIN, *words], environment, runs), target)
            for target, group in ((LOOK_TARGET_SECONDS, LOOKS), (HELP_TARGET_SECONDS, HELPS))
            for words in group
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
