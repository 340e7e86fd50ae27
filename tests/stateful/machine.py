"""The machine: tells a repository and the reference model the same, and compares them after each step.

What may be made of it:

    commits on several branches, of states that share arrays and that come back; refs made, moved, deleted, rolled back
    snapshots forgotten by policy and by name, brought back, and collected
    weeks that pass, so that reflogs expire and commits vanish

What ends early is in `ends`.
"""

import random
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from chainstore import config
from chainstore.crypto.keys import generate_key_file
from chainstore.errors import ChainError, RefConflict, RevisionNotFound, SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.ops import gc as gc_module
from chainstore.policies.retention import Retention
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.testing.model import Model
from chainstore.testing.model_names import HEAD
from tests.faults.chronicle import same, state

NAMES = st.sampled_from(["main", "left", "right", "deep/er", "ünïcode"])
TAGS = st.sampled_from(["v1", "v2", "best"])
STATES = st.integers(0, 4)  # few, so that states come back that are stored already
Answer = TypeVar("Answer")


class QuietMachine(RuleBasedStateMachine):
    """Tells a repository and a model the same; nothing ends early."""

    commits: Bundle[ObjectId] = Bundle("commits")

    def __init__(self, folder: Path) -> None:
        super().__init__()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.days = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(config, "now", self.now)
        self.patch.setattr(gc_module, "_BREATH_SECONDS", 0.0)  # nobody else wants the lock
        self.folder, self.model = folder, Model(lambda: self.now().timestamp())
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        self.repo = init(folder / "repo", key=self.key, threads=1)
        self.lost_handles: list[Repository] = []

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=self.days)

    def teardown(self) -> None:
        try:
            report = self.repo.verify("data")
            assert report.ok, report.damaged
            for id in self.model.commits:
                self.read(id)
        finally:
            self.repo.close()
            self.close_lost_handles()
            self.patch.undo()

    def close_lost_handles(self) -> None:
        while self.lost_handles:
            self.lost_handles.pop().close()

    def open(self) -> Repository:
        return open_repository(self.folder / "repo", key=self.key, threads=1)

    # -- comparing

    def both(self, done: Callable[[], Answer], told: Callable[[Answer], object]) -> Answer | None:
        """Do it, and tell the model, which must refuse it just where the repository does.

        Args:
            told: gets what `done` returned; where that was refused, it must refuse before it looks at it.
        """
        answer, refusal = None, None
        try:
            answer = done()
        except ChainError as error:
            refusal = error
        try:
            told(answer)  # type: ignore[arg-type]
        except ChainError as expected:
            assert type(refusal) is type(expected), f"{expected!r} was expected, and not {refusal!r}"
            return None
        if refusal is not None:
            raise refusal
        return answer

    def read(self, id: ObjectId) -> None:
        def compare(found: object) -> None:
            assert same(found, self.model.read(id))

        self.both(lambda: self.repo.checkout(id), lambda found: self.model.read(id) and compare(found))

    def matches(self, model: Model) -> bool:
        """Whether the repository is as `model` says, as far as names, marks and reflogs (of deleted refs too) tell."""
        marks = {id: mark.swept for id, mark in self.repo.marks().items() if id in model.commits}
        refs = self.repo.branches(), self.repo.tags()
        head = self.repo.resolve("HEAD") if model.tip is not None else None
        logged = self.model.moves.keys() - {HEAD}
        moves = {name: self.count_moves(name) for name in logged}
        told = {name: len(model.moves.get(name, ())) for name in logged}
        return (refs, head, marks, moves) == ((model.branches, model.tags), model.tip, model.marks, told)

    def count_moves(self, full: str) -> int:
        with suppress(RevisionNotFound):
            return len(self.repo.reflog(full))
        return 0

    def settle_on(self, *possible: Model) -> None:
        """Go on with the one of these that the repository is like; there must be one."""
        found = [model for model in possible if self.matches(model)]
        assert found, f"{self.repo.branches()} {self.repo.tags()} {self.repo.marks()} is none of {possible}"
        self.model = found[0]

    # -- commits and refs

    @rule(target=commits, branch=st.none() | NAMES, number=STATES, piecewise=st.booleans())
    def commit(self, branch: str | None, number: int, piecewise: bool) -> ObjectId:
        parents = self.model.parents_for(branch)
        if piecewise:
            with self.repo.writer(branch, f"state {number}", step=number) as writer:
                for key, value in state(number).items():
                    writer[key] = value
            id = self.repo.branches()[branch or str(self.repo.branch_name)]
        else:
            id = self.repo.commit(state(number), f"state {number}", branch=branch, step=number).id
        assert self.repo.get_commit(id).parents == parents
        self.model.commit(id, state(number), branch=branch, step=number)
        return id

    @rule(branch=NAMES, wrong=commits, number=STATES)
    def commit_where_the_branch_is_not(self, branch: str, wrong: ObjectId, number: int) -> None:
        if self.model.branches.get(branch) != wrong:
            with pytest.raises(RefConflict if wrong in self.model.commits else RevisionNotFound):
                self.repo.commit(state(number), branch=branch, expected_head=wrong)

    @rule(number=STATES)
    def give_a_writer_up(self, number: int) -> None:
        with pytest.raises(ZeroDivisionError), self.repo.writer() as writer:
            writer["state"] = state(number)
            raise ZeroDivisionError

    @rule(name=NAMES, start=commits)
    def branch(self, name: str, start: ObjectId) -> None:
        self.both(lambda: self.repo.branch(name, start), lambda _: self.model.branch(name, start))

    @rule(name=TAGS, at=commits)
    def tag(self, name: str, at: ObjectId) -> None:
        self.both(lambda: self.repo.tag(name, at), lambda _: self.model.tag(name, at))

    @rule(name=NAMES | TAGS)
    def delete(self, name: str) -> None:
        found: list[ObjectId] = []
        was = self.both(lambda: self.repo.delete_ref(name), lambda _: found.append(self.model.delete(name)))
        assert [was] == (found or [None])

    @rule(name=NAMES)
    def switch(self, name: str) -> None:
        self.both(lambda: self.repo.switch(name), lambda _: self.model.switch(name))

    @rule(at=commits)
    def detach(self, at: ObjectId) -> None:
        self.both(lambda: self.repo.detach(at), lambda _: self.model.detach(at))

    @rule(name=NAMES, to=commits)
    def reset(self, name: str, to: ObjectId) -> None:
        self.both(lambda: self.repo.reset(name, to), lambda _: self.model.reset(name, to))

    @rule(name=NAMES, to=commits)
    def roll_back(self, name: str, to: ObjectId) -> None:
        self.both(
            lambda: self.repo.rollback(name, to=to),
            lambda found: self.model.roll_back(name, to, found.tag if found is not None else ""),
        )

    # -- forgetting and collecting

    @rule(last=st.integers(1, 3), every_steps=st.integers(2, 5), dry=st.booleans())
    def forget_by_policy(self, last: int, every_steps: int, dry: bool) -> None:
        model = self.model.copy() if dry else self.model
        plan = self.repo.forget(Retention(last=last, every_steps=every_steps), dry_run=dry)
        assert set(plan.dropped) == model.forget_by(last, every_steps)

    @rule(ids=st.lists(commits, min_size=1, max_size=3, unique=True))
    def forget_by_name(self, ids: list[ObjectId]) -> None:
        dropped: set[ObjectId] = set()
        plan = self.both(lambda: self.repo.forget(commits=ids), lambda _: dropped.update(self.model.forget(ids)))
        assert set(plan.dropped if plan is not None else ()) == dropped

    @rule(ids=st.none() | st.lists(commits, max_size=2, unique=True))
    def unforget(self, ids: list[ObjectId] | None) -> None:
        back: set[ObjectId] = set()
        found = self.both(lambda: self.repo.unforget(ids), lambda _: back.update(self.model.unforget(ids)))
        assert set(found or ()) == back

    @rule()
    def collect(self) -> None:
        report = self.repo.gc()
        gone = self.model.gc()
        assert report.commits == len(gone) and not report.left
        again = self.repo.gc(dry_run=True)
        assert (again.objects, again.swept, again.reflog_lines) == (0, 0, 0)

    @rule(days=st.sampled_from([1, 8, 15]))
    def let_days_pass(self, days: int) -> None:
        self.days += days

    # -- looking

    @rule(at=commits)
    def check_out(self, at: ObjectId) -> None:
        self.read(at)

    @precondition(lambda self: self.model.tip is not None)
    @rule(back=st.integers(0, 3))
    def check_out_an_ancestor_of_head(self, back: int) -> None:
        chain = self.model.chain(self.model.tip)
        if back < len(chain):
            assert self.repo.resolve(f"HEAD~{back}") == chain[back]
            self.read(chain[back])
        else:
            with pytest.raises(RevisionNotFound):
                self.repo.checkout(f"HEAD~{back}")

    @rule()
    def verify(self) -> None:
        report = self.repo.verify("data")
        assert report.ok, report.damaged

    @rule()
    def see_it_for_reading_only(self) -> None:
        with open_repository(self.folder / "repo", key=self.key, readonly=True) as repo:
            assert repo.branches() == self.model.branches
            assert repo.verify("quick").ok

    # -- what must hold

    @invariant()
    def refs_and_marks_agree(self) -> None:
        assert self.repo.branches() == self.model.branches
        assert self.repo.tags() == self.model.tags
        assert self.repo.branch_name == (None if isinstance(self.model.head, ObjectId) else self.model.head)
        marks = self.repo.marks()
        assert {id: mark.swept for id, mark in marks.items() if id in self.model.commits} == self.model.marks

    @invariant()
    def histories_agree(self) -> None:
        chain = [commit.id for commit in self.repo.log()]
        assert chain == self.model.chain(self.model.tip)
        for commit in self.repo.log(max_count=3):
            assert commit.step == self.model.commits[commit.id].step
        for name, tip in self.model.branches.items():
            lines, told = self.repo.reflog(name), self.model.reflog(name)
            assert [(line.old, line.new) for line in lines] == [(line.old, line.new) for line in told]
            assert lines[0].new == tip

    @invariant()
    def tips_are_whole(self) -> None:
        """What has a name was not collected, and neither forgotten."""
        for id in self.model.protected():
            assert id not in self.model.marks
            assert list(self.repo.snapshot(id)) == list(state(0))

    def forgotten(self) -> Collection[ObjectId]:
        return self.model.marks.keys()

    @invariant()
    def what_was_forgotten_is_refused(self) -> None:
        for id in list(self.forgotten())[:1]:
            with pytest.raises(SnapshotForgotten):
                self.repo.checkout(id)
