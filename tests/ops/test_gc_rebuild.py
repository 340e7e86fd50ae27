"""An index that is rebuilt while gc is at work: what gc found lies elsewhere then, and it begins anew."""

from pathlib import Path

import numpy as np
import pytest

from chainstore import Retention
from chainstore.observe import silent
from chainstore.ops.gc import collect
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import succeed


def state(number: int) -> dict[str, object]:
    source = np.random.default_rng(number)
    return {f"w{i}": source.standard_normal(3000).astype(np.float32) for i in range(3)} | {"n": number}


def rebuild(path: Path) -> None:
    with open_repository(path) as repo:
        repo.rebuild_index()


def commit_some(path: Path, branch: str, first: int) -> None:
    with open_repository(path) as repo:
        for number in range(first, first + 20):
            repo.commit(state(number), str(number), step=number, branch=branch)


def repository_whose_packs_a_rebuild_numbers_otherwise(path: Path) -> Repository:
    """Return one with two packs that hold useless records here and there, and one that is gone from the log."""
    repo = init(path, encrypt=False)
    commit_some(path, "a", 0)
    repo.forget(Retention(every_steps=5))
    assert repo.gc().packs_removed  # what was kept was moved
    with repo._db.turn() as turn:
        turn.start_segment()  # after which the log speaks of the removed pack no more
    with repo.writer("c") as writer:  # holds the pack, so that another gets its own
        writer["w"] = state(99)["w1"]
        succeed(lambda: commit_some(path, "b", 100))
    commit_some(path, "c", 200)
    repo.forget(Retention(every_steps=5))
    return repo


@pytest.mark.parametrize("moment", range(1, 6))
def test_gc_begins_anew_where_the_index_is_rebuilt_between_its_steps(tmp_path: Path, moment: int) -> None:
    with repository_whose_packs_a_rebuild_numbers_otherwise(tmp_path / "repo") as repo:
        breaths = 0

        def breathe(seconds: float) -> None:
            nonlocal breaths
            breaths += 1
            if breaths == moment:
                succeed(lambda: rebuild(repo.path))

        report = collect(repo._db, dry_run=False, since="now", observer=silent, sleep=breathe)
        assert report.freed_bytes > 0
        assert repo.verify("data").ok
        for name, tip in repo.branches().items():
            for commit in repo.log(tip):
                if commit.step is not None and (commit.step % 5 == 0 or commit.id == tip):
                    found = repo.checkout(commit.id)
                    assert np.array_equal(found["w1"], state(commit.step)["w1"]), (name, commit.step)
        repo.gc()
        assert repo.gc().nothing_to_do
