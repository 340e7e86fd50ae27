"""What it costs to keep a repository small: forget, gc, and what others notice of it.

    python -m benchmarks.gc [--only JOB ...] [--folder DIR] [--quick]

Jobs, each in a repository of its own (encrypted, key in a file, the codec "none" so that every byte is one of theirs):

    interleaved   2 000 commits over 3 branches, every other one forgotten: dead bytes that come back, seconds, and
                  the seconds of a gc that has nothing to do
    contention    3 processes commit and forget, while gc runs again and again: how long it holds the lock under which
                  they publish, and how long they wait for it, next to the same three without it
    large         1 000 commits of 50 arrays: opening it, what a mark takes, memory of verify and of gc
    retention     the last 5 kept of 1 000 commits, gc after every 50: the most that was on disk, and what is at the end
    peers         40 snapshots, 20 forgotten: chainstore next to restic, which is left out where it is not installed

Times are medians only where it says so; everything else is one run.  Other work on the machine shows in all of them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chainstore as cs
from benchmarks.gc_contention import contend
from benchmarks.measure import disk_bytes

MB = 1e6
State = dict[str, Any]
Line = tuple[str, str]


@dataclass(frozen=True)
class Sizes:
    """How much the jobs do."""

    interleaved: int = 2000
    large: int = 1000
    arrays: int = 50
    retention: int = 1000
    every: int = 50
    peers: int = 40
    peer_mb: int = 8
    contention_seconds: float = 15.0


QUICK = Sizes(interleaved=60, large=20, arrays=5, retention=60, every=20, peers=4, peer_mb=1, contention_seconds=1.0)


def noise(source: np.random.Generator, nbytes: int) -> Any:
    """Return an array that no codec makes smaller."""
    return source.integers(0, 256, nbytes, np.uint8)


@contextmanager
def repository(folder: Path) -> Iterator[cs.Repository]:
    """Give a new repository in `folder`, which is removed at the end."""
    folder.mkdir()
    try:
        with cs.init(folder / "repo", key=key_of(folder), codec="none") as repo:
            yield repo
    finally:
        shutil.rmtree(folder)


def key_of(folder: Path) -> cs.KeyFile:
    """Return the key of the repository in `folder`, made if there is none."""
    path = folder / "key"
    if not path.exists():
        path.write_bytes(os.urandom(32))
        path.chmod(0o600)
    return cs.KeyFile(path)


def timed(job: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `job` returned, and its seconds."""
    started = time.perf_counter()
    answer = job()
    return answer, time.perf_counter() - started


def interleaved(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Forget every other commit, which leaves one dead record for each live one in every pack."""
    source = np.random.default_rng(1)
    with repository(folder) as repo:
        for step in range(sizes.interleaved):
            # records below the 64 KiB that are worth a hole, and above
            state = {"a": noise(source, 24 << 10), "b": noise(source, 96 << 10), "c": noise(source, 4 << 10), "n": step}
            repo.commit(state, branch=("main", "left", "right")[step % 3], step=step)
        plan, forget = timed(lambda: repo.forget(cs.Retention(every_steps=2)))
        dead = repo.gc(dry_run=True).useless_bytes
        before, packs = disk_bytes(repo.path), disk_bytes(repo.path / "packs")
        report, first = timed(repo.gc)
        freed, of_packs = before - disk_bytes(repo.path), packs - disk_bytes(repo.path / "packs")
        _, second = timed(repo.gc)
        verified, verify = timed(lambda: repo.verify("data"))
        assert verified.ok, verified.damaged
        yield "snapshots forgotten", f"{len(plan.dropped)} of {sizes.interleaved} in {forget:.2f} s"
        moved = f"{report.moved_bytes / MB:.0f} MB moved"
        yield "dead bytes back on the disk", f"{of_packs / dead:.1%} of {dead / MB:.0f} MB; {moved}"
        yield "the whole directory shrank by", f"{freed / dead:.1%} of that (log and index keep pages for later)"
        yield "gc", f"{first:.2f} s ({dead / MB / first:.0f} MB/s)"
        yield "a second gc", f"{second * 1000:.0f} ms"
        yield "verify of every byte kept", f"ok, {verify:.2f} s"


def large(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Open, mark and verify many commits of many arrays; memory is that of a process that does nothing else."""
    source = np.random.default_rng(2)
    with repository(folder) as repo:
        state = {f"tensor.{i:03d}": noise(source, 20 << 10) for i in range(sizes.arrays)}
        for step in range(sizes.large):
            for i in range(step % 5, sizes.arrays, 5):
                state[f"tensor.{i:03d}"] = noise(source, 20 << 10)
            repo.commit(state, step=step)
        objects = repo.stats().objects
        repo.forget(cs.Retention(every_steps=2))
        path, key = repo.path, key_of(folder)
        openings = sorted(in_child("open", path, key)["seconds"] for _ in range(5))
        mark = in_child("mark", path, key)
        verify = in_child("verify", path, key)
        collect = in_child("gc", path, key)
        yield "objects", f"{objects:,} of {sizes.large:,} commits"
        yield "open (median of 5)", f"{openings[2] * 1000:.1f} ms"
        yield "mark: gc that only looks", f"{mark['seconds']:.2f} s, {mark['rss'] / MB:.0f} MB resident at most"
        yield "verify of links", f"{verify['seconds']:.2f} s, {verify['rss'] / MB:.0f} MB"
        yield "gc of every other commit", f"{collect['seconds']:.2f} s, {collect['rss'] / MB:.0f} MB"


def retention(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Let a policy of its own keep five snapshots, gc after every so many commits."""
    source = np.random.default_rng(3)
    with repository(folder) as repo:
        repo.set_retention(cs.Retention(last=5))
        packs = repo.path / "packs"
        snapshot, most = 0, 0
        for step in range(1, sizes.retention + 1):
            repo.commit({f"layer.{i}": noise(source, 256 << 10) for i in range(4)}, step=step)
            snapshot = snapshot or disk_bytes(packs)
            most = max(most, disk_bytes(packs))
            if step % sizes.every == 0:
                repo.gc()
        yield "most snapshots' disk", f"{most / snapshot:.1f} (5 are kept, gc after every {sizes.every} commits)"
        yield "snapshots' disk at the end", f"{disk_bytes(packs) / snapshot:.2f} after {sizes.retention:,} commits"


def peers(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Drop half of some snapshots whose every byte is new, here and with restic."""
    source = np.random.default_rng(4)
    keep = sizes.peers // 2
    states = [noise(source, sizes.peer_mb << 20) for _ in range(sizes.peers)]
    half = sum(state.nbytes for state in states[:keep])
    with repository(folder) as repo:
        for state in states:
            repo.commit({"weights": state})
        before = disk_bytes(repo.path)
        _, ours = timed(lambda: (repo.forget(cs.Retention(last=keep)), repo.gc()))
        yield (
            "chainstore: forget, gc",
            f"{ours:.2f} s, {(before - disk_bytes(repo.path)) / half:.1%} of dead bytes back",
        )
    if shutil.which("restic") is None:
        yield "restic", "is not installed"
        return
    folder.mkdir()
    try:
        place = {**os.environ, "RESTIC_REPOSITORY": str(folder / "restic"), "RESTIC_PASSWORD": "benchmark"}

        def restic(*words: str) -> None:
            command = ["restic", "--quiet", "--no-cache", *words]
            subprocess.run(command, env=place, check=True, stdout=subprocess.DEVNULL)

        restic("init")
        for state in states:
            (folder / "weights").write_bytes(state.tobytes())
            restic("backup", "--force", str(folder / "weights"))
        before = disk_bytes(folder / "restic")
        _, theirs = timed(lambda: restic("forget", "--keep-last", str(keep), "--prune", "--max-unused", "0"))
        back = (before - disk_bytes(folder / "restic")) / half
        yield "restic: forget --prune", f"{theirs:.2f} s, {back:.1%} of dead bytes back; {theirs / ours:.1f}x our time"
    finally:
        shutil.rmtree(folder)


def contention(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Let three processes commit and forget without gc, and with it."""
    yield from contend(folder, sizes.contention_seconds)


def in_child(verb: str, path: Path, key: cs.KeyFile) -> dict[str, float]:
    """Do one thing in a fresh process; return its seconds, without the start of Python, and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.gc", "--child", verb, str(path), str(key.path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, rss = map(float, done.stdout.split())
    return {"seconds": seconds, "rss": rss}


def child(verb: str, path: str, key: str) -> None:
    """Do that one thing."""
    repo, seconds = timed(lambda: cs.open(path, key=cs.KeyFile(Path(key))))
    if verb == "mark":
        _, seconds = timed(lambda: repo.gc(dry_run=True))
    elif verb == "verify":
        report, seconds = timed(lambda: repo.verify("links"))
        assert report.ok, report.damaged
    elif verb == "gc":
        _, seconds = timed(repo.gc)
    repo.close()
    print(seconds, peak_bytes())


def peak_bytes() -> int:
    """Return the most memory this program had resident; ru_maxrss would count that of whoever started it, too."""
    return int(re.findall(r"VmHWM:\s+([0-9]+) kB", Path("/proc/self/status").read_text())[0]) * 1024


JOBS: dict[str, Callable[[Path, Sizes], Iterator[Line]]] = {
    "interleaved": interleaved,
    "contention": contention,
    "large": large,
    "retention": retention,
    "peers": peers,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--folder", type=Path, default=None, help="on which disk (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return
    print("| job | | |\n|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for job in options.only:
            for what, found in JOBS[job](Path(folder) / job, QUICK if options.quick else Sizes()):
                print(f"| {job} | {what} | {found} |", flush=True)


if __name__ == "__main__":
    main()
