"""`SnapshotManager`: when a snapshot is made, of what, and what a trainer sees of it."""

import atexit
import os
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from chainstore import config
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import InvalidInput, RankFailure, SnapshotNotFound
from chainstore.manager.course import Course
from chainstore.manager.endings import words_at_exit, words_for
from chainstore.manager.exposition import check_file, check_port
from chainstore.manager.following import Following
from chainstore.manager.gathering import Tracked, gather
from chainstore.manager.insight import Insight
from chainstore.manager.interrupts import Interrupts
from chainstore.manager.loaders import make_loader
from chainstore.manager.options import (
    Mode,
    OnError,
    WhenFull,
    check_choice,
    check_pending,
    files_by_name,
    frozen_paths,
    make_retention,
    make_trigger,
    where_to,
)
from chainstore.manager.ranks import Group, find_ranks
from chainstore.manager.resuming import load_newest, newest_that_reads, next_step
from chainstore.manager.saving import Call, Saver
from chainstore.manager.shipping import Shipping
from chainstore.manager.stepping import StepHooks
from chainstore.manager.telemetry import ManagerStats
from chainstore.manager.together import Together
from chainstore.observe import Observer, silent
from chainstore.policies.progress import Trigger
from chainstore.policies.retention import Retention
from chainstore.repository import Repository, init, locate
from chainstore.repository import open as open_repository

_WAIT_SECONDS = 600.0  # for a writer that a process left behind, and at the end for our own


class SnapshotManager:
    """Makes snapshots of a training run in the background, and brings the run back from the newest that reads.

    Args:
        repo: a repository, or a path, where one is made if there is none.
        interval: steps (100), time ("30m"), "adaptive", or several rules ("every 1000 steps or 30m").
        triggers: rules of your own instead of `interval`; a snapshot is due when any of them says so.
        max_snapshots: how many of the branch to keep; `retention` can say more.
        branch: by default the one that the repository is on.
        key: as for `open`.
        mode: who makes snapshots durable: another "process" (a captured snapshot survives the death of this one), a
            "thread" of this one, or "sync", the training loop itself.
        codec: as for `commit`.
        on_signal: signals that announce the end; a snapshot is made before the signal is passed on.
        grace: how long a signal waits for the next `step`, as seconds or text.
        max_pending: captures that may wait to become durable; each takes memory for the whole state.
        when_full: "skip" a snapshot that is due then (it is counted), "wait", or "raise".
        on_error: "warn" and go on, or "raise" at the next step.
        track_files: files to store beside the state, as they are when it is captured; of more than 1 MiB, when it
            becomes durable.
        frozen: globs of paths whose arrays never change: they are captured once.
        metrics_file: where to keep metrics as text, for node_exporter: `.../chainstore.prom`.
        metrics_port: where to serve them, on 127.0.0.1 only; 0 takes a port that is free.
        process_group: of torch.distributed, whose ranks train one model with DistributedDataParallel: rank 0 writes,
            all load, and every rank has its own random numbers and place in the data.  By default all ranks, where
            torch.distributed is initialized; False where each process trains on its own.  Every rank makes a manager,
            and calls `step`, `save`, `resume` and `load_latest` for the same steps.
        observer: called with notices.

    What neither `interval` nor `triggers`, neither `max_snapshots` nor `retention` says, the repository's settings
    `interval` and `retention` do, also while the run is on.

    Raises:
        InvalidInput: an argument makes no sense.  Locked: another manager has the branch; says who.
        RankFailure: rank 0 could not begin; or, later, another rank failed or does not answer.

    Attributes:
        branch: the branch that snapshots go to.
        preempted: whether a signal announced the end.
    """

    def __init__(
        self,
        repo: Repository | str | os.PathLike[str] | None = None,
        *,
        interval: int | str | None = None,
        triggers: Sequence[Trigger] | None = None,
        max_snapshots: int | None = None,
        retention: Retention | None = None,
        branch: str | None = None,
        key: KeyProvider | None = None,
        mode: Mode = "process",
        codec: str | None = None,
        on_signal: Iterable[str] = ("SIGTERM", "SIGUSR1"),
        grace: float | str = "30s",
        max_pending: int = 1,
        when_full: WhenFull = "skip",
        on_error: OnError = "warn",
        track_files: Iterable[str | os.PathLike[str]] = (),
        frozen: Iterable[str] = (),
        metrics_file: str | os.PathLike[str] | None = None,
        metrics_port: int | None = None,
        process_group: Group | Literal[False] | None = None,
        observer: Observer = silent,
        **older: Any,
    ) -> None:
        check_choice("mode", mode, ("process", "thread", "sync"))
        check_choice("when_full", when_full, ("skip", "wait", "raise"))
        check_choice("on_error", on_error, ("warn", "raise"))
        older_interval = older.pop("save_interval", None)
        interval = older_interval if interval is None else interval
        trigger = make_trigger(interval, triggers)
        kept = make_retention(max_snapshots, retention)
        pending, never = check_pending(max_pending), frozen_paths(frozen)
        shown, port = check_file(metrics_file), check_port(metrics_port)
        files, grace_seconds = files_by_name(track_files), config.parse_duration(grace)
        self._interrupts = Interrupts(on_signal, grace_seconds, lambda seconds: self._insight.flush_late(seconds))
        where = where_to(repo, older)
        ranks = find_ranks(process_group)
        self._together = Together(ranks, never, observer) if ranks is not None else None
        self._pid, self._closed = os.getpid(), False
        self._lock = threading.RLock()
        self._tracked = Tracked(StepHooks(self._lock))
        self._went_on = False
        self._owns = not isinstance(where.repo, Repository)

        with nullcontext() if self._together is None else self._together.begin():
            self._repo = (
                where.repo
                if isinstance(where.repo, Repository)
                else _open(where.repo, where.encrypt, key, observer, self._leads)
            )
            try:
                name = branch or self._repo.branch_name or "main"
                self._insight = Insight(self._repo, name, pending, observer)
                self._shipping = (
                    Shipping(
                        self._repo,
                        name,
                        mode=mode,
                        codec=codec,
                        max_pending=pending,
                        frozen=never,
                        retention=kept,
                        files=files,
                        when_full=when_full,
                        on_error=on_error,
                        observer=observer,
                        wait_seconds=_WAIT_SECONDS,
                        telemetry=self._insight.telemetry,
                        landed=self._insight.landed,
                        checksums=None if self._together is None else self._together.stored,
                    )
                    if self._leads
                    else Following(name, observer)
                )
            except BaseException:
                self._close_repository()
                raise
        self._course = Course(self._repo, trigger, observer, self._insight.learner, describes=self._leads)
        self._course.stand_on(self.branch)
        given = interval is not None or triggers is not None
        self._insight.tie(self._course, self._shipping, interval_given=given, retention_given=kept is not None)
        if self._leads:
            self._insight.expose(shown, port)
        self._saver = Saver(
            self._course,
            self._shipping,
            self._insight,
            self._interrupts,
            self._tracked,
            self._together,
            self._lock,
            _WAIT_SECONDS,
        )
        self._interrupts.install()
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        return f"<SnapshotManager of {str(self._repo.path)!r} on {self.branch}: {self._shipping}>"

    def __enter__(self) -> Self:
        """Return the manager itself; it is closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit):
            self._interrupts.signalled = 0  # whoever says with which status the process ends has seen to it
        elif error is not None and self._interrupts.signalled:
            traceback.print_exception(error)  # nobody else will: the signal is about to end the process
        self._close(words_for(error))

    @property
    def repo(self) -> Repository:
        """The repository."""
        return self._repo

    @property
    def branch(self) -> str:
        """The branch that snapshots go to."""
        return self._shipping.branch

    @property
    def preempted(self) -> bool:
        """Whether a signal announced the end; the next step makes a snapshot and passes the signal on."""
        return bool(self._interrupts.signalled) if self._together is None else self._together.signalled

    @property
    def metrics_port(self) -> int | None:
        """The port on which metrics are served, None where they are not."""
        return self._insight.port

    def stats(self) -> ManagerStats:
        """Return what became of snapshots so far, what they cost, and how often the run was interrupted."""
        return self._insight.stats()

    # -- what is saved

    def track(self, **named: Any) -> None:
        """Let every snapshot hold these objects, under these names, and `resume` load them.

            manager.track(model=model, optimizer=optimizer, loader=loader)

        Raises:
            InvalidInput: one has no `state_dict` and `load_state_dict`.
        """
        self._tracked.add(named)

    def loader(self, dataloader: Any, *, name: str | None = None) -> Any:
        """Return what to iterate instead of a data loader, so that every snapshot holds the place in the data.

            loader = manager.loader(DataLoader(data, batch_size=8, shuffle=True))
            start = manager.resume(model, optimizer)
            for epoch in range(loader.epoch, epochs):
                for batch in loader: ...

        After `resume` the next batch is the one that would have come.  A loader with a state of its own (torchdata's
        `StatefulDataLoader`) is returned as it is.  Call it before `resume`.

        Args:
            name: what it is called in the state: by default "loader", then "loader2", "loader3".

        Raises:
            InvalidInput: no place can be kept, as in an iterable dataset without a state; or it comes after `resume`.
        """
        if self._went_on:
            raise InvalidInput(
                "a loader that comes after resume starts at the beginning of its data",
                hint="call manager.loader before manager.resume",
            )
        iterated, tracked = make_loader(dataloader)
        self._tracked.add({self._tracked.name_for("loader", name): tracked})
        return iterated

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that is held while a snapshot is captured.

        Hold it where another thread than the one that calls `step` changes the model: `with manager.lock(): ...`.
        Optimizers that are tracked or were given to `step`, `save` or `resume` wait for it by themselves before each of
        their steps; but a step that runs already does not end by that before a capture begins, only by this lock.
        """
        return self._lock

    def step(
        self,
        step: int,
        *objects: Any,
        epoch: int | None = None,
        batch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        **named: Any,
    ) -> bool:
        """Say that `step` optimizer steps are done; make a snapshot if one is due, and return whether one was captured.

        When it returns, everything may be changed: what was captured is a copy.  It becomes durable in the background.

        Args:
            step: completed optimizer steps.  A run that counts from 0 and calls this after each step may start with 0.
            objects, named: what the snapshot holds beside what is tracked: modules, optimizers, schedulers, scalers;
                anything else with a `state_dict` by name.
            epoch, batch: where in the data.  metrics: name to number.

        Raises:
            ChainError: with `on_error="raise"`, what a snapshot before this one failed of.

        Cost: less than 5 microseconds when nothing is due.
        """
        if self._together is not None:
            return self._saver.step_together(self._together, Call(step, objects, named, epoch, batch, metrics))
        self._shipping.look()
        if self._interrupts.signalled:
            return self._saver.last_step(Call(step, objects, named, epoch, batch, metrics))
        self._insight.policy.look()
        reason = self._course.due(step, batch, epoch, metrics, self._shipping.pending)
        if reason is None:
            return False
        return self._saver.snapshot(Call(step, objects, named, epoch, batch, metrics), reason)

    def save(
        self,
        state_or_step: Mapping[str, Any] | int,
        *objects: Any,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        **named: Any,
    ) -> bool:
        """Make a snapshot now: of a state as it is, or of the objects of a step; return whether it was captured.

        Args:
            state_or_step: a dict, whose "step", if it is a number, counts; or completed optimizer steps.
            objects, epoch, metrics, named: as for `step`.
        """
        with self._rank_0_first():
            self._shipping.look()
        if isinstance(state_or_step, Mapping):
            if objects or named:
                raise InvalidInput("save takes a state, or a step and objects; not both")
            state = dict(state_or_step)
            step = state.get("step")
            return self._saver.state(lambda: state, step if type(step) is int else None, epoch, metrics, "save")
        return self._saver.snapshot(Call(state_or_step, objects, named, epoch, None, metrics), "save")

    # -- going on

    def resume(self, *objects: Any, **named: Any) -> int:
        """Load the newest snapshot that reads, random numbers included, and return the step to go on with.

        0 on a fresh run, which loads nothing.  Damage is walked past with a warning, back to an older snapshot.

        Args:
            objects, named: as for `step`; what is tracked is loaded too.

        Raises:
            Damaged: there are snapshots, and none of them reads.
            StateMismatch: what is there does not fit the objects.
        """
        self.wait(_WAIT_SECONDS)
        things, names = self._tracked.with_call(objects, named)
        if self._together is not None:
            commit = self._together.load(self._repo, self.branch, things, names)
        else:
            commit = load_newest(self._repo, self.branch, things, names, self._shipping.observer)
        if self._leads:
            self._insight.resumed(commit)
        self._went_on = commit is not None
        step = 0 if commit is None else next_step(commit)
        self._shipping.prepare(gather(things, names, step=step, epoch=None))
        return step

    def load_latest(self) -> Any:
        """Return the newest state that was saved and reads.

        Raises:
            Damaged: there are some, and none of them reads.
            SnapshotNotFound: there is none; it is also a FileNotFoundError.
        """
        self.wait(_WAIT_SECONDS)
        found = None
        with self._rank_0_first():
            if self._leads:
                found = newest_that_reads(self._repo, self.branch, self._repo.checkout, self._shipping.observer)
        if self._together is not None:
            commit = self._together.share(str(found[0].id) if found is not None else "")
            if commit and not self._leads:
                return self._repo.checkout(commit)
        if found is None:
            raise SnapshotNotFound(f"nothing was saved on {self.branch!r} yet", hint="a fresh run starts without")
        self._insight.resumed(found[0])
        return found[1]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything captured is durable, or failed; return whether it is.

        Args:
            timeout: seconds; None waits without limit.
        """
        return self._shipping.drain(timeout)

    def close(self) -> None:
        """Wait until everything captured is durable, and give everything up; again is fine."""
        self._close(words_for(None))

    def _close(self, words: str) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._interrupts.uninstall()
        try:
            self._insight.leave(words)
            self._shipping.close(_WAIT_SECONDS)
        finally:
            self._tracked.clear()
            self._insight.close()
            self._close_repository()
            if self._together is not None:
                self._together.close()
            if self._interrupts.signalled:  # no step came that could have passed it on
                self._interrupts.pass_on()

    @property
    def _leads(self) -> bool:
        return self._together is None or self._together.leads

    def _rank_0_first(self) -> AbstractContextManager[None]:
        return nullcontext() if self._together is None else self._together.first()

    def _close_repository(self) -> None:
        if self._owns:
            self._repo.close()

    def _at_exit(self) -> None:
        self._close(words_at_exit())


def _open(path: Path, encrypt: bool, key: KeyProvider | None, observer: Observer, leads: bool) -> Repository:
    """Open the repository at a path; rank 0 makes it if there is none."""
    if locate(path) is None:
        if not leads:
            raise RankFailure(
                f"rank 0 has a repository at {path}, and here is none: it has to lie where all see it", {}
            )
        return init(path, key=key, encrypt=encrypt, observer=observer)
    return open_repository(path, key=key, observer=observer)
