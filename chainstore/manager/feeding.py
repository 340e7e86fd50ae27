"""Feeding: what stands around a loader that is watched, before it (indices), in its workers, and after it (a pass)."""

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, get_worker_info

from chainstore.manager.draws import Draws, same, with_tensors, without_tensors


class Indices:
    """The indices of a loader's batches, from its own sampler, whose draws are noted before the first of a pass.

    A sampler may draw when its iterator is made, or at the first index; the loader draws a seed between the two.

    Args:
        begin: called before the first index is drawn, with the draws before the iterator was made, None where making
            it draws nothing.  A weak reference: a cycle would keep workers, and end them in forks of this process.
    """

    def __init__(
        self, loader: DataLoader[Any], draws: Draws, begin: weakref.WeakMethod[Callable[[dict[str, Any] | None], None]]
    ) -> None:
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._draws, self._begin = draws, begin
        self._rest: Rest | None = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        if self._rest is not None:
            return self._rest
        before = self._draws.states()
        indices = iter(self._sampler)
        return self._noted(indices, None if same(before, self._draws.states()) else before)

    def _noted(self, indices: Iterator[Any], made: dict[str, Any] | None) -> Iterator[Any]:
        begin = self._begin()
        if begin is not None:
            begin(made)
        yield from indices

    def prepare(self, made: dict[str, Any] | None, start: dict[str, Any], used: int) -> "Rest":
        """Draw the order of a pass anew, pass over the indices that were used, and let the next `iter` be the rest."""
        if made is not None:
            self._draws.put(made)
        indices = iter(self._sampler)
        self._draws.put(start)
        for _ in itertools.islice(indices, used):
            pass
        self._rest = Rest(indices)
        return self._rest

    def release(self) -> None:
        """Let the next `iter` be a new pass again."""
        self._rest = None


class Rest:
    """What is left of some indices.

    Attributes:
        given: how many were taken.
    """

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices, self._ahead = indices, list[Any]()
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        index = self._ahead.pop() if self._ahead else next(self._indices)
        self.given += 1
        return index

    def more(self) -> bool:
        """Tell whether there is another; it is drawn now."""
        self._ahead.extend(itertools.islice(self._indices, 1 - len(self._ahead)))
        return bool(self._ahead)


class Pass:
    """One iteration over a loader, or what is left of one.

    Args:
        number: of the first batch that comes.
        watched: batches come as `Watched`, from workers.
        hand: called with the number of a batch before the loop is given it, and with what its worker drew.
        finish: called when nothing is left.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        number: int,
        watched: bool,
        hand: "Callable[[int, Sealed | None], None]",
        finish: Callable[[], None],
    ) -> None:
        self._iterator, self._number, self._watched = iterator, number, watched
        self._hand, self._finish = hand, finish

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._finish()
            raise
        except Exception:
            self._count(None)  # its index is used up
            raise
        self._count(batch.drawn if self._watched else None)
        return batch.data if self._watched else batch

    def _count(self, drawn: "Sealed | None") -> None:
        self._hand(self._number, drawn)
        self._number += 1


class Watched(NamedTuple):
    """A batch of a worker, and where its generators are now; None where they are where they were.

    It has fields, so that pinning of memory leaves it what it is.
    """

    data: Any
    drawn: "Sealed | None"


class Sealed:
    """States on their way from a worker, closed to what is done to batches on theirs."""

    def __init__(self, states: Any) -> None:
        self.states = states


class Telling:
    """A collate function that tells with each batch where the generators of its worker are.

    Args:
        always: even if they did not move since the batch before.
    """

    def __init__(self, collate: Callable[[Any], Any], *, always: bool) -> None:
        self._collate, self._always = collate, always
        self._told: Any = None

    def __call__(self, items: Any) -> Watched:
        data = self._collate(items)
        drawn = _of_worker().states()
        if not self._always and self._told is not None and same(drawn, self._told):
            return Watched(data, None)
        self._told = drawn
        return Watched(data, Sealed(without_tensors(drawn)))


class Starting:
    """A start of a worker that puts its generators to where they were, after what the user does at the start.

    Args:
        states: of each worker; None for those that start as they do.
    """

    def __init__(self, start: Callable[[int], None] | None, states: list[Any]) -> None:
        self._start, self._states = start, states

    def __call__(self, worker: int) -> None:
        if self._start is not None:
            self._start(worker)
        if self._states[worker] is not None:
            _of_worker().put(with_tensors(self._states[worker]))


def _of_worker() -> Draws:
    info = get_worker_info()
    assert info is not None
    return Draws(info.dataset)
