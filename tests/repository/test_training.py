"""Snapshots never change training: bit for bit the same with commits and without, and after going back."""

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.testing.same import assert_same

STEPS = 6


class Run:
    """A small training run: modules and optimizers by name, one `step`, and the state that is committed."""

    def __init__(self, parts: dict[str, Any], step: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        self.parts, self._step = parts, step

    def step(self) -> float:
        return float(self._step(self.parts).detach())

    def state(self) -> dict[str, Any]:
        states = {name: part.state_dict() for name, part in self.parts.items() if hasattr(part, "state_dict")}
        free = {name: part for name, part in self.parts.items() if isinstance(part, torch.Tensor)}
        return {**states, "free": free, "rng": (torch.get_rng_state(), random.getstate(), np.random.get_state())}

    def load(self, snapshot: cs.Snapshot) -> None:
        snapshot.load_into(**{name: part for name, part in self.parts.items() if hasattr(part, "state_dict")})
        state: Any = snapshot.load(["free/**", "rng/**"])
        with torch.no_grad():
            for name, part in self.parts.items():
                if isinstance(part, torch.Tensor):
                    part.copy_(state["free"][name])
        torch.set_rng_state(state["rng"][0])
        random.setstate(state["rng"][1])
        np.random.set_state(state["rng"][2])


def batch() -> torch.Tensor:
    return torch.randn(8, 16) + random.random() + np.random.rand()


def simple(parts: dict[str, Any]) -> torch.Tensor:
    parts["optimizer"].zero_grad()
    loss: torch.Tensor = parts["model"](batch()).square().mean()
    loss.backward()
    parts["optimizer"].step()
    return loss


def adamw_with_dropout() -> Run:
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    return Run({"model": model, "optimizer": optimizer}, simple)


def sgd_with_momentum_and_a_scheduler() -> Run:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=50)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        loss = simple(parts)
        parts["scheduler"].step()
        return loss

    return Run({"model": model, "optimizer": optimizer, "scheduler": scheduler}, step)


def parameters_outside_the_model() -> Run:
    model, free = nn.Linear(16, 16), nn.Parameter(torch.randn(16))
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": [free], "lr": 0.1}], lr=1e-2)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (parts["model"](batch()) * parts["scale"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Run({"model": model, "optimizer": optimizer, "scale": free}, step)


def unused_and_frozen_parameters() -> Run:
    model = nn.ModuleDict({"used": nn.Linear(16, 16), "unused": nn.Linear(4, 4), "frozen": nn.Linear(16, 16)})
    for parameter in model["frozen"].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = parts["model"]["frozen"](parts["model"]["used"](batch())).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Run({"model": model, "optimizer": optimizer}, step)


def two_optimizers() -> Run:
    generator, critic = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-2, centered=True, momentum=0.5)
    for_critic = torch.optim.NAdam(critic.parameters(), lr=1e-2)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        for optimizer, sign in ((for_critic, 1), (for_generator, -1)):
            for_generator.zero_grad(), for_critic.zero_grad()
            loss: torch.Tensor = sign * parts["critic"](parts["generator"](torch.randn(8, 8))).mean()
            loss.backward()
            optimizer.step()
        return loss

    return Run({"generator": generator, "critic": critic, "g_opt": for_generator, "c_opt": for_critic}, step)


def lbfgs() -> Run:
    model = nn.Linear(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        x = batch()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (parts["model"](x) - x[:, :4]).square().mean()
            loss.backward()
            return loss

        loss: torch.Tensor = optimizer.step(closure)
        return loss

    return Run({"model": model, "optimizer": optimizer}, step)


def sparse_adam() -> Run:
    model = nn.Embedding(200, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = parts["model"](torch.randint(0, 200, (32,))).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Run({"model": model, "optimizer": optimizer}, step)


def tied_weights_in_bfloat16() -> Run:
    embedding = nn.Embedding(50, 16, dtype=torch.bfloat16)
    head = nn.Linear(16, 50, bias=False, dtype=torch.bfloat16)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(parts: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = parts["model"](torch.randint(0, 50, (32,))).float().logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Run({"model": model, "optimizer": optimizer}, step)


def fused_and_capturable() -> Run:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), foreach=False)
    return Run({"model": model, "optimizer": optimizer}, simple)


RUNS = [
    adamw_with_dropout,
    sgd_with_momentum_and_a_scheduler,
    parameters_outside_the_model,
    unused_and_frozen_parameters,
    two_optimizers,
    lbfgs,
    sparse_adam,
    tied_weights_in_bfloat16,
    fused_and_capturable,
]


@pytest.fixture(autouse=True)
def own_random_numbers() -> Iterator[None]:
    """Keep this file's seeds from the tests that follow."""
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def seeded(make: Callable[[], Run]) -> Run:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    return make()


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_training_with_commits_equals_training_without(tmp_path: Path, make: Callable[[], Run]) -> None:
    plain = seeded(make)
    losses = [plain.step() for _ in range(STEPS)]
    expected = copy.deepcopy(plain.state())
    watched = seeded(make)
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        repo.commit(watched.state(), step=0)  # a fresh optimizer
        seen = []
        for step in range(STEPS):
            seen.append(watched.step())
            repo.commit(watched.state(), step=step + 1, metrics={"loss": seen[-1]})
    assert seen == losses
    assert_same(expected, watched.state(), sharing=False)


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("back_to", [0, 3])
@pytest.mark.parametrize("fresh", [False, True], ids=["in the same process", "in a new run"])
def test_a_run_goes_on_bit_for_bit_from_a_snapshot(
    tmp_path: Path, make: Callable[[], Run], back_to: int, fresh: bool
) -> None:
    run = seeded(make)
    losses = []
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        for step in range(STEPS):
            repo.commit(run.state(), step=step)
            losses.append(run.step())
        expected = copy.deepcopy(run.state())
        if fresh:
            torch.manual_seed(99)
            run = make()
        run.load(repo[f"step:{back_to}"])
        assert_same(repo.checkout(f"step:{back_to}"), run.state(), sharing=False)
        assert [run.step() for _ in range(STEPS - back_to)] == losses[back_to:]
        assert_same(expected, run.state(), sharing=False)


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_a_state_comes_back_bit_for_bit_with_what_shares_memory(tmp_path: Path, make: Callable[[], Run]) -> None:
    run = seeded(make)
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        for _ in range(2):
            state = run.state()
            repo.commit(state)
            assert_same(state, repo.checkout())
            run.step()


def test_a_commit_touches_no_gradient_and_no_version_counter(tmp_path: Path) -> None:
    run = seeded(adamw_with_dropout)
    run.step()
    model: nn.Module = run.parts["model"]
    gradients = [parameter.grad for parameter in model.parameters()]
    copies = [gradient.clone() for gradient in gradients if gradient is not None]
    versions = [tensor._version for tensor in (*model.parameters(), *model.buffers())]
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        repo.commit(run.state())
        assert all(
            parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True)
        )
        assert all(torch.equal(a, b) for a, b in zip(gradients, copies, strict=True))  # type: ignore[arg-type]
        assert [tensor._version for tensor in (*model.parameters(), *model.buffers())] == versions
        assert model.training


def test_a_commit_between_forward_and_backward_is_harmless(tmp_path: Path) -> None:
    plain, watched = seeded(adamw_with_dropout), None
    loss = plain.parts["model"](torch.ones(8, 16)).square().mean()
    loss.backward()
    expected = [parameter.grad.clone() for parameter in plain.parts["model"].parameters()]
    watched = seeded(adamw_with_dropout)
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        loss = watched.parts["model"](torch.ones(8, 16)).square().mean()
        repo.commit(watched.state())
        loss.backward()
    found = [parameter.grad for parameter in watched.parts["model"].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
