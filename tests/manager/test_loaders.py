"""The place in the data: for every way to draw an order, and to load, the batch that would have come next comes."""

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from chainstore.errors import InvalidInput, StateMismatch
from chainstore.live import capture, restore
from chainstore.manager.loaders import Loader, make_loader
from chainstore.manager.manager import SnapshotManager

ROWS = 22  # with batches of 4, the last one is short


class Noisy(Dataset[tuple[int, float]]):
    """Numbers with noise from every generator; counts what was loaded."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(7)
        self.loaded = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.loaded += 1
        return index, random.random() + float(np.random.rand()) + float(torch.rand(())) + float(self.own.random())


class Shuffled(Sampler[int]):
    """Draws its order when the iterator is made, from a generator of its own and one of the process."""

    def __init__(self) -> None:
        self.order = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        numbers = list(range(ROWS))
        self.order.shuffle(numbers)
        random.shuffle(numbers)
        return iter(numbers)

    def __len__(self) -> int:
        return ROWS


class Unsized(Sampler[int]):
    """Does not know how many indices there are, and draws each when it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(13):
            yield random.randrange(ROWS)


def owned() -> torch.Generator:
    return torch.Generator().manual_seed(5)


KINDS: dict[str, Callable[[Dataset[Any]], dict[str, Any]]] = {
    "in order": lambda data: {"batch_size": 4},
    "shuffled": lambda data: {"batch_size": 4, "shuffle": True},
    "drops the last": lambda data: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffled by its own generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": owned()},
    "sampler with a generator": lambda data: {
        "batch_size": 4,
        "sampler": RandomSampler(data, replacement=True, num_samples=41, generator=owned()),
    },
    "subset": lambda data: {"batch_size": 4, "sampler": SubsetRandomSampler(range(15))},
    "weighted": lambda data: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0, 2.0] * 11, 18)},
    "distributed": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, 2, 1)},
    "sampler that draws at once": lambda data: {"batch_size": None, "sampler": Shuffled()},
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 4, False)},
    "no batches": lambda data: {"batch_size": None, "shuffle": True},
}
WORKERS = {
    "0": {},
    "2": {"num_workers": 2},
    "2 that stay": {"num_workers": 2, "persistent_workers": True},
}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def make(kind: str, workers: str) -> DataLoader[Any]:
    data = Noisy()
    return DataLoader(data, **KINDS[kind](data), **WORKERS[workers])  # type: ignore[arg-type]


def told(batch: Any) -> Any:
    """Return a batch, and a number from each generator as training draws them, as plain values."""
    values = batch if isinstance(batch, list | tuple) else [batch]
    plain = [value.tolist() if isinstance(value, torch.Tensor) else value for value in values]
    return plain, random.random(), float(np.random.rand()), float(torch.rand(()))


def whole(loader: Any, epochs: int) -> list[Any]:
    """Return everything that some epochs hand out."""
    found = []
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        found += [(epoch, told(batch)) for batch in loader]
    return found


def rest(loader: Loader, epochs: int) -> list[Any]:
    """Return what the epochs from where a loader is hand out."""
    found = []
    for epoch in range(loader.epoch, epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        found += [(epoch, told(batch)) for batch in loader]
    return found


def places(loader: Loader, epochs: int, stops: set[int]) -> dict[int, Any]:
    """Return the state after each of some numbers of batches."""
    found, count = {}, 0
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            told(batch)
            count += 1
            if count in stops:
                found[count] = capture(loader=loader)
    return found


WITH_WORKERS = ["shuffled", "shuffled by its own generator", "sampler with a generator", "sampler that draws at once"]


@pytest.mark.parametrize(
    ("kind", "workers"), [*((kind, "0") for kind in KINDS), *itertools.product(WITH_WORKERS, ["2", "2 that stay"])]
)
def test_the_batch_that_would_have_come_comes(kind: str, workers: str) -> None:
    seed(1)
    plain = make(kind, workers)
    expected = whole(plain, 3)
    each = len(plain)
    seed(1)
    loader = Loader(make(kind, workers))
    assert whole(loader, 3) == expected, "a loader that is watched hands out what it would have"
    stops = {1, each - 1, each, each + 2, 2 * each} if workers == "0" else {1, each + 3}
    if kind == "shuffled":
        stops.add(each)
    seed(1)
    kept = places(Loader(make(kind, workers)), 3, stops)
    for stop, state in kept.items():
        seed(99)
        again = Loader(make(kind, workers))
        restore(state, loader=again)
        assert (again.epoch, again.batch) == divmod(stop, each)
        assert rest(again, 3) == expected[stop:], stop


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_place_that_is_kept_again_before_and_after_going_on(workers: str) -> None:
    seed(1)
    expected = whole(make("shuffled", workers), 2)
    seed(1)
    state = places(Loader(make("shuffled", workers)), 1, {1})[1]
    for stop in (1, 3, 4):
        seed(98)
        loader = Loader(make("shuffled", workers))
        restore(state, loader=loader)
        state = capture(loader=loader)
        seed(99)
        loader = Loader(make("shuffled", workers))
        restore(state, loader=loader)
        batches = iter(loader)
        for number in range(stop, stop + (2 if stop == 1 else 1)):
            assert (0, told(next(batches))) == expected[number]
        state = capture(loader=loader)
    seed(97)
    loader = Loader(make("shuffled", workers))
    restore(state, loader=loader)
    assert rest(loader, 2) == expected[5:]


def test_a_sampler_that_knows_no_length() -> None:
    def sampled() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=4, sampler=Unsized())

    seed(1)
    plain = sampled()
    expected = [told(batch) for _ in range(2) for batch in plain]
    seed(1)
    states = places(Loader(sampled()), 1, {2, 4})
    for stop, state in states.items():
        seed(99)
        loader = Loader(sampled())
        restore(state, loader=loader)
        found = [told(batch) for batch in loader]
        found += [told(batch) for batch in loader][: len(expected) - stop - len(found)]
        assert found == expected[stop:]


def test_what_was_used_is_passed_over_without_loading_it() -> None:
    loader = Loader(make("shuffled", "0"))
    state = places(loader, 1, {4})[4]
    again = Loader(make("shuffled", "0"))
    restore(state, loader=again)
    next(iter(again))
    assert again.dataset.loaded == 4


def test_a_batch_that_cannot_be_loaded_counts() -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise ValueError("unreadable")
            return index

    batches = iter(loader := Loader(DataLoader(Broken(), batch_size=1)))
    assert int(next(batches)) == 0
    with pytest.raises(ValueError, match="unreadable"):
        next(batches)
    state = capture(loader=loader)
    again = Loader(DataLoader(Broken(), batch_size=1))
    restore(state, loader=again)
    assert [int(batch) for batch in again] == [2, 3, 4, 5] == [int(batch) for batch in batches]


def test_a_loop_that_breaks_off_begins_another_pass() -> None:
    loader = Loader(make("in order", "0"))
    for _ in range(3):
        for number, _ in enumerate(loader):
            if number == 1:
                break
    assert (loader.epoch, loader.batch) == (2, 2)
    assert [len(batch[0]) for batch in loader] == [4, 4, 4, 4, 4, 2] and loader.epoch == 4


def test_another_number_of_workers_keeps_the_order() -> None:
    expected = [batch[0].tolist() for batch in Loader(make("in order", "0"))]
    state = places(Loader(make("in order", "2")), 1, {3})[3]
    loader = Loader(make("in order", "0"))
    with pytest.warns(RuntimeWarning, match="had 2 workers and has 0"):
        restore(state, loader=loader)
    assert [batch[0].tolist() for batch in loader] == expected[3:]


def test_a_place_in_other_data_is_refused() -> None:
    state = places(Loader(make("in order", "0")), 1, {3})[3]
    with pytest.raises(StateMismatch, match="6 batches an epoch and has 2"):
        restore(state, loader=Loader(DataLoader(TensorDataset(torch.zeros(8)), batch_size=4)))
    with pytest.raises(StateMismatch, match="generators of its own"):
        restore(state, loader=Loader(DataLoader(TensorDataset(torch.zeros(22)), batch_size=4)))
    with pytest.raises(StateMismatch, match="not the place"):
        restore({**state, "loader": {"epoch": 3}}, loader=Loader(make("in order", "0")))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(9)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (lambda: DataLoader(Stream()), "iterable dataset"),
        (lambda: [1, 2, 3], "no DataLoader"),
        (lambda: DataLoader(Noisy(), num_workers=2, in_order=False), "in_order"),
    ],
)
def test_what_keeps_no_place_is_refused(loader: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        make_loader(loader())
    assert "in_order" in said or "StatefulDataLoader" in caught.value.hint


def test_loaders_have_names(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path / "run", mode="sync") as manager:
        for _ in range(3):
            manager.loader(make("in order", "0"))
        manager.loader(make("in order", "0"), name="validation")
        with pytest.raises(InvalidInput, match="validation"):
            manager.loader(make("in order", "0"), name="validation")
        manager.save(1, torch.nn.Linear(2, 2))
        manager.wait()
        state = manager.repo.checkout()
        assert {"loader", "loader2", "loader3", "validation"} < set(state)
    with SnapshotManager(tmp_path / "run", mode="sync") as manager:
        assert manager.resume(torch.nn.Linear(2, 2)) == 1
        with pytest.raises(InvalidInput, match="comes after resume"):
            manager.loader(make("in order", "0"))


def test_attributes_are_those_of_the_loader() -> None:
    inside = make("shuffled", "0")
    loader = Loader(inside)
    assert len(loader) == 6 and loader.dataset is inside.dataset and loader.batch_size == 4
    with pytest.raises(AttributeError), warnings.catch_warnings():
        loader.nothing  # noqa: B018
