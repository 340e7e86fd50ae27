"""A snapshot holds one moment: everything is changed in place right after `step` returned, and none of it is in there.

The mistakes that would let it in are made on purpose as well, so that it is known that they would be seen.
"""

import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chainstore.errors import ChainError
from chainstore.manager import bays, capture, shipping, writers
from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository
from chainstore.state.rng import capture_rng
from tests.faults.seeds import base_seed, replayable
from tests.manager.runs import Run

SHARES = {"process": 200, "thread": 200, "sync": 100}  # of the 500 snapshots
BULK = 30_000  # numbers in the largest array: enough for a copy to take a while


class Box:
    """State beside the network: arrays with and without dimensions, of both libraries, views, and plain values."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self.held: dict[str, Any] = {
            "bulk": torch.zeros(BULK),
            "half": torch.zeros(33, dtype=torch.bfloat16),
            "counter": torch.tensor(0),
            "flag": torch.tensor(False),
            "array": np.zeros((7, 5)),
            "scalar": np.array(0),
            "empty": torch.zeros(0, 3),
            "plain": {"number": 0, "history": [0], "text": ""},
        }
        self.held["row"] = self.held["bulk"].view(-1, 100)[3]
        self.held["column"] = self.held["bulk"].view(-1, 100)[:, 7]

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.held = dict(state)

    def scramble(self) -> None:
        """Change everything in place, in ways that torch notices and in ways that it does not."""
        number = self._source.randrange(1, 1000)
        held = self.held
        if number % 2:
            held["bulk"].add_(number)
        else:
            held["bulk"].data.numpy()[:] += number
        held["bulk"][self._source.randrange(BULK)] = -1.0
        held["half"].add_(1)
        held["counter"].data.numpy()[()] += number
        held["flag"].logical_not_()
        held["array"][:] = number
        held["scalar"][()] = number
        held["plain"]["number"] = number
        held["plain"]["history"].append(number)
        del held["plain"]["history"][:-5]
        held["plain"]["text"] = "x" * (number % 50)


def differing(got: Any, want: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two states are not the same."""
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping) or list(got) != list(want):
            yield path
            return
        for key, value in want.items():
            yield from differing(got[key], value, f"{path}/{key}")
    elif isinstance(want, torch.Tensor):
        if not (isinstance(got, torch.Tensor) and got.dtype == want.dtype and torch.equal(got, want)):
            yield path
    elif isinstance(want, np.ndarray):
        if not (got.dtype == want.dtype and np.array_equal(got, want)):
            yield path
    elif isinstance(want, Sequence) and not isinstance(want, str):
        if len(got) != len(want):
            yield path
            return
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            yield from differing(one, other, f"{path}/{number}")
    elif got != want:
        yield path


def mixed(root: Path, source: random.Random, steps: int, *, mode: str, max_pending: int, keep: int = 50) -> list[str]:
    """Make so many snapshots, change everything after each, and return what is in them that was not there then."""
    run, box = Run(source.randrange(1 << 30)), Box(source)
    run.train(0, 2)
    found: list[str] = []
    held: dict[int, dict[str, Any]] = {}

    def look() -> None:
        manager.wait()
        with open_repository(root) as repo:
            for number, want in held.items():
                try:
                    got = repo.checkout(f"step:{number}")
                except ChainError as error:  # a plain value of two halves; bytes that changed once they had an id
                    found.append(f"{number}: {error}")
                    continue
                found.extend(f"{number}: {path}" for path in differing({key: got[key] for key in want}, want))
        held.clear()

    options: dict[str, Any] = {"mode": mode, "max_pending": max_pending, "when_full": "wait", "on_signal": ()}
    with SnapshotManager(root, interval=1, on_error="raise", **options) as manager:
        manager.track(model=run.model, optimizer=run.optimizer)
        for step in range(1, steps + 1):
            state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "box": box.held}
            held[step] = copy.deepcopy({**state, "progress": {"step": step, "epoch": None}})
            held[step]["rng"] = copy.deepcopy(capture_rng())
            assert manager.step(step, box=box)
            box.scramble()
            run.scramble()
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(step)
            if len(held) == keep:
                look()
        look()
    return found


@pytest.mark.parametrize("mode", SHARES)
def test_500_snapshots_hold_nothing_of_what_came_after(ground: Path, mode: str) -> None:
    seed = base_seed()
    with replayable(seed, mode):
        half = SHARES[mode] // 2
        for max_pending in (1, 2):
            root = ground / f"{mode}-{max_pending}"
            source = random.Random(seed + max_pending)
            assert mixed(root, source, half, mode=mode, max_pending=max_pending) == []


def test_a_capture_that_passes_numbers_without_dimensions_over_is_seen(
    ground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring = capture.bring
    monkeypatch.setattr(capture, "bring", lambda to, source, nbytes: nbytes > 8 and bring(to, source, nbytes))
    found = mixed(ground / "run", random.Random(1), 5, mode="sync", max_pending=1)
    assert any(path.endswith("/optimizer/state/0/step") for path in found), found


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_memory_that_is_used_again_too_soon_is_seen(ground: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take = bays.Bay.capture

    def forgetful(bay: bays.Bay, *arguments: Any) -> Any:
        captured = take(bay, *arguments)
        bay.number = -1  # as if nothing of it was on its way
        return captured

    def late(*arguments: Any) -> Any:
        time.sleep(0.005)  # a thread may else be done before the next step
        return store(*arguments)

    store = writers.store
    monkeypatch.setattr(writers, "store", late)
    monkeypatch.setattr(bays.Bay, "capture", forgetful)
    monkeypatch.setattr(shipping.Shipping, "has_room", lambda *_: True)
    assert mixed(ground / "run", random.Random(2), 40, mode=mode, max_pending=1) != []
