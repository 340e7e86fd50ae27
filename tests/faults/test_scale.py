"""Many commits and many objects: memory of whoever walks them stays bounded, and what is dead comes back."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from chainstore.crypto.keys import generate_key_file
from chainstore.policies.retention import Retention
from chainstore.repository import open as open_repository
from tests.faults.scale import ARRAY_BYTES

MB, GIB = 10**6, 1 << 30
PATIENCE_SECONDS = 3600


def do(verb: str, *words: object) -> str:
    """Do one thing in a process of its own, and return what it printed."""
    command = [sys.executable, "-m", "tests.faults.scale", verb, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def taken(folder: Path) -> int:
    """Return what the packs take on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob("packs/*/*"))


def grow_and_shrink(ground: Path, commits: int, arrays: int, changed: int, most_rss: int) -> None:
    path, key = ground / "repo", generate_key_file(ground / "key", random.Random(1).randbytes)
    place = path, ground / "key"
    do("build", *place, commits, arrays, changed)
    with open_repository(path, key=key) as repo:
        assert repo.stats().objects >= commits * changed
        assert len(list(repo.log(max_count=100))) == 100
        assert len(repo.forget(Retention(every_steps=2)).dropped) == commits // 2 - 1  # the tip is odd
        dead = repo.gc(dry_run=True).useless_bytes
    assert dead > (commits // 2 - 1) * changed * ARRAY_BYTES
    rss = [int(do("verify", *place))]
    before = taken(path)
    rss.append(int(do("gc", *place)))
    assert max(rss) < most_rss, rss
    print(f"{commits} commits: verify and gc took {rss} bytes of memory at most")
    assert before - taken(path) >= 0.95 * dead
    with open_repository(path, key=key) as repo:
        assert repo.gc().nothing_to_do
        report = repo.verify("data")
        assert report.ok, report.damaged
        assert repo.checkout("HEAD").keys() == repo.checkout("HEAD~101").keys()


def test_1000_commits_of_50_000_objects_shrink_by_half_in_bounded_memory(ground: Path) -> None:
    grow_and_shrink(ground, 1000, 50, 50, 500 * MB)


@pytest.mark.long
def test_10_000_commits_of_a_million_objects_shrink_by_half_in_bounded_memory(ground: Path) -> None:
    grow_and_shrink(ground, 10_000, 200, 100, GIB)
