"""A repository and a model made of dicts are told the same things, and must agree after each."""

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chainstore.crypto.keys import generate_key_file
from chainstore.errors import AlreadyExists, InvalidInput, NotFound, RefConflict
from chainstore.ids import ObjectId
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import run
from tests.faults.chronicle import same, state
from tests.faults.failpoints import Failpoints, die
from tests.faults.grounds import fast_folder
from tests.faults.seeds import base_seed

NAMES = st.sampled_from(["main", "left", "right", "deep/er", "ünïcode"])
TAGS = st.sampled_from(["v1", "v2", "best"])
STATES = st.integers(0, 4)  # few, so that states come back that are stored already


@dataclass(frozen=True, slots=True)
class Node:
    """A commit as the model knows it: which state it holds, and its parent."""

    state: int
    parent: ObjectId | None


@dataclass(slots=True)
class Model:
    """What a repository must look like.

    Attributes:
        head: the name of a branch, or the commit itself where it is detached.
        moves: how often each branch moved, deletions included.
    """

    commits: dict[ObjectId, Node] = field(default_factory=dict)
    branches: dict[str, ObjectId] = field(default_factory=dict)
    tags: dict[str, ObjectId] = field(default_factory=dict)
    head: str | ObjectId = "main"
    moves: dict[str, int] = field(default_factory=dict)

    @property
    def tip(self) -> ObjectId | None:
        """Where HEAD leads."""
        return self.branches.get(self.head) if not isinstance(self.head, ObjectId) else self.head

    def chain(self, tip: ObjectId | None) -> list[ObjectId]:
        """Return a commit and what it descends from, newest first."""
        found = []
        while tip is not None:
            found.append(tip)
            tip = self.commits[tip].parent
        return found

    def move(self, branch: str, target: ObjectId | None) -> None:
        """Let a branch be elsewhere, or nowhere."""
        self.moves[branch] = self.moves.get(branch, 0) + 1
        if target is None:
            del self.branches[branch]
        else:
            self.branches[branch] = target


class Machine(RuleBasedStateMachine):
    """Tells a repository and a model the same."""

    commits: Bundle[ObjectId] = Bundle("commits")

    def __init__(self, folder: Path) -> None:
        super().__init__()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.folder, self.model = folder, Model()
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        self.repo = init(folder / "repo", key=self.key, threads=1)

    def teardown(self) -> None:
        try:
            report = self.repo.verify("data")
            assert report.ok, report.damaged
            for id, node in self.model.commits.items():
                assert same(self.repo.checkout(id), state(node.state))
        finally:
            self.repo.close()

    def open(self) -> Repository:
        return open_repository(self.folder / "repo", key=self.key, threads=1)

    # -- rules

    @rule(target=commits, branch=st.none() | NAMES, number=STATES, piecewise=st.booleans())
    def commit(self, branch: str | None, number: int, piecewise: bool) -> ObjectId:
        head = self.model.head
        if branch is None and isinstance(head, ObjectId):
            branch_after = self.fresh_branch(head)
            parent: ObjectId | None = head
        else:
            branch_after = branch if branch is not None else str(head)
            parent = self.model.branches.get(branch_after) or self.model.tip
        if piecewise:
            with self.repo.writer(branch, f"state {number}", step=number) as writer:
                for key, value in state(number).items():
                    writer[key] = value
            id = self.repo.branches()[branch_after]
        else:
            id = self.repo.commit(state(number), f"state {number}", branch=branch, step=number).id
        assert self.repo.get_commit(id).parents == ((parent,) if parent else ())
        self.model.commits[id] = Node(number, parent)
        self.model.move(branch_after, id)
        if branch is None:
            self.model.head = branch_after
        return id

    def fresh_branch(self, at: ObjectId) -> str:
        stem = f"from-{at.short}"
        names = [stem, *(f"{stem}-{number}" for number in range(2, 30))]
        return next(name for name in names if name not in self.model.branches)

    @rule(branch=NAMES, wrong=commits, number=STATES)
    def commit_where_the_branch_is_not(self, branch: str, wrong: ObjectId, number: int) -> None:
        if self.model.branches.get(branch) != wrong:
            with pytest.raises(RefConflict):
                self.repo.commit(state(number), branch=branch, expected_head=wrong)

    @rule(number=STATES)
    def give_a_writer_up(self, number: int) -> None:
        with pytest.raises(ZeroDivisionError), self.repo.writer() as writer:
            writer["state"] = state(number)
            raise ZeroDivisionError

    @rule(name=NAMES, start=commits)
    def branch(self, name: str, start: ObjectId) -> None:
        if name in self.model.branches:
            with pytest.raises(AlreadyExists):
                self.repo.branch(name, start)
        else:
            self.repo.branch(name, start)
            self.model.move(name, start)

    @rule(name=TAGS, at=commits)
    def tag(self, name: str, at: ObjectId) -> None:
        if name in self.model.tags:
            with pytest.raises(AlreadyExists):
                self.repo.tag(name, at)
        else:
            self.repo.tag(name, at)
            self.model.tags[name] = at

    @rule(name=NAMES | TAGS)
    def delete(self, name: str) -> None:
        if name == self.model.head and name in self.model.branches:
            with pytest.raises(InvalidInput):
                self.repo.delete_ref(name)
        elif name in self.model.branches:
            assert self.repo.delete_ref(name) == self.model.branches[name]
            self.model.move(name, None)
        elif name in self.model.tags:
            assert self.repo.delete_ref(name) == self.model.tags.pop(name)
        else:
            with pytest.raises(NotFound):
                self.repo.delete_ref(name)

    @rule(name=NAMES)
    def switch(self, name: str) -> None:
        if name in self.model.branches:
            self.repo.switch(name)
            self.model.head = name
        else:
            with pytest.raises(NotFound):
                self.repo.switch(name)

    @rule(at=commits)
    def detach(self, at: ObjectId) -> None:
        self.repo.detach(at)
        self.model.head = at

    @rule(name=NAMES, to=commits)
    def reset(self, name: str, to: ObjectId) -> None:
        if name in self.model.branches:
            assert self.repo.reset(name, to) == self.model.branches[name]
            self.model.move(name, to)
        else:
            with pytest.raises(NotFound):
                self.repo.reset(name, to)

    @rule(at=commits)
    def check_out(self, at: ObjectId) -> None:
        assert same(self.repo.checkout(at), state(self.model.commits[at].state))

    @precondition(lambda self: self.model.tip is not None)
    @rule(back=st.integers(0, 3))
    def check_out_an_ancestor_of_head(self, back: int) -> None:
        chain = self.model.chain(self.model.tip)
        if back < len(chain):
            assert same(self.repo.checkout(f"HEAD~{back}"), state(self.model.commits[chain[back]].state))
        else:
            with pytest.raises(NotFound):
                self.repo.checkout(f"HEAD~{back}")

    @rule()
    def rebuild(self) -> None:
        report = self.repo.rebuild_index()
        assert not report.problems and not report.log_healed

    @rule()
    def close_and_open(self) -> None:
        self.repo.close()
        self.repo = self.open()

    @rule(branch=NAMES, number=STATES, step=st.integers(1, 40))
    def be_killed_in_another_process(self, branch: str, number: int, step: int) -> None:
        def work() -> str:
            with Failpoints(die, step).installed(), self.open() as repo:
                return str(repo.commit(state(number), f"state {number}", branch=branch, step=number).id)

        ending = run(work)
        assert not ending.error, ending.error
        parent = self.model.branches.get(branch) or self.model.tip
        self.close_and_open()  # which finishes what was begun, or cuts it off
        id = self.repo.branches().get(branch)
        if ending.answer:
            assert str(id) == ending.answer
        if id is not None and id != self.model.branches.get(branch):
            assert self.repo.get_commit(id).parents == ((parent,) if parent else ())
            self.model.commits[id] = Node(number, parent)
            self.model.move(branch, id)

    @rule()
    def see_it_for_reading_only(self) -> None:
        with open_repository(self.folder / "repo", key=self.key, readonly=True) as repo:
            assert repo.branches() == self.model.branches
            assert repo.verify("quick").ok

    # -- what must hold

    @invariant()
    def refs_agree(self) -> None:
        assert self.repo.branches() == self.model.branches
        assert self.repo.tags() == self.model.tags
        assert self.repo.branch_name == (None if isinstance(self.model.head, ObjectId) else self.model.head)

    @invariant()
    def histories_agree(self) -> None:
        assert {commit.id for commit in self.repo.log()} == set(self.model.chain(self.model.tip))
        for commit in self.repo.log(max_count=3):
            assert commit.step == self.model.commits[commit.id].state
        for name, tip in self.model.branches.items():
            lines = self.repo.reflog(name)
            assert len(lines) == self.model.moves[name] and lines[0].new == tip


def play(folder: Path, examples: int, steps: int) -> None:
    started = base_seed()

    class Game(Machine):
        def __init__(self) -> None:
            super().__init__(folder / "game")

    try:
        run_state_machine_as_test(
            seed(started)(Game),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                print_blob=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except BaseException as error:
        error.add_note(f"replay with CHAIN_TEST_SEED={started}")
        raise


def test_a_repository_does_what_a_model_of_dicts_does(tmp_path: Path) -> None:
    with fast_folder(tmp_path) as folder:
        play(folder, 150, 30)


@pytest.mark.long
def test_a_repository_does_what_a_model_of_dicts_does_for_long(tmp_path: Path) -> None:
    with fast_folder(tmp_path) as folder:
        play(folder, 600, 60)
