"""Check everything, the cheapest part first: `python -m tests.check`.

Prints one line per part with its seconds, the whole output of a part that failed, and stops there with exit code 1.

    python -m tests.check                 everything, up to the first part that fails
    python -m tests.check --keep-going    everything, whatever fails
    python -m tests.check -k types        one part (repeat -k for several); --list names them
"""

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
NO_TESTS_COLLECTED = 5  # pytest's exit code
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed)")
ORDER = (  # folders of tests in the order in which they run; others follow by name
    *("model", "codecs", "crypto", "storage", "state", "odb", "ops", "repository", "cli", "demo"),
    *("stateful", "golden", "faults"),
)
LAST = ("test_docs.py",)


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to check: a name to ask for it by, and the command that does it."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part went.

    Attributes:
        seconds: wall time.
        counts: tests by what became of them ("passed", "failed", "skipped" ...); empty where no tests ran.
    """

    part: Part
    good: bool
    seconds: float
    output: str
    counts: Counter[str]


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def folders() -> list[Path]:
    """Return the folders under tests/ that hold tests, cheapest first."""
    found = {path.parent for path in TESTS.glob("*/**/test_*.py")}
    tops = {TESTS / path.relative_to(TESTS).parts[0] for path in found}
    known = {name: place for place, name in enumerate(ORDER)}
    middle = known["stateful"]  # an unknown folder runs before the slow ones
    return sorted(tops, key=lambda path: (known.get(path.name, middle - 0.5), path.name))


def parts() -> list[Part]:
    """Return everything there is to check, in the order in which it runs."""
    loose = sorted(path for path in TESTS.glob("test_*.py") if path.name not in (*LAST, "test_architecture.py"))
    documents = [TESTS / name for name in LAST if (TESTS / name).exists()]
    return [
        Part("format", tool("ruff", "format", "--check", ".")),
        Part("lint", tool("ruff", "check", ".")),
        Part("types", tool("mypy")),
        Part("architecture", tool("pytest", "-q", "tests/test_architecture.py")),
        *([Part("words", tool("pytest", "-q", *(str(path.relative_to(ROOT)) for path in loose)))] if loose else []),
        *(Part(path.name, tool("pytest", "-q", str(path.relative_to(ROOT)))) for path in folders()),
        *(Part(path.stem.removeprefix("test_"), tool("pytest", "-q", f"tests/{path.name}")) for path in documents),
        Part("site", tool("tests.site")),
    ]


def run(part: Part) -> Outcome:
    start = time.perf_counter()
    done = subprocess.run(
        part.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seconds = time.perf_counter() - start
    closing = done.stdout.rstrip().rpartition("\n")[2] if "pytest" in part.command else ""
    counts = Counter({what: int(number) for number, what in COUNT.findall(closing)})
    return Outcome(part, done.returncode in (0, NO_TESTS_COLLECTED), seconds, done.stdout, counts)


def report(outcome: Outcome) -> None:
    """Print what a person wants to know of one part: how it went, how long it took, and why it failed."""
    counted = ", ".join(f"{number} {what}" for what, number in outcome.counts.items())
    print(
        f"{'ok  ' if outcome.good else 'FAIL'} {outcome.part.name:<14} {outcome.seconds:6.1f} s  {counted}", flush=True
    )
    if not outcome.good:
        print(f"$ {' '.join(outcome.part.command)}\n{outcome.output}", flush=True)


def chosen(names: Sequence[str]) -> list[Part]:
    """Return the parts called `names`, all of them if there are none; SystemExit 2 on an unknown name."""
    everything = parts()
    unknown = set(names) - {part.name for part in everything}
    if unknown:
        print(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(part.name for part in everything)}")
        raise SystemExit(2)
    return [part for part in everything if not names or part.name in names]


def check(selected: Sequence[Part], *, keep_going: bool) -> bool:
    """Run `selected` in order, printing as they end; return whether every one of them was good."""
    start, outcomes = time.perf_counter(), []
    for part in selected:
        outcomes.append(run(part))
        report(outcomes[-1])
        if not outcomes[-1].good and not keep_going:
            break
    good = all(outcome.good for outcome in outcomes)
    total: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    print(f"{'ok  ' if good else 'FAIL'} {'total':<14} {time.perf_counter() - start:6.1f} s")
    if total:
        print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.check", description="Check everything, cheapest first.")
    parser.add_argument("-k", dest="names", metavar="PART", action="append", default=[], help="run only this part")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first part that fails")
    parser.add_argument("--list", action="store_true", help="name the parts and stop")
    options = parser.parse_args()
    selected = chosen(options.names)
    if options.list:
        print("\n".join(part.name for part in selected))
        return 0
    return 0 if check(selected, keep_going=options.keep_going) else 1


if __name__ == "__main__":
    raise SystemExit(main())
