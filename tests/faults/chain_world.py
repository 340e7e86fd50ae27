"""A chain of snapshots whose arrays change a little, most of which are forgotten; and what is told of its records."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from chainstore.ids import ObjectId
from chainstore.model.frame import FLAG_KEYFRAME
from chainstore.ops.deltas import KEYFRAMES, SEGMENT
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository

WIDTH = 512


class Drift:
    """An array that changes a little at each step, as training changes it.

    Args:
        rows: of 2 KB.
    """

    def __init__(self, rows: int, seed: int = 0) -> None:
        self._source = np.random.default_rng(seed)
        self.weight = self._source.normal(size=(rows, WIDTH)).astype(np.float32)

    def step(self) -> None:
        """Change it."""
        noise = self._source.normal(size=self.weight.shape) * 1e-4
        self.weight = (self.weight * (1 + noise)).astype(np.float32)


Kept = dict[str, bytes]  # commit -> the bytes of its array


def grow(path: Path, count: int, keep: range | list[int], *, rows: int = 8, encrypt: bool = False) -> Kept:
    """Make a repository with a chain of `count` commits, forget all but those of `keep`, and return what these hold."""
    drift, kept, others = Drift(rows), {}, []
    with init(path, encrypt=encrypt, codec="small") as repo:
        for number in range(count):
            commit = repo.commit({"weight": drift.weight}, step=number)
            if number in keep:
                kept[str(commit.id)] = drift.weight.tobytes()
            else:
                others.append(commit)
            drift.step()
        repo.forget(commits=others)
    return kept


def begin_another_pack(path: Path) -> None:
    """Let those who come next write to a pack of their own, so that what they build on lies in one that rests."""
    with open_repository(path) as repo:
        packs = repo._db.packs
        held = [packs.take_over(name) for name in packs.names()]
        assert all(held)
        repo.commit({"weight": np.zeros(WIDTH * 10, np.float32)}, branch="other")
        for file in held:
            file.close()


def check(repo: Repository, kept: Kept) -> None:
    """Look at every byte of what was kept, at every byte that is stored, and at how it is stored."""
    for commit, data in kept.items():
        assert repo.checkout(commit)["weight"].tobytes() == data
    report = repo.verify("data")
    assert report.ok, report.damaged
    check_index(repo)


def check_index(repo: Repository) -> None:
    """Look whether every record builds on records that are there, by the rules."""
    with repo._db.view() as view:
        for id, place in view.objects():
            for base in view.bases(id):
                below = view.place(base)
                assert below is not None, f"{id.short} builds on what is not there"
                assert below.depth < place.depth <= KEYFRAMES + SEGMENT
                if place.flags & FLAG_KEYFRAME:
                    assert below.depth == 0 or below.flags & FLAG_KEYFRAME


def check_rebuilt(path: Path, kept: Kept, **how: Any) -> None:
    """Make the index anew, and look at everything again."""
    with open_repository(path, **how) as repo:
        assert not repo.rebuild_index().problems
        check(repo, kept)


def chunk_of(repo: Repository, commit: str) -> ObjectId:
    """Return the chunk that holds the array of a snapshot."""
    (entry,) = (entry for entry in repo[commit].manifest.entries if entry.path == ("weight",))
    (extent,) = entry.extents
    return extent.chunk


def places(repo: Repository, chunks: list[ObjectId]) -> list[Any]:
    """Return where chunks lie, None for those that are not there."""
    with repo._db.view() as view:
        return [view.place(chunk) for chunk in chunks]


def packed_bytes(path: Path) -> int:
    """Return what packs take on disk."""
    return sum(file.stat().st_blocks * 512 for file in (path / "packs").rglob("*") if file.is_file())


def some(source: random.Random, count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers from 1 to `count`, in order."""
    return sorted(source.sample(range(1, count + 1), min(most, count)))
