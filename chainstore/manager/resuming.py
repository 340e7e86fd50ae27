"""Resuming: the newest snapshot of a branch that reads, loaded; and what becomes of runs that forgot to load."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from chainstore.errors import Damaged, SnapshotForgotten
from chainstore.manager.loaders import is_place
from chainstore.model.commit import Commit
from chainstore.observe import Notice, Observer
from chainstore.repository import Repository

T = TypeVar("T")

INDEX_STYLE = "index"  # a run that counts steps from 0 and saves after each: the next step is the one after


def newest_first(repo: Repository, branch: str) -> Iterator[Commit]:
    """Yield the commits of a branch from its tip back, first parents only; none where there is no such branch."""
    if branch not in repo.branches():
        return
    commit: Commit | None = repo.get_commit(branch)
    while commit is not None:
        yield commit
        commit = repo.get_commit(commit.parents[0]) if commit.parents else None


def newest_that_reads(
    repo: Repository, branch: str, read: Callable[[Commit], T], observer: Observer
) -> tuple[Commit, T] | None:
    """Return the newest commit of a branch whose snapshot reads, and what `read` made of it; None where there is none.

    Damage is walked past with a warning, back to an older snapshot.

    Raises:
        Damaged: there are snapshots, and none of them reads.
    """
    damage: Damaged | None = None
    for commit in newest_first(repo, branch):
        try:
            return commit, read(commit)
        except SnapshotForgotten:
            continue
        except Damaged as error:
            damage = damage or error
            text = f"the snapshot of {commit.short} is damaged ({error}); going further back"
            tell(observer, "snapshot-damaged", text)
    if damage is not None:
        raise damage
    return None


def load_newest(
    repo: Repository, branch: str, objects: Sequence[Any], named: Mapping[str, Any], observer: Observer
) -> Commit | None:
    """Load the newest snapshot of a branch that reads, and return its commit; None where there is none at all.

    Raises:
        Damaged: there are snapshots, and none of them reads; the objects may be half loaded then.
        StateMismatch: what is there does not fit the objects.
    """

    def load(commit: Commit) -> None:
        things = named
        if world_size(commit) != 1:
            tell_size(observer, commit, 1)
            things = {name: thing for name, thing in named.items() if not is_place(thing)}
        repo[commit].load_into(*objects, rng=True, **things)

    found = newest_that_reads(repo, branch, load, observer)
    return found[0] if found is not None else None


def world_size(commit: Commit) -> int:
    """Return how many ranks made a snapshot."""
    size = commit.meta.get("world_size")
    return size if isinstance(size, int) else 1


def tell_size(observer: Observer, commit: Commit, size: int) -> None:
    """Say what is not as it was where a snapshot is loaded by more or fewer ranks than made it."""
    tell(
        observer,
        "run-differs",
        f"the snapshot of {commit.short} is of a run of {_ranks(world_size(commit))}, and this one has {_ranks(size)}: "
        "its state is loaded, but data loaders begin anew, and random numbers are not those that would have come",
    )


def _ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def next_step(commit: Commit) -> int:
    """Return the step with which a run goes on after a commit."""
    step = commit.step or 0
    return step + 1 if commit.meta.get("counting") == INDEX_STYLE else step


def restart_branch(repo: Repository, branch: str) -> str:
    """Return a name for the branch of a run that began anew without loading what is on `branch`."""
    taken = repo.branches()
    return next(name for number in range(1, 1 << 30) if (name := f"{branch}-restart-{number}") not in taken)


def tell(observer: Observer, code: str, text: str) -> None:
    """Say something that a person should know: to whoever observes, and as a warning."""
    observer(Notice(code, text))
    warnings.warn(text, RuntimeWarning, stacklevel=4)
