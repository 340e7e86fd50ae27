"""The chronicle: what was asked of a repository and what it acknowledged, written outside of it.

A line is written before a change and another, fsynced, once it was acknowledged; so after a kill it is known what
must be there, and which one change may be.
"""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chainstore.errors import Locked, SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.repository import Repository

Change = dict[str, Any]

BULKY = 1 << 40


def state(number: int) -> dict[str, object]:
    """Return the state of commit `number`, which alone decides every byte: 200 KB, most of it the same in all; from
    `BULKY` on 1 MiB more, which is not.
    """
    source = np.random.default_rng(number)
    bulk = {"bulk": np.frombuffer(source.bytes(1 << 20), np.uint8)} if number >= BULKY else {}
    return bulk | {
        "weights": source.standard_normal(3000, dtype=np.float32),
        "frozen": np.arange(40_000, dtype=np.float32),
        "moments": {"exp_avg": source.standard_normal(300), "step": number},
        "note": f"commit {number}",
    }


def same(a: object, b: object) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


@dataclass(slots=True)
class Refs:
    """A repository as its refs show it: the numbers of commits, oldest first, by branch; one number by tag; the
    numbers of commits whose snapshots were forgotten.
    """

    branches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    forgotten: frozenset[int] = frozenset()

    def after(self, change: Change) -> "Refs":
        """Return what they are once `change` happened."""
        branches, tags, forgotten = dict(self.branches), dict(self.tags), self.forgotten
        match change:
            case {"what": "commit", "name": name, "number": number}:
                branches[name] = (*branches.get(name, ()), number)
            case {"what": "branch", "name": name, "at": at}:
                branches[name] = branches[at]
            case {"what": "tag", "name": name, "at": at}:
                tags[name] = branches[at][-1]
            case {"what": "delete", "name": name}:
                branches.pop(name, None)
                tags.pop(name, None)
            case {"what": "reset", "name": name}:
                branches[name] = branches[name][:-1]
            case {"what": "forget", "numbers": numbers}:
                forgotten = forgotten | set(numbers)
            case {"what": "unforget", "numbers": numbers}:
                forgotten = forgotten - set(numbers)
        return Refs(branches, tags, forgotten)

    def of(self, owner: str) -> "Refs":
        """Return those whose names begin with `owner`."""
        branches = {name: chain for name, chain in self.branches.items() if name.startswith(owner)}
        tags = {name: number for name, number in self.tags.items() if name.startswith(owner)}
        ours = {number for chain in branches.values() for number in chain}
        return Refs(branches, tags, self.forgotten & ours)


def observe(repo: Repository) -> Refs:
    """Return the refs of a repository, every commit below them read."""
    commits: dict[ObjectId, Commit] = {}

    def chain(tip: ObjectId) -> tuple[int, ...]:
        numbers = []
        id: ObjectId | None = tip
        while id is not None:
            if id not in commits:
                commits[id] = repo.get_commit(id)
            numbers.append(int(commits[id].message))
            id = commits[id].parents[0] if commits[id].parents else None
        return tuple(reversed(numbers))

    return Refs(
        {name: chain(tip) for name, tip in repo.branches().items()},
        {name: chain(tip)[-1] for name, tip in repo.tags().items()},
        frozenset(int(repo.get_commit(id).message) for id in repo.marks()),
    )


class Chronicle:
    """One file of lines; one process at a time appends to it.

    Args:
        path: outside the repository.
        owner: what the names of all branches and tags in it begin with.
    """

    def __init__(self, path: Path, owner: str = "") -> None:
        self.path, self.owner = path, owner

    @contextmanager
    def change(self, what: str, **facts: object) -> Iterator[Change]:
        """Say that a change begins and, durably, that it was acknowledged; the block may add facts."""
        line: Change = {"what": what, **facts}
        self._write("begin", line)
        yield line
        self._write("done", line)

    def deny(self) -> None:
        """Say that the change that was begun failed: it must not be there."""
        self._write("denied", {})

    def _write(self, kind: str, line: Change) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps([kind, line]).encode() + b"\n")
            os.fsync(file)

    def read(self) -> tuple[list[Change], Change | None]:
        """Return the acknowledged changes in order, and the one that was begun and not acknowledged."""
        done: list[Change] = []
        begun: Change | None = None
        for text in self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []:
            kind, line = json.loads(text)
            if kind == "done":
                done.append(line)
            begun = line if kind == "begin" else None
        return done, begun

    def check(self, repo: Repository, before: Refs) -> Refs:
        """Compare a repository with what it acknowledged, every byte of it read; return its refs now.

        Args:
            before: the refs when the chronicle began.

        Raises:
            AssertionError: something acknowledged is missing, or something else is there in half.
        """
        found = self.check_ours(repo, before)
        report = repo.verify("data")
        assert report.ok, report.damaged
        for name, chain in found.branches.items():
            self._check_commit(repo, repo.resolve(name), chain[-1], frozenset())
        return found

    def check_ours(self, repo: Repository, before: Refs) -> Refs:
        """Do the same for what has our owner's name, while others may be at work."""
        done, begun = self.read()
        expected = before.of(self.owner)
        for change in done:
            expected = expected.after(change)
        found = observe(repo)
        possible = [expected] if begun is None else [expected, expected.after(begun)]
        assert found.of(self.owner) in possible, f"{found}\nshould be one of {possible}\nin flight was {begun}"
        for change in done:
            if change["what"] == "commit":
                self._check_commit(repo, ObjectId.parse(change["id"]), change["number"], found.forgotten)
        return found

    @staticmethod
    def _check_commit(repo: Repository, id: ObjectId, number: int, forgotten: frozenset[int]) -> None:
        assert repo.get_commit(id).step == number
        try:
            came_back = repo.checkout(id)
        except SnapshotForgotten:
            assert number in forgotten, f"commit {number} is said to be forgotten, and is not"
        else:
            assert number not in forgotten, f"commit {number} is forgotten, and came back"
            assert same(came_back, state(number)), f"commit {number} came back otherwise than it was"


class Actor:
    """Does one random change after the other and keeps the chronicle of it.

    Args:
        number: of its next commit; those of actors at work together must not meet.
        upkeep: forget snapshots too, and collect garbage.
    """

    def __init__(
        self, repo: Repository, chronicle: Chronicle, source: random.Random, number: int, *, upkeep: bool = False
    ) -> None:
        self._repo, self._chronicle, self._source = repo, chronicle, source
        self.number = number
        self._upkeep = [*["forget"] * 4, "unforget", *["gc"] * 4] if upkeep else []

    def act(self) -> None:
        """Do one change."""
        ours = [name for name in self._repo.branches() if name.startswith(self._chronicle.owner)]
        kinds = ["commit"] * 8 + ["writer"] * 3 + ["branch", "tag", "tag", "rebuild", *self._upkeep]
        kind = self._source.choice(kinds) if ours else "commit"
        name = f"{self._chronicle.owner}{self.number}"
        at = self._source.choice(ours) if ours else name
        if kind == "branch" and len(ours) < 5:
            with self._chronicle.change("branch", name=name, at=at):
                self._repo.branch(name, at)
        elif kind == "tag":
            with self._chronicle.change("tag", name=f"{name}-tag", at=at):
                self._repo.tag(f"{name}-tag", at)
        elif kind == "rebuild":
            with self._chronicle.change("rebuild"):
                self._repo.rebuild_index()
        elif kind == "forget":
            self.forget(ours)
        elif kind == "unforget":
            self.unforget(ours)
        elif kind == "gc":
            self.collect()
        else:
            self.commit(at, piecewise=kind == "writer")
        self.number += 1

    def commit(self, branch: str, *, piecewise: bool = False) -> None:
        """Make the next commit, at once or with a writer."""
        number = self.number
        with self._chronicle.change("commit", name=branch, number=number) as line:
            if piecewise:
                with self._repo.writer(branch, str(number), step=number) as writer:
                    for key, value in state(number).items():
                        writer[key] = value
                line["id"] = str(self._repo.resolve(branch))
            else:
                line["id"] = str(self._repo.commit(state(number), str(number), branch=branch, step=number).id)

    def forget(self, branches: list[str]) -> None:
        """Forget some of the snapshots of these branches that are not the newest and have no tag."""
        named = {*self._repo.branches().values(), *self._repo.tags().values()}
        forgotten = self._repo.marks()
        chains = {commit.id: commit for name in branches for commit in self._repo.log(name)}
        able = [commit for id, commit in chains.items() if id not in named and id not in forgotten]
        chosen = self._source.sample(able, self._source.randint(0, len(able)))
        if chosen:
            with self._chronicle.change("forget", numbers=[int(commit.message) for commit in chosen]):
                self._repo.forget(commits=[commit.id for commit in chosen])

    def unforget(self, branches: list[str]) -> None:
        """Bring all snapshots of these branches back that can come back; gc may be faster."""
        ours = {commit.id: int(commit.message) for name in branches for commit in self._repo.log(name)}
        able = [id for id, mark in self._repo.marks().items() if not mark.swept and id in ours]
        if able:
            try:
                with self._chronicle.change("unforget", numbers=[ours[id] for id in able]):
                    self._repo.unforget(able)
            except SnapshotForgotten:
                self._chronicle.deny()

    def collect(self) -> None:
        """Collect garbage, unless somebody else does."""
        try:
            with self._chronicle.change("gc"):
                self._repo.gc()
        except Locked as error:
            assert error.what == "garbage collection", error
            self._chronicle.deny()
