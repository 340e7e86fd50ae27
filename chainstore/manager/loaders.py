"""Loaders: the place in the data, so that a run that resumes gets the batch that would have come next.

A plain `DataLoader` forgets where it is.  `Loader` iterates one and remembers: the pass over the data (epoch), the
batches of it that the loop was given, the generators as they were when the order of the pass was drawn, and what the
workers' generators were at.  To come back, the order is drawn anew from there, batches that were used are passed over
by their indices, without loading them, and then every generator is put to where the snapshot found it.

What workers loaded ahead does not count: a batch is used when the loop has it.  Workers draw from generators of their
own, whose states come along with each batch; as batches go to the workers in turn, all of them are known where a
round is complete, and the batches since then, fewer than there are workers, are loaded again.
"""

import contextlib
import copy
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from chainstore.errors import InvalidInput, StateMismatch
from chainstore.manager.draws import Draws, copied, with_tensors, without_tensors
from chainstore.manager.feeding import Indices, Pass, Starting, Telling

_STATEFUL = "torchdata.stateful_dataloader.StatefulDataLoader keeps its place and is taken as it is"
_EPOCH = "sampler_epoch"
_KEYS = {"epoch", "batch", "batches", "workers", "ahead", "seed", "made", "start", "now", "rounds"}


def make_loader(loader: Any) -> tuple[Any, Any]:
    """Return what a loop iterates instead of a loader, and what is tracked of it.

    Raises:
        InvalidInput: the loader keeps no place, and none can be kept for it.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader, StatefulLoader(loader)
    if not isinstance(loader, DataLoader):
        raise InvalidInput(f"a {type(loader).__name__} is no DataLoader and has no state_dict", hint=_STATEFUL)
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidInput(
            f"{type(loader.dataset).__name__} is an iterable dataset: there is no place in it to come back to",
            hint=f"{_STATEFUL}; the dataset needs a state_dict and load_state_dict then",
        )
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise InvalidInput("in_order=False hands out batches in an order that cannot come back")
    ours = Loader(loader)
    return ours, ours


def is_place(thing: object) -> bool:
    """Return whether an object says where in the data a process is: each rank has its own place."""
    return isinstance(thing, Loader | StatefulLoader | DataLoader)


class StatefulLoader:
    """What is tracked of a loader that keeps its place itself.

    Such a loader draws a seed from torch's generator when it starts to iterate.  In a run that was not stopped that
    was long before; so it starts while the snapshot is loaded, before the generators are put back.  The epoch of a
    distributed sampler, which no state of torchdata holds, has to be known by then: the order of the data hangs on it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._sampler: Any = getattr(loader, "sampler", None)

    def state_dict(self) -> Any:
        state, epoch = self._loader.state_dict(), getattr(self._sampler, "epoch", None)
        return {**state, _EPOCH: epoch} if self._has_epochs and isinstance(state, dict) else state

    def load_state_dict(self, state: Any) -> None:
        if self._has_epochs and isinstance(state, dict) and _EPOCH in state:
            state = dict(state)
            self._sampler.set_epoch(state.pop(_EPOCH))
        self._loader.load_state_dict(state)
        self._loader.state_dict()

    @property
    def _has_epochs(self) -> bool:
        return callable(getattr(self._sampler, "set_epoch", None)) and type(getattr(self._sampler, "epoch", 0)) is int


class Loader:
    """A data loader that knows its place; made by `SnapshotManager.loader`, and used instead of the one it was made of.

    Its attributes are those of the loader.  Each `iter` is a pass over the data, except the first after `resume`,
    which goes on with the pass that the snapshot was made in, or with the next one if nothing of it was left.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._draws = Draws(loader)
        self._epoch = self._batch = 0
        self._pass: object = None  # what the pass under way is known by; workers end with the last reference to it
        self._resuming = False  # a pass is to be gone on with
        self._same_ahead = True  # as many workers, as far ahead, as where the place is from
        self._living: DataLoader[Any] | None = None  # whose workers outlive a pass
        self._made: dict[str, Any] | None = None  # draws before the iterator of the sampler was made
        self._start: dict[str, Any] | None = None  # draws before its first index
        self._seed: torch.Tensor | None = None  # generator before the seed of the workers was drawn from it
        self._rounds: list[Any] = []  # draws of the workers after the last complete round
        self._recent: dict[int, Any] = {}  # and since

    def __repr__(self) -> str:
        return f"<Loader at batch {self.batch} of epoch {self.epoch}>"

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete; after `resume`, the epoch to go on with."""
        return self._epoch + self._nothing_left

    @property
    def batch(self) -> int:
        """How many batches of this epoch the loop was given."""
        return 0 if self._nothing_left else self._batch

    @property
    def _nothing_left(self) -> bool:
        return self._resuming and self._batch == self._batches()

    def __iter__(self) -> Iterator[Any]:
        if self._resuming:
            self._resuming = False
            iterator, more = self._go_on()
            rest = self._enter(iterator, self._batch)
            if more:
                return rest
            for _ in rest:  # nothing comes; workers end
                pass
        elif self._pass is not None:
            self._finish(self._pass)  # a loop that broke off
        self._rounds = self._rounds or [None] * self._loader.num_workers
        return self._enter(self._iterator(self._indices()), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the place: that of the batch which the loop was given last."""
        workers = self._loader.num_workers
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "batches": self._batches(),
            "workers": workers,
            "ahead": workers * (self._loader.prefetch_factor or 0),
            "seed": copied(self._seed),
            "made": copied(self._made),
            "start": copied(self._start),
            "now": self._draws.owned(),
            "rounds": copied(self._rounds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a place; the next `iter` goes on there.

        Raises:
            StateMismatch: it is a place in other data.
        """
        if not isinstance(state, dict) or state.keys() != _KEYS:
            raise StateMismatch("what is stored is not the place of a loader that SnapshotManager.loader made")
        batches = self._batches()
        if state["batches"] != batches:
            raise StateMismatch(
                f"the loader had {state['batches']} batches an epoch and has {batches}: its place is not in these data",
                hint="resume with the same data and batch size, or track the new loader under another name=",
            )
        here, workers = self.state_dict(), self._loader.num_workers
        self._epoch, self._batch = state["epoch"], state["batch"]
        self._made, self._start = state["made"], state["start"]
        self._seed, self._rounds = state["seed"], list(state["rounds"])
        self._draws.put(state["now"])
        self._pass = self._living = None
        self._recent = {}
        self._resuming = self._start is not None
        self._same_ahead = all(state[key] == here[key] for key in ("workers", "ahead"))
        if not self._same_ahead:
            self._seed, self._rounds = None, [None] * workers
            warnings.warn(
                f"the loader had {state['workers']} workers and has {workers}, or another prefetch_factor: "
                "the order of the data stays the same, but what the dataset draws at random does not",
                RuntimeWarning,
                stacklevel=2,
            )

    # -- what a pass tells

    def _hand(self, current: object, number: int, drawn: Any) -> None:
        """Take note that the loop is given batch `number` of a pass, or what was raised instead of it."""
        if current is self._pass:
            self._batch = number + 1
            self._hear(number, drawn)

    def _finish(self, current: object) -> None:
        """Take note that a pass is over."""
        if current is not self._pass:
            return
        self._pass = None
        self._epoch, self._batch = self._epoch + 1, 0
        self._made = self._start = None
        self._end_round()
        if self._living is None:
            self._seed, self._rounds = None, []

    def _begin(self, made: dict[str, Any] | None) -> None:
        """Take note that the order of a pass is about to be drawn."""
        self._made, self._start = made, self._draws.states()

    def _hear(self, number: int, drawn: Any) -> None:
        """Take note of where the generators of the worker that loaded a batch are."""
        workers = self._loader.num_workers
        if drawn is not None:
            self._recent[number % workers] = with_tensors(drawn.states)
        if workers and (number + 1) % workers == 0:
            self._end_round()

    def _end_round(self) -> None:
        for worker, drawn in self._recent.items():
            self._rounds[worker] = drawn
        self._recent = {}

    # -- iterators of the loader itself

    def _enter(self, iterator: Iterator[Any], number: int) -> Pass:
        key = self._pass = object()
        watched = self._loader.num_workers > 0
        return Pass(iterator, number, watched, partial(self._hand, key), partial(self._finish, key))

    def _indices(self) -> Indices:
        return Indices(self._loader, self._draws, weakref.WeakMethod(self._begin))

    def _go_on(self) -> tuple[Iterator[Any], bool]:
        """Return what is left of a pass, with every generator where it was, and whether anything is left."""
        now, workers = self._draws.states(), self._loader.num_workers
        again = self._batch % workers if workers else 0
        assert self._start is not None
        indices = self._indices()
        rest = indices.prepare(self._made, self._start, self._batch - again)
        iterator = self._iterator(indices)
        for number in range(self._batch - again, self._batch):
            # What a batch raised now it raised then as well, and the loop went on.
            with contextlib.suppress(Exception):
                self._hear(number, next(iterator).drawn)
        indices.release()
        self._draws.put(now if self._same_ahead else {**self._draws.owned(), "rng": now["rng"]})
        return iterator, rest.given > again if workers else rest.more()

    def _iterator(self, indices: Indices) -> Iterator[Any]:
        """Start to iterate the loader, as `iter(loader)` would, but with indices of ours."""
        if self._living is not None:
            return iter(self._living)
        loader = copy.copy(self._loader)
        inside = vars(loader)  # a loader refuses to have some of these set
        inside["batch_sampler" if loader.batch_sampler is not None else "sampler"] = indices
        if loader.num_workers:
            inside["collate_fn"] = Telling(loader.collate_fn, always=loader.persistent_workers)
            inside["worker_init_fn"] = Starting(loader.worker_init_fn, list(map(without_tensors, self._rounds)))
            if self._seed is None:
                self._seed = torch.get_rng_state() if loader.generator is None else loader.generator.get_state()
            else:
                inside["generator"] = torch.Generator().set_state(self._seed)
        if loader.persistent_workers:
            self._living = loader
        return iter(loader)

    def _batches(self) -> int | None:
        try:
            return len(self._loader)
        except TypeError:  # a sampler that does not know
            return None
