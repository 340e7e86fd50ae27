"""A power cut after any operation loses nothing that was acknowledged, and leaves what can be worked with.

The states are simulated: what was synced is there, of the rest everything, nothing, or what chance decides.
"""

from itertools import product
from pathlib import Path
from random import Random

import pytest

from tests.faults.crash_bench import Bench, Tally
from tests.faults.crash_steps import STEPS
from tests.faults.seeds import base_seed, replayable

WORKLOADS = 60  # of which a quarter on each bench
STATES = 170  # of each, so 10 000
STATES_IN_LONG = 100  # of each of 1 108 workloads
BENCHES = {
    "plain": (False, False),
    "encrypted": (True, False),
    "plain, small files": (False, True),
    "encrypted, small files": (True, True),
}


@pytest.fixture(params=BENCHES.values(), ids=BENCHES)
def bench(request: pytest.FixtureRequest, ground: Path) -> Bench:
    encrypted, small_files = request.param
    patient = request.node.get_closest_marker("long") is not None
    return Bench(ground, encrypted=encrypted, small_files=small_files, chances=3 if patient else 1)


def workloads(encrypted: bool) -> list[tuple[str, ...]]:
    """Return all sequences of one to three steps."""
    names = [name for name, step in STEPS.items() if encrypted or not step.encrypted_only]
    return [steps for length in (1, 2, 3) for steps in product(names, repeat=length)]


def explore(bench: Bench, chosen: list[tuple[str, ...]], seed: int, most: int) -> Tally:
    for number, steps in enumerate(chosen):
        with replayable(seed, f"workload {number} of {len(chosen)}, {' '.join(steps)}"):
            bench.explore(steps, seed, one_handle=number % 3 != 0, most=most)
    print(bench.tally)
    return bench.tally


def test_a_power_cut_after_any_operation_loses_nothing(bench: Bench) -> None:
    seed = base_seed()
    tally = explore(bench, Random(seed).sample(workloads(bench.encrypted), WORKLOADS // len(BENCHES)), seed, STATES)
    assert tally.states > 1000 and tally.distinct > 100 and tally.interrupted > 50 and tally.rebuilt > 1, tally


@pytest.mark.long
def test_a_power_cut_in_any_workload_of_three_steps_loses_nothing(bench: Bench) -> None:
    explore(bench, workloads(bench.encrypted), base_seed(), STATES_IN_LONG)


def test_a_workload_is_done_the_same_way_every_time(ground: Path) -> None:
    bench = Bench(ground, encrypted=True)
    first, second = (bench.record(("commit", "rotate", "tag"), 7) for _ in range(2))
    assert first.operations == second.operations
    assert len(first.operations) > 40
