"""The course of a run: where it is, when its next snapshot is due, and whether it went on from the one before."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat, cast

from chainstore.errors import ChainError
from chainstore.manager.gathering import describe_run, differences
from chainstore.manager.learning import Learner
from chainstore.manager.resuming import INDEX_STYLE, restart_branch, tell
from chainstore.manager.shipping import Shipping
from chainstore.manager.worktree import WorkTree, look
from chainstore.model.commit import Commit
from chainstore.observe import Observer
from chainstore.policies.progress import Moment, Progress, Trigger
from chainstore.policies.triggers import bests_after
from chainstore.repository import FileContent, Repository
from chainstore.settings import resolve

_DESCRIBE_SECONDS = 2.0  # that snapshots wait for git, counted from the start of the run


class Course:
    """Where a run is.

    Args:
        learner: is told how long steps take, and teaches adaptive rules.
        describes: whether this run says in commits what code, arguments and versions it has.
        clock: seconds, ever growing.

    Attributes:
        trigger: says when a snapshot is due.
    """

    def __init__(
        self,
        repo: Repository,
        trigger: Trigger,
        observer: Observer,
        learner: Learner,
        clock: Callable[[], float] = time.monotonic,
        *,
        describes: bool = True,
    ) -> None:
        self._repo, self._observer, self._clock = repo, observer, clock
        self._learner, self.trigger = learner, learner.rule(trigger)
        self._stood: tuple[float, int] | None = None  # when the last step ended, and what was pending then
        self._last: Moment | None = None
        self._best: Mapping[str, float] = {}
        self._loaded = False
        self._tip_step: int | None = None
        self._fresh = True
        self._checked = False
        self._counting: str | None = None
        self._began: int | None = None  # the first step that was heard of
        self._now = Progress(0, 0.0)
        self._run: Mapping[str, Any] = {}
        self._tree = WorkTree()
        self._told = self._tree  # by the last `meta`
        self._no_diff = _why_no_diff(repo)
        self._describe_by = time.monotonic() + _DESCRIBE_SECONDS
        self._describing = threading.Thread(target=self._describe, name="chainstore-describe", daemon=True)
        if describes:
            self._describing.start()

    def stand_on(self, branch: str) -> None:
        """Look where a branch is that the run will add to."""
        self._fresh = branch not in self._repo.branches()
        self._tip_step = None if self._fresh else self._repo.get_commit(branch).step

    def due(
        self,
        step: int,
        batch: int | None,
        epoch: int | None,
        metrics: Mapping[str, object] | None,
        pending: int,
    ) -> str | None:
        """Return why a snapshot is due, or None."""
        if self._counting is None:
            self._counting = INDEX_STYLE if self._fresh and step == 0 else "completed"
            self._began = step
        given = cast(Mapping[str, SupportsFloat], metrics or {})
        at, stood = self._clock(), self._stood
        if stood is not None and bool(stood[1]) == bool(pending):
            self._learner.stepped(at - stood[0], bool(pending))
        self._stood = at, pending
        now = Progress(step, at, batch, epoch, given, self._last, pending, "", self._best)
        self._now = now
        return self.trigger.due(now)

    def captured(self, step: int, epoch: int | None, metrics: Mapping[str, object] | None) -> None:
        """Take note that a snapshot was captured."""
        now, at = self._now, self._clock()
        batch = now.batch if now.step == step else None
        self._last, self._stood = Moment(step, at, batch, epoch), (at, 1)
        given = cast(Mapping[str, SupportsFloat], metrics or {})
        self._best = bests_after(self._best, given, self.trigger)

    def follow(self, trigger: Trigger) -> None:
        """Go by a rule from here on, an adaptive one with what was learned."""
        self.trigger = self._learner.rule(trigger)

    def now(self) -> float:
        """Return the time on the clock of captures."""
        return self._clock()

    def check_restart(self, shipping: Shipping, step: int) -> None:
        """Let a run that forgot to load what is on its branch go to another one: it must not bury the good run."""
        if self._checked:
            return
        self._checked = True
        step = step if self._began is None else min(step, self._began)  # a first snapshot may come late
        if self._loaded or self._tip_step is None or step >= self._tip_step:
            return
        if self._began == 0:
            self._counting = INDEX_STYLE  # as fresh as can be
        branch = restart_branch(self._repo, shipping.branch)
        tell(
            self._observer,
            "restarted",
            f"{shipping.branch!r} is at step {self._tip_step}, and this run began at step {step} without having loaded "
            f"anything: its snapshots go to {branch!r}. Call manager.resume(model, optimizer) to go on instead",
        )
        shipping.move_to(branch)

    def resumed(self, commit: Commit | None) -> None:
        """Take note that a run went on from a commit, or that there was none."""
        self._loaded = True
        if commit is None:
            return
        counting = commit.meta.get("counting")
        self._counting = str(counting) if counting else "completed"
        self._last = Moment(commit.step or 0, self._clock(), None, commit.epoch)
        self._best = bests_after({}, commit.metrics, self.trigger)
        before = commit.meta.get("run")
        if isinstance(before, Mapping):
            for text in differences(before, self._described()):
                tell(self._observer, "run-differs", f"{text}; the run may go on otherwise than it would have")

    def meta(self, why: str) -> dict[str, object]:
        """Return what a commit says beside its step and metrics."""
        run = self._described()
        return {"why": why, "counting": self._counting or "completed", "run": run}

    def files(self) -> Mapping[str, FileContent]:
        """Return what goes beside the state with a commit that says what `meta` returned last."""
        return self._told.files

    def _described(self) -> dict[str, Any]:
        if not self._describing.ident:
            return {}
        self._describing.join(max(0.0, self._describe_by - time.monotonic()))
        self._told = self._tree
        return {**self._run, **({"git": self._told.told} if self._told.told else {})}

    def _describe(self) -> None:
        self._run = describe_run()
        self._tree = look(".", no_diff=self._no_diff)


def _why_no_diff(repo: Repository) -> str:
    """Return why the difference of the work tree is not stored, "" where it is."""
    try:
        found = resolve("git_diff", None, repo.settings())
    except ChainError as error:  # then nobody knows whether it may be
        return f"the settings cannot be read: {error}"
    return "" if found.value == "yes" else f"git_diff is no ({found.origin})"
