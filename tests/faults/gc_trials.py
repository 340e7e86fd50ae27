"""Trials of forgetting and collecting: small scenes, each of which loses something if one rule of gc is broken.

Each takes a directory that does not exist yet, and raises AssertionError or ChainError where something is wrong.
"""

import contextlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chainstore.codecs import chain
from chainstore.crypto.keys import generate_key_file
from chainstore.errors import ChainError
from chainstore.observe import Event, Progress
from chainstore.ops import gc as gc_module
from chainstore.repository import init
from chainstore.repository import open as open_repository
from tests.faults.children import Child, run, succeed
from tests.faults.chronicle import same, state
from tests.faults.failpoints import Failpoints, die
from tests.faults.seeds import base_seed
from tests.faults.test_gc import Siege
from tests.faults.test_races import Arena, commit_all
from tests.odb.test_deltas import TAG, Xor, delta
from tests.stateful.ends import Machine
from tests.stateful.test_model import play


def siege(ground: Path) -> None:
    """Collections are killed while three others commit and forget."""
    source = random.Random(base_seed())
    ground.mkdir()
    Siege(ground, source).round(6, kill=True)


def race(ground: Path) -> None:
    """Two processes commit to one branch: one chain of everything that was acknowledged."""
    ground.mkdir()
    arena = Arena(ground)

    def work(numbers: range) -> Callable[[], int]:
        def commit() -> int:
            with arena.open() as repo:
                return commit_all(repo, "main", numbers)

        return commit

    endings = [child.join() for child in [Child(work(range(40))), Child(work(range(40, 80)))]]
    assert not any(ending.error for ending in endings), endings
    arena.check({"main": set(range(80))})


def game(ground: Path) -> None:
    """A repository is told the same as a model of dicts."""
    ground.mkdir()
    play(ground, 15, 40, shrink=False)


def again(ground: Path) -> None:
    """A collection is killed at each of its steps; then what it was about to take is committed again."""
    ground.mkdir()
    key = generate_key_file(ground / "key", random.Random(1).randbytes)
    with init(ground / "before", key=key, threads=1) as repo:
        forgotten = repo.commit(state(1), "1", step=1)
        repo.commit(state(2), "2", step=2)
        repo.forget(commits=[forgotten])
    step, done = 0, False
    while not done:
        step += 1
        path = ground / "repo"
        shutil.copytree(ground / "before", path)

        def work(path: Path = path, step: int = step) -> bool:
            with Failpoints(die, step).installed(), open_repository(path, key=key, threads=1) as repo:
                repo.gc()
            return True

        ending = run(work)
        assert not ending.error, ending.error
        done = bool(ending.answer)
        with open_repository(path, key=key, threads=1) as repo:
            repo.commit(state(1), "1", step=1)
            assert same(repo.checkout(), state(1))
            repo.gc()
            report = repo.verify("data")
            assert report.ok, report.damaged
        shutil.rmtree(path)


def while_reading(ground: Path) -> None:
    """A snapshot is forgotten and collected while somebody loads it: the load ends as it began."""
    ground.mkdir()
    key = generate_key_file(ground / "key", random.Random(1).randbytes)
    path = ground / "repo"
    arrays = {f"layer.{number}": np.random.default_rng(number).bytes(12 << 20) for number in range(2)}
    held = {name: np.frombuffer(data, np.uint8) for name, data in arrays.items()}
    collected: list[bool] = []

    def forget_and_collect() -> bool:
        with open_repository(path, key=key) as repo:
            repo.forget(commits=["HEAD~1"])
            repo.gc()
        return True

    def between(event: Event) -> None:
        if isinstance(event, Progress) and event.verb == "checkout" and not collected:
            collected.append(True)
            collected[:] = [succeed(forget_and_collect)]

    with init(path, key=key, codec="none", threads=1) as repo:
        first = repo.commit(held, "1")
        repo.commit(state(2), "2")
    with open_repository(path, key=key, readonly=True, threads=1, observer=between) as reader:
        assert same(reader.checkout(first), held)
    assert collected == [True], "nothing was collected while it was read"


def commit_meanwhile(ground: Path) -> None:
    """What a collection is about to take is committed again between two of its batches."""
    ground.mkdir()
    key = generate_key_file(ground / "key", random.Random(1).randbytes)
    path = ground / "repo"
    with init(path, key=key, threads=1) as repo:
        forgotten = repo.commit(state(1), "1", step=1)
        repo.commit(state(2), "2", step=2)
        repo.forget(commits=[forgotten])
    committed: list[bool] = []

    def commit() -> bool:
        with open_repository(path, key=key, threads=1) as repo:
            repo.commit(state(1), "1", step=1)
        return True

    def between(event: Event) -> None:
        if isinstance(event, Progress) and event.verb == "gc" and not committed:
            committed.append(True)
            committed[:] = [succeed(commit)]

    with open_repository(path, key=key, threads=1, observer=between) as repo, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc_module, "_ROWS", 1)
        repo.gc()
    assert committed == [True], "nothing was committed while it collected"
    with open_repository(path, key=key, threads=1) as repo:
        assert same(repo.checkout(), state(1))
        report = repo.verify("data")
        assert report.ok, report.damaged


def collect_meanwhile(ground: Path) -> None:
    """What a commit found stored already is taken before it is published."""
    ground.mkdir()
    key = generate_key_file(ground / "key", random.Random(1).randbytes)
    path = ground / "repo"
    with init(path, key=key, threads=1) as repo:
        forgotten = repo.commit(state(1), "1", step=1)
        repo.commit(state(2), "2", step=2)
        repo.forget(commits=[forgotten])
    collected: list[bool] = []

    def collect() -> bool:
        with open_repository(path, key=key, threads=1) as repo:
            repo.gc()
        return True

    def between(event: Event) -> None:
        if isinstance(event, Progress) and event.verb == "commit" and not collected:
            collected.append(True)
            collected[:] = [succeed(collect)]

    with open_repository(path, key=key, threads=1, observer=between) as repo:
        repo.commit(state(1), "1", step=1)
        assert collected == [True], "nothing was collected while it was written"
        assert same(repo.checkout(), state(1))
        report = repo.verify("data")
        assert report.ok, report.damaged


def script(ground: Path) -> None:
    """The steps of a game in which names, marks and reflogs decide what is kept."""
    ground.mkdir()
    machine = Machine(ground / "game")
    ids = [machine.commit(None, number, False) for number in range(4)]
    machine.forget_by_name([ids[1]])
    machine.branch("left", ids[1])
    machine.check_out(ids[1])
    machine.delete("left")
    machine.forget_by_name(ids[:2])
    kept_by_reflog = machine.commit("right", 4, False)
    machine.delete("right")
    machine.collect()
    machine.check_out(kept_by_reflog)
    machine.branch("left", ids[0])
    machine.let_days_pass(15)
    machine.collect()
    machine.check_out(kept_by_reflog)
    for hold in (machine.refs_and_marks_agree, machine.histories_agree, machine.tips_are_whole):
        hold()
    machine.teardown()


def differences(ground: Path) -> None:
    """What is kept is a difference to what is not."""
    ground.mkdir()
    key = generate_key_file(ground / "key", random.Random(1).randbytes)
    first, second = (np.random.default_rng(number).standard_normal(5000, dtype=np.float32) for number in (1, 2))
    chain.register(TAG, lambda effort: Xor(), delta=True)
    try:
        with init(ground / "repo", key=key) as repo:
            forgotten = repo.commit({"weights": first})
            batch = repo._db.batch()
            try:
                batch.append_record(*delta(repo._db.sealer, second.tobytes(), first.tobytes(), 1))
                repo._db.publish(batch, [])
            finally:
                repo._db.retire_batch(batch)
            repo.commit({"weights": second})  # finds its bytes stored already
            repo.forget(commits=[forgotten])
            repo.gc()
        with open_repository(ground / "repo", key=key) as repo:
            assert same(repo.checkout(), {"weights": second})
            report = repo.verify("data")
            assert report.ok, report.damaged
    finally:
        chain.unregister(TAG)


def flip(ground: Path) -> None:
    """One bit of a record is another, and nothing is sealed: an error, or the right bytes."""
    ground.mkdir()
    held = {"weights": np.arange(50_000, dtype=np.float32)}
    with init(ground / "repo", key=None, encrypt=False, codec="none") as repo:
        repo.commit(held)
    (pack,) = (file for file in ground.glob("repo/packs/*/*") if file.is_file())
    data = bytearray(pack.read_bytes())
    data[100_000] ^= 1  # of 200 000 bytes of payload
    pack.write_bytes(data)
    with open_repository(ground / "repo") as repo, contextlib.suppress(ChainError):
        assert same(repo.checkout(), held), "wrong bytes came back"
