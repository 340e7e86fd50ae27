"""How fast a commit and a checkout are next to torch.save and torch.load, in one run, interleaved.

    python -m benchmarks.engine [--mb 600] [--repeats 5] [--disk DIR] [--tmpfs /dev/shm]

Prints for each job the median seconds and spread of both sides, and the ratio of their medians (1 is as fast as
torch, more is faster); then bytes stored and peak memory.  The state is a dense fp32 AdamW state: weights, first and
second moments as a real optimizer leaves them (three steps on noise).
"""

import argparse
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

import chainstore as cs
from benchmarks.workloads import dense_state, flat, raw_bytes


@dataclass
class Race:
    """One job done by torch and by chainstore, in turns."""

    name: str
    torch_seconds: list[float] = field(default_factory=list)
    our_seconds: list[float] = field(default_factory=list)

    def run(self, theirs: Callable[[int], object], ours: Callable[[int], object], repeats: int) -> None:
        for turn in range(repeats):
            for job, seconds in ((theirs, self.torch_seconds), (ours, self.our_seconds)):
                gc.collect()
                os.sync()
                started = time.perf_counter()
                keep = job(turn)
                seconds.append(time.perf_counter() - started)
                del keep
        self.tell()

    def tell(self) -> None:
        theirs, ours = statistics.median(self.torch_seconds), statistics.median(self.our_seconds)
        print(
            f"{self.name:44s} torch {theirs:7.3f} s ({min(self.torch_seconds):.3f}-{max(self.torch_seconds):.3f})   "
            f"chain {ours:7.3f} s ({min(self.our_seconds):.3f}-{max(self.our_seconds):.3f})   "
            f"ratio {theirs / ours:.2f}",
            flush=True,
        )


def save(state: object, path: Path, sync: bool) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def fresh(folder: Path, codec: str) -> cs.Repository:
    shutil.rmtree(folder, ignore_errors=True)
    return cs.init(folder, codec=codec, key=cs.Passphrase("benchmark"))


def commits(state: object, base: Path, codec: str, sync: bool, repeats: int, label: str) -> None:
    repositories = [fresh(base / f"repo{turn}", codec) for turn in range(repeats)]
    race = Race(label)
    race.run(
        lambda turn: save(state, base / f"save{turn}.pt", sync),
        lambda turn: repositories[turn].commit(state, "benchmark"),
        repeats,
    )
    for repo in repositories:
        repo.close()
    for turn in range(repeats):
        shutil.rmtree(base / f"repo{turn}")
        (base / f"save{turn}.pt").unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--disk", type=Path, default=None, help="a folder on a real disk (default: a temporary one)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--only", default="", help="run only jobs whose name holds this")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    state = dense_state(options.mb)
    print(f"state: {raw_bytes(state) / 1e6:.0f} MB in {len(flat(state))} tensors")
    with tempfile.TemporaryDirectory(dir=options.disk) as disk, tempfile.TemporaryDirectory(dir=options.tmpfs) as fast:
        jobs(state, Path(disk), Path(fast), options.repeats, options.only, options.mb)


def jobs(state: dict[str, object], disk: Path, fast: Path, repeats: int, only: str, megabytes: int) -> None:
    if only in "durable commit to disk":
        commits(state, disk, "auto", True, repeats, "durable commit to disk / torch.save + fsync")
    if only in "tmpfs none":
        commits(state, fast, "none", False, repeats, "commit to tmpfs, codec none / torch.save")
    if only in "tmpfs auto":
        commits(state, fast, "auto", False, repeats, "commit to tmpfs, codecs on / torch.save")
    if only in "restore":
        restore(state, fast, repeats)
    if only in "small":
        small(fast, repeats)
    if only in "stored":
        stored(state, fast)
    if only in "memory":
        subprocess.run([sys.executable, "-m", "benchmarks.engine_memory", str(megabytes), str(fast)], check=True)


def restore(state: dict[str, object], base: Path, repeats: int) -> None:
    repo = fresh(base / "repo", "auto")
    repo.commit(state)
    save(state, base / "save.pt", False)
    race = Race("checkout from tmpfs / torch.load")
    race.run(lambda _: torch.load(base / "save.pt"), lambda _: repo.checkout(), repeats)
    repo.close()
    shutil.rmtree(base / "repo")
    (base / "save.pt").unlink()


def small(base: Path, repeats: int) -> None:
    state = {f"tensor.{i}": torch.randn(64) for i in range(10_000)}
    commits(state, base, "auto", False, repeats, "commit of 10 000 x 64 floats / torch.save")
    repo = fresh(base / "repo", "auto")
    repo.commit(state)
    save(state, base / "save.pt", False)
    race = Race("checkout of 10 000 x 64 floats / torch.load")
    race.run(lambda _: torch.load(base / "save.pt"), lambda _: repo.checkout(), repeats)
    repo.close()
    shutil.rmtree(base / "repo")


def stored(state: dict[str, object], base: Path) -> None:
    """Print what a first commit, an unchanged one, and one with a changed layer take."""
    raw = raw_bytes(state)
    with fresh(base / "repo", "auto") as repo:
        first = _growth(repo, state)
        print(f"stored: dense state raw / {raw / first:.3f}   ({first / 1e6:.1f} of {raw / 1e6:.1f} MB)")
        print(f"stored: unchanged second commit {_growth(repo, state) / 1e3:.1f} KB")
        model = dict(state["model"])  # type: ignore[call-overload]
        changed = 0
        for name, tensor in model.items():
            if changed >= 0.01 * raw:
                break
            model[name] = tensor + 0.01 * torch.randn_like(tensor)
            changed += tensor.numel() * tensor.element_size()
        more = _growth(repo, {**state, "model": model})
        print(f"stored: {changed / raw:.2%} of the bytes changed: {more / raw:.2%} of raw")
        read = repo.snapshot("main~1").load_into(model=_Holder(model)).read_bytes
        print(f"load_into of what differs in {changed / 1e6:.1f} MB reads {read / 1e6:.1f} MB ({read / changed:.2f}x)")
    shutil.rmtree(base / "repo")


class _Holder:
    """The least that has a state."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.state

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state


def _growth(repo: cs.Repository, state: object) -> int:
    """Return by how many bytes the files of a repository grow with one more commit.

    The index is made with some free pages, so that small commits do not lengthen its file at all.
    """
    before = _file_bytes(repo.path)
    repo.commit(state, "benchmark")
    return _file_bytes(repo.path) - before


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
