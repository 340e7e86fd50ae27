"""Capture and restore: a run goes on bit for bit in another process, and nothing notices that it was captured."""

import copy
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.errors import InvalidInput, StateMismatch
from chainstore.testing.same import assert_same

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "tests" / "training.py"


@pytest.fixture(autouse=True)
def own_random_numbers() -> Iterator[None]:
    """Keep this file's seeds from the tests that follow."""
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


class Run:
    """A model with dropout and batch norm, its optimizer, scheduler and scaler, and a step that draws everywhere."""

    def __init__(self, width: int = 8, seed: int = 5) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.model = nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.width = width

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.scheduler, self.scaler

    def step(self) -> float:
        self.optimizer.zero_grad()
        batch = torch.randn(4, self.width) + random.random() + np.random.rand()
        loss = self.model(batch).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return float(loss.detach())

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[cs.Repository]:
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        yield repo


# ---- capture


def test_capture_names_what_it_is_given_by_what_it_is() -> None:
    run = Run()
    run.steps(2)
    state = cs.capture(*run.parts)
    assert list(state) == ["model", "optimizer", "scheduler", "scaler", "rng"]
    assert list(state["rng"])[:3] == ["python", "numpy", "torch"]
    assert_same(
        {name: thing.state_dict() for name, thing in zip(state, run.parts, strict=False)},
        {name: state[name] for name in list(state)[:4]},
    )
    assert list(cs.capture(run.optimizer, run.model, rng=False)) == ["optimizer", "model"]
    assert list(cs.capture(run.model, ema=Run().model, rng=False)) == ["model", "ema"]
    assert cs.capture(rng=False) == {}


def test_capture_draws_no_random_number_and_changes_nothing() -> None:
    plain, watched = Run(), Run()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    losses = plain.steps(4)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    seen = []
    for _ in range(4):
        cs.capture(*watched.parts)  # of a fresh optimizer, too
        versions = [tensor._version for tensor in watched.model.parameters()]
        gradients = [tensor.grad for tensor in watched.model.parameters()]
        cs.capture(*watched.parts)
        assert [tensor._version for tensor in watched.model.parameters()] == versions
        assert all(t.grad is g for t, g in zip(watched.model.parameters(), gradients, strict=True))
        seen.append(watched.step())
    assert seen == losses
    assert_same(cs.capture(*plain.parts), cs.capture(*watched.parts))


def test_a_fresh_optimizer_is_captured_as_it_is() -> None:
    run = Run()
    assert cs.capture(run.optimizer, rng=False)["optimizer"]["state"] == {}
    assert run.optimizer.state == {}


class Loader:
    """What a stateful data loader looks like."""

    def __init__(self) -> None:
        self.position = 7

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.position = state_dict["position"]


def test_objects_that_cannot_be_told_apart_must_be_named() -> None:
    run, other = Run(), Run()
    for call in (
        lambda: cs.capture(run.model, other.model),
        lambda: cs.capture(run.model, model=other.model),
        lambda: cs.capture(run.scheduler, other.scheduler),
        lambda: cs.capture(Loader()),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "name" in caught.value.hint
    state = cs.capture(generator=run.model, critic=other.model, loader=Loader(), rng=False)
    assert list(state) == ["generator", "critic", "loader"] and state["loader"] == {"position": 7}


@pytest.mark.parametrize("wrong", [3, {"a": 1}, torch.ones(2), nn.Linear, None], ids=repr)
def test_what_has_no_state_dict_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        cs.capture(wrong)
    with pytest.raises(InvalidInput):
        cs.capture(thing=wrong)
    with pytest.raises(InvalidInput):
        cs.restore({"thing": {}}, thing=wrong, rng=False)
    with pytest.raises(InvalidInput):
        cs.capture(rng=wrong)


def test_capture_without_torch_and_numpy_loads_neither() -> None:
    code = (
        "import sys, chainstore as cs; state = cs.capture(); assert list(state['rng']) == ['python'], state;"
        "import random; a = random.random(); cs.restore(state); assert random.random() == a;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- restore


@pytest.mark.parametrize("way", ["restore", "load_into"])
def test_a_run_goes_on_bit_for_bit_from_where_it_was_captured(repo: cs.Repository, way: str) -> None:
    run = Run()
    run.steps(3)
    repo.commit(cs.capture(*run.parts), step=3)
    losses = run.steps(4)
    expected = copy.deepcopy(cs.capture(*run.parts))
    for again in (run, Run(seed=9)):
        if way == "restore":
            cs.restore(repo.checkout(), *again.parts)
        else:
            assert repo["main"].load_into(*again.parts, rng=True).step == 3
        assert_same(repo.checkout(), cs.capture(*again.parts), sharing=False)
        assert again.steps(4) == losses
        assert_same(expected, cs.capture(*again.parts), sharing=False)


def test_a_run_goes_on_bit_for_bit_in_another_process(tmp_path: Path) -> None:
    """One child trains, commits after step 3 and goes on; another one starts from that commit, once each way."""

    def printed(*hows: str) -> str:
        command = [sys.executable, str(TRAINING), str(tmp_path / "r"), *hows]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    whole = printed("train")
    assert len(whole.splitlines()) == 4 and len(set(whole.splitlines())) == 4  # three losses and a digest
    assert printed("restore", "load_into") == whole * 2


def test_rng_false_leaves_the_generators_alone(repo: cs.Repository) -> None:
    run = Run()
    repo.commit(cs.capture(*run.parts))
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    before = cs.capture()
    cs.restore(repo.checkout(), *run.parts, rng=False)
    repo["main"].load_into(*run.parts)
    assert_same(before, cs.capture())


def test_restore_gives_back_each_generator() -> None:
    state = copy.deepcopy(cs.capture())
    drawn = random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()
    cs.restore(state)
    again = random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()
    assert drawn == again


def test_a_generator_that_numpy_was_given_is_kept(repo: cs.Repository) -> None:
    ours = np.random.mtrand.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(4))
        repo.commit(cs.capture())
        drawn = np.random.rand(5).tolist()
        cs.restore(repo.checkout())
        assert np.random.rand(5).tolist() == drawn
    finally:
        np.random.set_bit_generator(ours)
    with pytest.raises(StateMismatch, match="rng/numpy"):
        cs.restore(repo.checkout())


def test_the_random_numbers_alone_can_be_put_back(repo: cs.Repository) -> None:
    repo.commit(cs.capture())
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    assert repo["main"].load_into(rng=True).missing_keys == ()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn
    with pytest.raises(InvalidInput):
        repo["main"].load_into(rng=Run().model)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_generators_of_all_devices_come_back(repo: cs.Repository) -> None:
    devices = range(torch.cuda.device_count())

    def draw() -> list[float]:
        return [torch.rand(1, device=f"cuda:{device}").item() for device in devices]

    draw()
    repo.commit(cs.capture())
    assert len(repo.checkout()["rng"]["cuda"]) == len(devices)
    drawn = draw()
    cs.restore(repo.checkout())
    assert draw() == drawn
    repo["main"].load_into(rng=True)
    assert draw() == drawn


def test_names_lead_back_to_what_was_captured_under_them(repo: cs.Repository) -> None:
    a, b, loader = Run(seed=1), Run(seed=2), Loader()
    repo.commit(cs.capture(generator=a.model, critic=b.model, loader=loader))
    one, two, position = Run(seed=3), Run(seed=4), Loader()
    position.position = 0
    cs.restore(repo.checkout(), generator=one.model, critic=two.model, loader=position)
    assert_same(a.model.state_dict(), one.model.state_dict())
    assert_same(b.model.state_dict(), two.model.state_dict())
    assert position.position == 7


def test_wrappers_before_names_are_matched() -> None:
    run, other = Run(seed=1), Run(seed=2)
    wrapped = {f"module.{name}": value for name, value in run.model.state_dict().items()}
    assert cs.restore({"model": wrapped}, other.model, rng=False).missing_keys == ()
    assert_same(run.model.state_dict(), other.model.state_dict())


def test_the_state_of_a_model_itself_is_enough_for_a_lone_model() -> None:
    run, other = Run(seed=1), Run(seed=2)
    cs.restore(run.model.state_dict(), other.model, rng=False)
    assert_same(run.model.state_dict(), other.model.state_dict())


def test_step_is_what_the_state_says() -> None:
    run = Run()
    state = {**cs.capture(*run.parts), "step": 12}
    assert cs.restore(state, *run.parts).step == 12
    assert cs.restore(cs.capture(*run.parts), *run.parts).step is None


def narrow(state: dict[str, Any]) -> None:
    state["model"] = nn.Linear(2, 2).state_dict()


def retyped(state: dict[str, Any]) -> None:
    state["model"]["0.weight"] = state["model"]["0.weight"].half()


def other_groups(state: dict[str, Any]) -> None:
    state["optimizer"] = torch.optim.AdamW(nn.Linear(2, 2).parameters()).state_dict()


def no_groups(state: dict[str, Any]) -> None:
    state["optimizer"] = {"state": 3, "param_groups": 5}


def odd_groups(state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"] = [{"lr": 0.1}]


def other_moments(state: dict[str, Any]) -> None:
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)


def no_state(state: dict[str, Any]) -> None:
    state["model"] = 7


def no_numbers(state: dict[str, Any]) -> None:
    del state["rng"]


def one_tensor(state: dict[str, Any]) -> None:
    state["rng"] = torch.get_rng_state()


def torn_numbers(state: dict[str, Any]) -> None:
    state["rng"]["torch"] = state["rng"]["torch"][:100]


def foreign_numbers(state: dict[str, Any]) -> None:
    state["rng"]["python"] = (1, 2, 3)


def many_devices(state: dict[str, Any]) -> None:
    state["rng"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 64


def unknown_device(state: dict[str, Any]) -> None:
    state["rng"]["abacus"] = 1


def nothing_there(state: dict[str, Any]) -> None:
    del state["scheduler"]


MISFITS = [
    narrow,
    retyped,
    other_groups,
    no_groups,
    odd_groups,
    other_moments,
    no_state,
    no_numbers,
    one_tensor,
    torn_numbers,
    foreign_numbers,
    many_devices,
    unknown_device,
    nothing_there,
]


@pytest.mark.parametrize("spoil", MISFITS, ids=lambda spoil: spoil.__name__)
def test_nothing_is_written_unless_everything_fits(repo: cs.Repository, spoil: Any) -> None:
    donor, run = Run(seed=1), Run(seed=2)
    donor.steps(2), run.steps(1)
    state = copy.deepcopy(cs.capture(*donor.parts))
    spoil(state)
    before = copy.deepcopy(cs.capture(*run.parts))
    with pytest.raises(StateMismatch):
        cs.restore(state, *run.parts)
    assert_same(before, cs.capture(*run.parts), sharing=False)
    repo.commit(state)
    with pytest.raises(StateMismatch):
        repo["main"].load_into(*run.parts, rng=True)
    assert_same(before, cs.capture(*run.parts), sharing=False)


def test_without_strict_what_fits_is_loaded() -> None:
    donor, run = Run(seed=1), Run(seed=2)
    donor.steps(2)
    state = copy.deepcopy(cs.capture(*donor.parts))
    state["model"]["0.weight"] = torch.zeros(3, 3)
    state["rng"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 64
    other_groups(state)
    run.steps(1)
    before = copy.deepcopy(cs.capture(*run.parts))
    result = cs.restore(state, *run.parts, strict=False)
    after = cs.capture(*run.parts)
    assert [text.partition(":")[0] for text in result.mismatched] == [
        "model/0.weight",
        "optimizer/param_groups",
        "rng/cuda",
    ]
    assert torch.equal(after["model"]["0.weight"], before["model"]["0.weight"])
    assert torch.equal(after["model"]["0.bias"], donor.model.state_dict()["0.bias"])
    assert_same(before["optimizer"], after["optimizer"], sharing=False)
    assert torch.equal(torch.get_rng_state(), state["rng"]["torch"])
    assert cs.restore({"model": donor.model.state_dict()}, run.model, strict=False).missing_keys == ("rng",)


@pytest.mark.parametrize("wrong", [None, 3, [1], "state"], ids=repr)
def test_what_is_no_state_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        cs.restore(wrong, Run().model)


def test_a_snapshot_is_no_loaded_state_and_the_error_says_what_to_call(repo: cs.Repository) -> None:
    run = Run()
    repo.commit(cs.capture(*run.parts))
    with pytest.raises(InvalidInput) as caught:
        cs.restore(repo["main"], run.model)  # type: ignore[arg-type]
    assert "load_into" in caught.value.hint


def test_two_objects_are_not_loaded_from_one_place() -> None:
    run, other = Run(), Run()
    with pytest.raises(StateMismatch):
        cs.restore(cs.capture(*run.parts), run.model, other.model)
    with pytest.raises(StateMismatch):
        cs.restore(cs.capture(*run.parts), run.model, model=other.model)
