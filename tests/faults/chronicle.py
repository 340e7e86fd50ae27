"""The chronicle: what was asked of a repository and what it acknowledged, written outside of it.

A line is written before a change and another, fsynced, once it was acknowledged; so after a kill it is known what
must be there, and which one change may be.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chainstore.repository import Repository

State = dict[str, object]


def state(number: int) -> State:
    """Return the state of commit `number`: it alone decides every byte."""
    source = np.random.default_rng(number)
    return {
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
    """A repository as far as refs show it: numbers of commits, oldest first, by branch; one number by tag."""

    branches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)

    def after(self, change: dict[str, object]) -> "Refs":
        """Return what they are once `change` happened."""
        branches, tags = dict(self.branches), dict(self.tags)
        name, number = str(change.get("name", "")), int(str(change.get("number", 0)))
        match change["what"]:
            case "commit" | "writer":
                branches[name] = (*branches.get(name, ()), number)
            case "branch":
                branches[name] = branches[str(change["at"])]
            case "tag":
                tags[name] = branches[str(change["at"])][-1]
            case "delete":
                branches.pop(name, None)
                tags.pop(name, None)
            case "reset":
                branches[name] = branches[name][:-1]
        return Refs(branches, tags)


def observe(repo: Repository) -> Refs:
    """Return the refs of a repository, every commit read."""
    known: dict[bytes, tuple[int, ...]] = {}

    def chain(tip: bytes) -> tuple[int, ...]:
        waiting = []
        id = tip
        while id not in known:
            commit = repo.get_commit(id)  # type: ignore[arg-type]
            waiting.append((id, int(commit.message)))
            if not commit.parents:
                known[id] = (int(commit.message),)
                break
            id = commit.parents[0]
        for id, number in reversed(waiting):
            if id not in known:
                known[id] = (*known[repo.get_commit(id).parents[0]], number)  # type: ignore[arg-type]
        return known[tip]

    branches = {name: chain(tip) for name, tip in repo.branches().items()}
    return Refs(branches, {name: chain(tip)[-1] for name, tip in repo.tags().items()})


class Chronicle:
    """One file of lines, appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def change(self, what: str, **facts: object) -> Iterator[dict[str, object]]:
        """Say that a change begins, and, durably, that it was acknowledged."""
        line = {"what": what, **facts}
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps(["begin", line]).encode() + b"\n")
            yield line
            file.write(json.dumps(["done", line]).encode() + b"\n")
            os.fsync(file)

    def read(self) -> tuple[list[dict[str, object]], dict[str, object] | None]:
        """Return the acknowledged changes in order, and the one that was begun and not acknowledged."""
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.exists() else []
        done: list[dict[str, object]] = []
        begun = None
        for text in lines:
            kind, line = json.loads(text)
            if kind == "done":
                done.append(line)
            begun = line if kind == "begin" else None
        return done, begun


def check(repo: Repository, chronicle: Chronicle, before: Refs) -> tuple[Refs, set[int]]:
    """Compare a repository with its chronicle, every byte read; return its refs and the numbers of new commits.

    Args:
        before: the refs when the chronicle began.

    Raises:
        AssertionError: something acknowledged is missing, or something is there in half.
    """
    done, begun = chronicle.read()
    expected = before
    for change in done:
        expected = expected.after(change)
    found = observe(repo)
    possible = [expected] if begun is None else [expected, expected.after(begun)]
    assert found in possible, f"refs are {found}, but should be one of {possible}; in flight was {begun}"
    report = repo.verify("data")
    assert report.ok, report.damaged
    numbers = {int(str(change["number"])) for change in done if "number" in change}
    if begun is not None and found != expected and "number" in begun:
        numbers.add(int(str(begun["number"])))
    tips = {chain[-1] for chain in found.branches.values()}
    tips_by_number = {chain[-1]: name for name, chain in found.branches.items()}
    for number in tips:
        loaded = repo.checkout(tips_by_number[number])
        assert same(loaded, state(number)), f"commit {number} came back otherwise"
    return found, numbers


def values(array: npt.NDArray[np.float32]) -> bytes:
    """Return the bytes of an array."""
    return array.tobytes()
