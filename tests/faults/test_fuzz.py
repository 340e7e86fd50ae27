"""Whatever bytes a parser is given, it returns a value or an error of ours, soon, and within its memory.

CHAIN_FUZZ_SECONDS=600 pytest -m long tests/faults/test_fuzz.py      20 s for each parser otherwise
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.fuzz import SECONDS_PER_INPUT, last_of
from tests.faults.mutation import mutated, mutated_json, mutated_node
from tests.faults.seeds import base_seed

ROOT = Path(__file__).resolve().parents[2]
PARSERS = (  # by name, as what makes them is imported only in the processes that may die
    *("record", "pack", "line", "changes", "node", "page", "commit", "value", "snapshot"),
    *("keyring", "small_files", "codec", "path", "revision", "replay"),
)
LONG_SECONDS = float(os.environ.get("CHAIN_FUZZ_SECONDS", "20"))


def fuzz(parser: str, ground: Path, *words: str, patience_seconds: float = 300) -> dict[str, int]:
    """Fuzz a parser in a process of its own and return how often what became of an input.

    Raises:
        AssertionError: with the input as hex digits, and what repeats it.
    """
    seed = base_seed()
    command = [sys.executable, "-m", "tests.faults.fuzz", parser, "--seed", str(seed), *words]
    flight = ground / "flight"
    done = subprocess.run(
        [*command, "--flight", flight, "--folder", ground],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=patience_seconds,
    )
    if done.returncode < 0:
        number, data = last_of(flight)
        why = f"killed by signal {-done.returncode} (14: it took more than {SECONDS_PER_INPUT} s)"
        raise AssertionError(f"{why}\n{data.hex()}\nreplay: {' '.join(command[:6])} --only {number}")
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    if done.returncode:
        raise AssertionError(f"{told['why']}\n{told['hex']}\nreplay: {' '.join(command[:6])} --only {told['number']}")
    outcomes: dict[str, int] = told["outcomes"]
    return outcomes


def check(outcomes: dict[str, int]) -> None:
    """Check that the changes got past the first look, and did not leave all as it was."""
    read, refused = outcomes["read"], sum(count for what, count in outcomes.items() if what not in ("read", "samples"))
    assert read > (read + refused) / 200 and refused > read / 100, outcomes


@pytest.mark.parametrize("parser", PARSERS)
def test_a_parser_returns_a_value_or_an_error_of_ours_whatever_it_is_given(parser: str, ground: Path) -> None:
    check(fuzz(parser, ground))


@pytest.mark.long
@pytest.mark.parametrize("parser", PARSERS)
def test_a_parser_still_does_so_after_a_long_time(parser: str, ground: Path) -> None:
    check(fuzz(parser, ground, "--seconds", f"{LONG_SECONDS}", patience_seconds=LONG_SECONDS + 120))


def test_no_parser_is_left_out() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "tests.faults.fuzz", "list"], cwd=ROOT, capture_output=True, check=True
    )
    assert sorted(json.loads(listed.stdout)) == sorted(PARSERS)


def test_an_input_is_the_same_again_with_the_same_seed() -> None:
    samples = [bytes(range(100)), b"\x82\x01\x82\x02\x03", b'{"a": 1, "b": "text"}']
    for change in (mutated, mutated_node, mutated_json):
        first = [change(random.Random(f"seed {number}"), samples) for number in range(200)]
        assert first == [change(random.Random(f"seed {number}"), samples) for number in range(200)]
        assert len(set(first)) > 100
