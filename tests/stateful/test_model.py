"""A repository and a model made of dicts are told the same things, and must agree after each."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.grounds import fast_folder
from tests.faults.seeds import base_seed, replayable
from tests.stateful.ends import Machine


def play(folder: Path, examples: int, steps: int, *, shrink: bool = True) -> None:
    """Play so many games of so many steps; one that fails is made as short as possible, if `shrink`."""
    started = base_seed()
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    class Game(Machine):
        def __init__(self) -> None:
            super().__init__(folder / "game")

    with replayable(started):
        run_state_machine_as_test(
            seed(started)(Game),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                print_blob=False,
                phases=phases,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_a_repository_does_what_a_model_of_dicts_does(tmp_path: Path) -> None:
    with fast_folder(tmp_path) as folder:
        play(folder, 100, 40)


@pytest.mark.long
def test_a_repository_does_what_a_model_of_dicts_does_for_long(tmp_path: Path) -> None:
    with fast_folder(tmp_path) as folder:
        play(folder, 5000, 100)
