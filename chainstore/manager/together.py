"""Together: how the ranks of a data-parallel run save one state, and load it.

Rank 0 writes the state that all ranks have, with its own random numbers and places in the data, where those of a single
process are; what the other ranks have of these is stored below "ranks".  So a snapshot of several ranks is one of a
single process as well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from chainstore.errors import ChainError, Damaged, InvalidInput, RankFailure, SnapshotForgotten
from chainstore.manager.loaders import is_place
from chainstore.manager.meetings import Meeting, Meetings, check_steps
from chainstore.manager.ranks import Ranks
from chainstore.manager.replicas import Comparison, Report, Reporter, buffers
from chainstore.manager.resuming import newest_first, tell, tell_size, world_size
from chainstore.model.commit import Commit
from chainstore.model.paths import Path
from chainstore.observe import Observer
from chainstore.repository import Repository, flatten

_RANKS = "ranks"
_RNG = "rng"
_FINE, _FORGOTTEN, _DAMAGED, _ERROR = range(4)  # how loading ended, the worst last


class Together:
    """The part of a manager that concerns all ranks; its methods are collective, unless they say otherwise.

    Args:
        frozen: tells paths of arrays that never change: they are not compared.

    Attributes:
        leads: whether this is rank 0.  size: how many ranks there are.
        signalled: whether a signal announced the end to any of them, as agreed at the last meeting.
    """

    def __init__(self, ranks: Ranks, frozen: Callable[[Path], bool], observer: Observer) -> None:
        self._ranks, self._observer = ranks, observer
        self._meetings = Meetings(ranks)
        self._reporter, self._comparison = Reporter(frozen), Comparison(observer)
        self.leads, self.size = ranks.leads, ranks.size
        self.signalled = False

    def meets(self, step: int, epoch: int | None) -> bool:
        """Return whether the ranks meet at a step; see `Meetings.due`."""
        return self._meetings.due(step, epoch)

    def meet(
        self, step: int, epoch: int | None, *, due: bool, signalled: bool, error: ChainError | None, quiet: int
    ) -> Meeting:
        """Agree on what is done at a step; see `Meetings.meet`."""
        met = self._meetings.meet(step, epoch, due=due, signalled=signalled, error=error, quiet=quiet)
        self.signalled = self.signalled or met.signalled
        return met

    def barrier(self) -> None:
        """Return when every rank is here."""
        self._ranks.most(0)

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Let rank 0 begin before the others do; a rank that fails leaves."""
        try:
            with self.first():
                yield
        except BaseException:
            self.close()
            raise

    def first(self) -> AbstractContextManager[None]:
        """Let rank 0 do something before the others do; see `Ranks.first`."""
        return self._ranks.first()

    def share(self, text: str) -> str:
        """Return what rank 0 gives."""
        return self._ranks.share(text)

    def close(self) -> None:
        """Leave; not collective."""
        self._ranks.close()

    # -- saving

    def snapshot(
        self,
        step: int | None,
        make: Callable[[], dict[str, Any]],
        objects: Sequence[Any],
        named: Mapping[str, Any],
        ship: Callable[[dict[str, Any]], int],
    ) -> bool:
        """Save the state of all ranks; return whether rank 0 captured it.

        Args:
            make: returns the state of this rank, without copying it.
            objects, named: that it is made of.
            ship: captures a state, on rank 0; returns the number of the snapshot, 0 if there is none.

        Raises:
            RankFailure: a rank has no state, or is at another step.
        """
        own = {_RNG, *(name for name, thing in named.items() if is_place(thing))}
        state = self._gather(step, make, own)
        report, number = Report(), 0
        try:
            if self.leads:
                number = ship(state)
            else:
                report = self._reporter.report(state, {(name,) for name in own} | buffers(objects, named))
        finally:
            reports = self._ranks.collect(report)
            (captured,) = self._ranks.most(number)
            if self.leads:
                self._comparison.reported(captured, step, reports)
        return bool(captured)

    def stored(self, number: int, sums: Mapping[Path, int]) -> None:
        """Take note of what rank 0 stored; not collective."""
        self._comparison.stored(number, sums)

    def _gather(self, step: int | None, make: Callable[[], dict[str, Any]], own: set[str]) -> dict[str, Any]:
        """Return the state of this rank; on rank 0 with what each of the others has of its own."""
        state: dict[str, Any] = {}
        part: dict[str, Any] = {}
        error: Exception | None = None
        try:
            state = make()
            if _RANKS in state:
                raise InvalidInput(f"{_RANKS!r} is where the state of other ranks goes", hint="choose another name")
            if not self.leads:
                part = {name: state[name] for name in own if name in state}
                flatten(part)  # what cannot be stored might not be sent either
        except Exception as failed:  # raised below: the others, who wait, are told first
            error = failed
        at = -1 if step is None else step
        failures, most, least = self._ranks.most(error is not None, at, -at)
        if failures:
            self._raise(error, "has no state to save")
        check_steps(self._ranks, at, -least, most)
        others = self._ranks.collect(part)[1:]
        if any(others):
            state[_RANKS] = dict(enumerate(others, 1))
        return state

    def _raise(self, error: Exception | None, what: str) -> None:
        texts = self._ranks.everyone("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
        raise RankFailure(f"rank {rank} {what}: {text}", {})

    # -- loading

    def load(self, repo: Repository, branch: str, objects: Sequence[Any], named: Mapping[str, Any]) -> Commit | None:
        """Load the newest snapshot of a branch that reads on every rank; None where there is none at all.

        Raises:
            Damaged: there are snapshots, and none of them reads on all ranks; the objects may be half loaded.
            RankFailure: another rank failed; its own error is raised there.
        """
        newest = (str(commit.id) for commit in newest_first(repo, branch)) if self.leads else iter(())
        damage = ""
        while found := self._next(newest):
            commit: Commit | None = None
            error: Exception | None = None
            try:
                commit = repo.get_commit(found)
                self._load_one(repo, commit, objects, named)
            except Exception as failed:  # raised below: the others, who wait, are told first
                error = failed
            ends = self._ranks.everyone(_ending(error))
            if all(end == _FINE for end in ends):
                return commit
            if _ERROR in ends:
                self._raise(error, "cannot load")
            if _DAMAGED in ends:
                rank = ends.index(_DAMAGED)
                damage = f"rank {rank} cannot read the snapshot of {found[:12]}"
                if self.leads:
                    tell(self._observer, "snapshot-damaged", f"{damage}; going further back")
        if damage:
            raise Damaged(f"no snapshot of {branch!r} reads: {damage}, and none before it")
        return None

    def _next(self, newest: Iterator[str]) -> str:
        found = ""
        with self._ranks.first():
            found = next(newest, "")
        return self._ranks.share(found)

    def _load_one(self, repo: Repository, commit: Commit, objects: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Load a snapshot into the objects of this rank."""
        snapshot, rank, size = repo[commit], self._ranks.rank, world_size(commit)
        places = {name: thing for name, thing in named.items() if is_place(thing)}
        shared = {name: thing for name, thing in named.items() if name not in places}
        if size != self.size:
            if self.leads:
                tell_size(self._observer, commit, self.size)
            snapshot.load_into(*objects, rng=rank == 0, **shared)
        elif rank == 0:
            snapshot.load_into(*objects, rng=True, **named)
        else:
            snapshot.load_into(*objects, **shared)
            snapshot[_RANKS][rank].load_into(rng=True, **places)


def _ending(error: Exception | None) -> int:
    if error is None:
        return _FINE
    if isinstance(error, SnapshotForgotten):
        return _FORGOTTEN
    return _DAMAGED if isinstance(error, Damaged) else _ERROR
