"""Ends of all kinds: the machine with processes that are killed, handles never closed, and indexes made anew.

A process is killed at any operation on the disk, or right between the log and the index.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import rule

from chainstore.errors import RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.policies.retention import Retention
from chainstore.repository import Repository
from tests.faults.children import run
from tests.faults.chronicle import state
from tests.faults.failpoints import Failpoints, die
from tests.stateful.machine import NAMES, STATES, QuietMachine

IN_LINE = "before index commit"


@dataclass(slots=True)
class DieBetween(Failpoints):
    """Die between the log and the index, at the `at`-th line."""

    lines: int = 0

    def __call__(self, name: str, path: Path) -> None:
        self.lines += name == IN_LINE
        if name == IN_LINE and self.lines == self.at:
            die()


class Machine(QuietMachine):
    """Tells a repository and a model the same, whatever ends early."""

    @rule()
    def rebuild(self) -> None:
        report = self.repo.rebuild_index()
        assert not report.problems and not report.log_healed

    @rule()
    def close_and_open(self) -> None:
        self.repo.close()
        self.repo = self.open()

    @rule()
    def open_without_closing(self) -> None:
        self.lost_handles.append(self.repo)
        self.repo = self.open()

    def killed(self, at: Failpoints, work: Callable[[Repository], object]) -> object:
        """Let another process be killed at it; return what it answered, None if it died, and look at what is left."""

        def in_child() -> object:
            with at.installed(), self.open() as repo:
                return work(repo)

        ending = run(in_child)
        assert not ending.error, ending.error
        self.close_lost_handles()
        self.close_and_open()  # which finishes what was begun, or cuts it off
        return ending.answer

    @rule(branch=NAMES, number=STATES, step=st.integers(1, 40))
    def be_killed_at_a_commit(self, branch: str, number: int, step: int) -> None:
        self.killed_at_commit(Failpoints(die, step), branch, number)

    @rule(branch=NAMES, number=STATES)
    def be_killed_at_a_commit_between_log_and_index(self, branch: str, number: int) -> None:
        self.killed_at_commit(DieBetween(at=1), branch, number)
        assert self.model.commits[self.model.branches[branch]].step == number  # the log had it, so it happened

    def killed_at_commit(self, at: Failpoints, branch: str, number: int) -> None:
        parents = self.model.parents_for(branch)
        answer = self.killed(
            at, lambda repo: str(repo.commit(state(number), f"state {number}", branch=branch, step=number).id)
        )
        id = self.repo.branches().get(branch)
        assert answer is None or str(id) == answer
        if id is not None and id != self.model.branches.get(branch):
            assert self.repo.get_commit(id).parents == parents
            self.model.commit(id, state(number), branch=branch, step=number)
            self.read(id)

    @rule(last=st.integers(1, 2), every_steps=st.integers(2, 5), step=st.integers(1, 8))
    def be_killed_at_a_forget(self, last: int, every_steps: int, step: int) -> None:
        after = self.model.copy()
        after.forget_by(last, every_steps)
        policy = Retention(last=last, every_steps=every_steps)
        done = self.killed(Failpoints(die, step), lambda repo: bool(repo.forget(policy)))
        self.settle_on(*([after] if done else [self.model, after]))

    @rule(step=st.integers(1, 60))
    def be_killed_at_a_collection(self, step: int) -> None:
        self.killed_at_collection(Failpoints(die, step))

    @rule(line=st.integers(1, 4))
    def be_killed_at_a_collection_between_log_and_index(self, line: int) -> None:
        self.killed_at_collection(DieBetween(at=line))

    def killed_at_collection(self, at: Failpoints) -> None:
        expired, swept = self.model.copy(), self.model.copy()
        expired.expire()
        swept.expire()
        swept.sweep()
        done = self.killed(at, lambda repo: repr(repo.gc()))
        possible = [swept] if done is not None else [self.model, expired, swept]
        for model in possible:
            model.bury([id for id in model.unreachable() if self.is_gone(id)])
        self.settle_on(*possible)
        for id in self.model.commits:
            assert not self.is_gone(id)
        if done is not None:
            assert not self.model.unreachable()

    def is_gone(self, id: ObjectId) -> bool:
        with suppress(RevisionNotFound):
            return not self.repo.get_commit(id)
        return True

    @rule(step=st.integers(1, 30))
    def be_killed_at_a_rebuild(self, step: int) -> None:
        self.killed(Failpoints(die, step), lambda repo: repo.rebuild_index() and None)
        self.settle_on(self.model)
