"""How much those who commit notice of a garbage collection beside them.

Three processes commit and forget, each on a branch of its own, as fast as they can; then the same three, and a fourth
that collects again and again.  Every process notes how long it waited for the right to publish and how long it held
it: `publish_lock` is wrapped from outside, nothing of the product is changed.
"""

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import chainstore as cs
from chainstore.odb import publisher

COMMITTERS = 3
FORGET_EVERY = 20  # commits
KEEP = 5
Line = tuple[str, str]


@dataclass
class Watch:
    """Notes of one process, in seconds.

    Attributes:
        waits: for the lock.  holds: of the lock.  work: processor time of each hold.
        commits: whole commits.
        turns: collections.
    """

    waits: list[float] = field(default_factory=list)
    holds: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    turns: int = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the lock inside the block, in this process."""
        plain = publisher.publish_lock

        @contextmanager
        def watched(*args: Any, **how: Any) -> Iterator[bool]:
            asked = time.perf_counter()
            with plain(*args, **how) as unclean:
                got, worked = time.perf_counter(), time.thread_time()
                self.waits.append(got - asked)
                try:
                    yield unclean
                finally:
                    self.holds.append(time.perf_counter() - got)
                    self.work.append(time.thread_time() - worked)

        publisher.publish_lock = watched
        try:
            yield
        finally:
            publisher.publish_lock = plain


def contend(folder: Path, seconds: float) -> Iterator[Line]:
    """Yield what was found, without gc and with it."""
    alone, _ = _run(folder / "alone", seconds, collect=False)
    beside, collector = _run(folder / "beside", seconds, collect=True)
    assert collector is not None
    yield "collections meanwhile", f"{collector.turns}, {len(collector.holds)} times under the lock"
    yield "lock held by gc", _spread(collector.holds)
    yield "of that, processor time", _spread(collector.work)
    yield "lock held by who commits", _spread(beside.holds)
    for name, watch in (("without gc", alone), ("beside gc", beside)):
        yield f"wait for the lock {name}", _spread(watch.waits)
        yield f"a commit {name}", f"{_spread(watch.commits)}; {len(watch.commits) / seconds:.0f} in a second"


def _run(folder: Path, seconds: float, *, collect: bool) -> tuple[Watch, Watch | None]:
    folder.mkdir(parents=True)
    try:
        key = folder / "key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        cs.init(folder / "repo", key=cs.KeyFile(key), codec="none").close()
        context = multiprocessing.get_context("spawn")
        answers: Any = context.Queue()
        barrier = context.Barrier(COMMITTERS + collect)
        jobs = [*(f"committer {n}" for n in range(COMMITTERS)), *(["collector"] if collect else [])]
        arguments = [(job, folder / "repo", key, seconds, barrier, answers) for job in jobs]
        processes = [context.Process(target=_work, args=each) for each in arguments]
        for process in processes:
            process.start()
        found: dict[str, Watch] = dict(answers.get(timeout=seconds + 120) for _ in jobs)
        for process in processes:
            process.join()
    finally:
        shutil.rmtree(folder)
    committers = [found[job] for job in jobs if job != "collector"]
    lists = ("waits", "holds", "work", "commits")
    return Watch(*([value for each in committers for value in getattr(each, name)] for name in lists)), found.get(
        "collector"
    )


def _work(job: str, path: Path, key: Path, seconds: float, barrier: Any, answers: Any) -> None:
    watch = Watch()
    with cs.open(path, key=cs.KeyFile(key), threads=1) as repo, watch.installed():
        barrier.wait()
        end = time.perf_counter() + seconds
        if job == "collector":
            while time.perf_counter() < end:
                repo.gc()
                watch.turns += 1
        else:
            _commit(repo, job.replace(" ", "-"), end, watch)
    answers.put((job, watch))


def _commit(repo: cs.Repository, branch: str, end: float, watch: Watch) -> None:
    source = np.random.default_rng(list(branch.encode()))
    frozen = source.integers(0, 256, 1 << 20, np.uint8)
    chain: list[cs.Commit] = []
    step = 0
    while time.perf_counter() < end:
        state = {"frozen": frozen, "weights": source.integers(0, 256, 256 << 10, np.uint8), "step": step}
        started = time.perf_counter()
        chain.append(repo.commit(state, branch=branch, step=step))
        watch.commits.append(time.perf_counter() - started)
        step += 1
        if len(chain) >= FORGET_EVERY + KEEP:
            repo.forget(commits=chain[:FORGET_EVERY])
            chain = chain[FORGET_EVERY:]
        time.sleep(0.005)  # as somebody who trains meanwhile


def _spread(values: Sequence[float]) -> str:
    """Return median, 99th percentile and largest, for people."""
    ranked = sorted(values) or [0.0]
    found = [ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1000 for share in (0.5, 0.99, 1)]
    return "{:.1f} ms median, {:.1f} p99, {:.1f} longest".format(*found)
