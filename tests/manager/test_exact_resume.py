"""Exact resume: steps that were never interrupted, and the same steps with a stop between them, end in equal bits.

Weights, moments, schedule, scaler, random numbers and every loss are compared, and the run that goes on is made of
fresh objects with another seed, so that nothing can be right by accident.
"""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import chainstore as cs

ROOT = Path(__file__).resolve().parent.parent.parent
TOTAL, EACH = 14, 6  # optimizer steps of a run, batches of an epoch
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01, amsgrad=True),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.5, centered=True),
    "Adafactor": lambda weights: torch.optim.Adafactor(weights, lr=0.01),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.01),
}


class Rows(Dataset[torch.Tensor]):
    """Rows with noise from the generators of Python, NumPy and torch."""

    def __init__(self, noise: bool) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return EACH * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.linspace(0, 1, 8) * (index + 1)
        return row + random.random() + float(np.random.rand()) + torch.rand(8) if self.noise else row


@dataclass(frozen=True)
class Recipe:
    """How a run is trained."""

    optimizer: str = "AdamW"
    workers: int = 0
    accumulate: int = 1
    low: bool = False  # bfloat16 autocast, with a scaler
    stateful: bool = False  # torchdata's loader
    shuffle: bool = True


@dataclass
class Run:
    """Everything a run consists of."""

    recipe: Recipe
    seed: int
    losses: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )
        self.optimizer = OPTIMIZERS[self.recipe.optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=TOTAL)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3, enabled=self.recipe.low)
        self.parts = (self.model, self.optimizer, self.scheduler, self.scaler)
        self.loader: Any = self._make_loader()

    def _make_loader(self) -> Any:
        kind: Any = DataLoader
        if self.recipe.stateful:
            kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        data = Rows(noise=not self.recipe.stateful)  # it does not keep the random numbers of its workers
        return kind(data, batch_size=4, shuffle=self.recipe.shuffle, num_workers=self.recipe.workers)

    def train(self, step: int, hook: Callable[[int], None], die_at: tuple[int, int] | None = None) -> None:
        """Train from `step` to the end, calling the hook after each optimizer step.

        Args:
            die_at: a step, and how many batches after it the run dies.
        """
        window = 0
        while step < TOTAL:
            for rows in self.loader:
                self._backward(rows)
                window += 1
                if window == self.recipe.accumulate:
                    self._update()
                    step, window = step + 1, 0
                    hook(step)
                if step == TOTAL or (step, window) == die_at:
                    return

    def _backward(self, rows: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.low):
            loss = self.model(rows).float().square().mean() / self.recipe.accumulate
        self.scaler.scale(loss).backward()
        self.losses.append(loss.detach().numpy().tobytes())

    def _update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def bits(self) -> dict[str, str]:
        """Return everything that the next step depends on, and the losses since the start, by name, as digests."""
        state = {**cs.capture(*self.parts), "loss": self.losses[-1]}
        return {name: hashlib.sha256(b"".join(_bits(value))).hexdigest() for name, value in state.items()}


def _bits(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value).encode()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield repr(key).encode()
            yield from _bits(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _bits(inner)
    else:
        yield repr(value).encode()


def straight(recipe: Recipe) -> Run:
    """Return a run that never stopped, and knows no manager."""
    run = Run(recipe, seed=1)
    run.train(0, lambda step: None)
    return run


def part(
    recipe: Recipe, folder: Path, mode: Any, seed: int, *, begins: int, dies: tuple[int, int] | None = None
) -> Run:
    """Return a run that goes on from what is in a folder until it dies, or to the end."""
    run = Run(recipe, seed)
    due = dies[0] if dies is not None else TOTAL
    with cs.SnapshotManager(folder, interval=due, mode=mode, when_full="wait", on_error="raise") as manager:
        run.loader = manager.loader(run.loader)
        assert manager.resume(*run.parts) == begins
        run.train(begins, lambda step: manager.step(step, *run.parts), dies)
    return run


def check(recipe: Recipe, folder: Path, mode: str, *stops: tuple[int, int]) -> None:
    """Compare a run that never stopped with one that died at each of some places."""
    expected, begins, losses = straight(recipe), 0, []
    for number, stop in enumerate([*stops, None]):
        run = part(recipe, folder, mode, seed=1 if number == 0 else 90 + number, begins=begins, dies=stop)
        losses = losses[: begins * recipe.accumulate] + run.losses
        begins = stop[0] if stop is not None else TOTAL
    assert losses == expected.losses
    assert run.bits() == expected.bits()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on(tmp_path: Path, optimizer: str) -> None:
    check(Recipe(optimizer), tmp_path / "run", "thread", (8, 0))


@pytest.mark.parametrize(("mode", "workers"), [("process", 2), ("sync", 0), ("thread", 0)])
def test_two_stops_in_a_row(tmp_path: Path, mode: str, workers: int) -> None:
    check(Recipe(workers=workers), tmp_path / "run", mode, (3, 0), (4, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_on_the_last_batch_of_an_epoch(tmp_path: Path, workers: int) -> None:
    check(Recipe(workers=workers), tmp_path / "run", "thread", (EACH, 0), (2 * EACH, 0))


def test_after_the_last_batch_of_an_epoch_comes_the_next(tmp_path: Path) -> None:
    part(Recipe(), tmp_path / "run", "thread", 1, begins=0, dies=(EACH, 0))
    run = Run(Recipe(), 2)
    with cs.SnapshotManager(tmp_path / "run", mode="thread") as manager:
        loader = manager.loader(run.loader)
        manager.resume(*run.parts)
        assert (loader.epoch, loader.batch, len(list(loader)), loader.epoch) == (1, 0, EACH, 2)


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_mixed_precision_and_a_scaler(tmp_path: Path, mode: str) -> None:
    check(Recipe("SGD", low=True), tmp_path / "run", mode, (5, 0))


@pytest.mark.parametrize("died", [0, 1, 2])
def test_a_run_that_dies_between_optimizer_steps_repeats_the_batches_since_the_last(tmp_path: Path, died: int) -> None:
    """Gradients are no part of a snapshot: `step` is called after optimizer steps, and the place in the data is theirs.

    With three batches a step and six an epoch, twice three is an epoch; with four, a step begins in one and ends in
    the next.
    """
    check(Recipe(accumulate=4), tmp_path / "run", "thread", (4, died), (5, died))


def test_batches_loaded_ahead_are_not_lost_between_optimizer_steps(tmp_path: Path) -> None:
    check(Recipe(accumulate=4, workers=2), tmp_path / "run", "thread", (4, 3))


@pytest.mark.parametrize(("mode", "workers"), [("process", 2), ("thread", 0)])
def test_a_loader_that_keeps_its_place_itself(tmp_path: Path, mode: str, workers: int) -> None:
    check(Recipe(stateful=True, workers=workers), tmp_path / "run", mode, (3, 0), (EACH, 0))


def test_data_in_order(tmp_path: Path) -> None:
    check(Recipe("RMSprop", shuffle=False), tmp_path / "run", "thread", (7, 0))


def test_another_process_goes_on(tmp_path: Path) -> None:
    recipe = Recipe(workers=2)
    part(recipe, tmp_path / "run", "process", 1, begins=0, dies=(8, 0))
    program = "import sys; from tests.manager import test_exact_resume as it; it.main(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == straight(recipe).bits()


def main(folder: str) -> None:
    """Go on, in a process that was not there before."""
    run = part(Recipe(workers=2), Path(folder), "process", 7, begins=8)
    print(json.dumps(run.bits()))
