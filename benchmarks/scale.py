"""Many tensors of which few change, and a state that is large next to the memory that may be used for storing it.

    python -m benchmarks.scale [--only tensors|large] [--tensors N] [--commits N] [--gb N] [--quick] [--folder DIR]

tensors  A model's weights and its AdamW state, N float32 tensors of 64 to 1024 elements (the steps among them are
         0-dim).  Before each commit 50 tensors are changed in place and a counter goes up; the first two commits are
         not counted, the median of the next N (5) is.  Rows that are recent go into their tables once in some 15
         commits or more: the average and the longest of 40 tell what the median does not.  "neighbours" are 50 weights
         in a row, "apart" are 50 spread over all weights.  Bytes written are those that this process handed to the
         kernel's write calls during `commit` (`wchar` of /proc/self/io: LMDB writes its pages that way too); packs
         and log grow by appending, so what is neither is pages of the index.  At the end everything is restored and
         compared.
large    One process fills a state and commits it, another one restores it and compares each tensor with what it must
         be.  Peaks are resident memory at its highest (VmHWM, reset before) above what there was before: for a
         restore, above the bytes of the state it returns.  Without a codec, and with auto; neither keeps a shadow.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

import chainstore as cs
from benchmarks.jobs import WrongResult
from benchmarks.measure import reset_peak, rss_mb
from benchmarks.workloads import differences

Line = tuple[str, str]
WARM, COUNTED, CHANGED = 2, 5, 50
TENSOR_BYTES = 128 << 20  # of a large state
GB = 10**9


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    tensors: int = 100_000
    commits: int = COUNTED
    large_bytes: int = 10 * GB


QUICK = Sizes(400, large_bytes=24 << 20)


def many(count: int) -> dict[str, dict[object, object]]:
    """Return a state of `count` float32 tensors: weights and, for each, its step and its two moments."""
    source = torch.Generator().manual_seed(1)
    model: dict[object, object] = {}
    moments: dict[object, object] = {}
    for number in range(count // 4):
        size = 64 + number * 397 % 961
        model[f"blocks.{number // 12}.part.{number % 12}.weight"] = torch.randn(size, generator=source)
        first, second = torch.randn(size, generator=source), torch.rand(size, generator=source)
        moments[number] = {"step": torch.tensor(1.0), "exp_avg": first, "exp_avg_sq": second}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(count // 4))}]
    return {"model": model, "optimizer": {"state": moments, "param_groups": groups}, "trainer": {"step": 0}}


def chosen(weights: int, where: str, turn: int) -> list[int]:
    """Return which of the weights change before a commit."""
    if where == "neighbours":
        return [(turn * 1009 + i) % weights for i in range(CHANGED)]
    return [(turn * 7 + i * weights // CHANGED) % weights for i in range(CHANGED)]


def written() -> int:
    """Return the bytes that this process has handed to write calls so far."""
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def file_bytes(folder: Path) -> int:
    """Return the lengths of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def tensors(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Commit many tensors of which few changed."""
    for codec in ("auto", "small"):
        for where in ("neighbours", "apart"):
            yield from _tensors(folder / codec / where, sizes, codec, where)
    yield "peak", f"{rss_mb('VmHWM'):,.0f} MiB resident, state included"


def _tensors(folder: Path, sizes: Sizes, codec: str, where: str) -> Iterator[Line]:
    state = many(sizes.tensors)
    weights = [tensor for tensor in state["model"].values() if isinstance(tensor, torch.Tensor)]
    found: list[tuple[float, float, int, int, int]] = []
    folder.mkdir(parents=True)
    with cs.init(folder / "repo", key=_key(folder), codec=codec) as repo:
        packs, log = repo.path / "packs", repo.path / "log"
        first = _timed(lambda: repo.commit(state, step=0))[0]
        for turn in range(1, WARM + sizes.commits):
            for number in chosen(len(weights), where, turn):
                weights[number].add_(0.01)
            state["trainer"]["step"] = turn
            before = written(), file_bytes(packs), file_bytes(log)
            seconds, cpu = _timed(lambda step=turn: repo.commit(state, step=step))
            after = written(), file_bytes(packs), file_bytes(log)
            if turn >= WARM:
                all_bytes, pack_bytes, log_bytes = (now - then for now, then in zip(after, before, strict=True))
                found.append((seconds, cpu, pack_bytes, log_bytes, all_bytes - pack_bytes - log_bytes))
        if wrong := differences(state, repo.checkout()):
            raise WrongResult(f"{codec}, {where} gave back other values: {', '.join(wrong[:3])}")
    seconds, cpu, pack_bytes, log_bytes, index_bytes = (median(column) for column in zip(*found, strict=True))
    what = f"{codec}, {CHANGED} of {sizes.tensors:,} {where}"
    total = (pack_bytes + log_bytes + index_bytes) / 1000
    yield f"{what}: seconds", f"{seconds:.2f} ({cpu:.2f} of processors; the first commit {first:.1f})"
    yield (
        f"{what}: written",
        f"{total:,.0f} kB = packs {pack_bytes / 1000:,.0f} + log {log_bytes / 1000:.1f} "
        f"+ index pages {index_bytes / 1000:,.0f}",
    )
    totals = [sum(each[2:]) / 1000 for each in found]
    yield (
        f"{what}: average",
        f"{mean(totals):,.0f} kB of {len(totals)} commits, at most {max(totals):,.0f}; "
        f"the longest {max(each[0] for each in found):.2f} s",
    )


def _key(folder: Path) -> cs.KeyFile:
    key = folder / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    return cs.KeyFile(key)


def _timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a job took, on the wall and of processors."""
    started, cpu = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - started, time.process_time() - cpu


# ---- large ----------------------------------------------------------------------------------------------------


def filled(number: int, nbytes: int) -> torch.Tensor:
    """Return one tensor of a large state: normal float32 numbers, as weights are at first."""
    source = np.random.Generator(np.random.SFC64([2, number]))
    return torch.from_numpy(source.standard_normal(nbytes // 4, np.float32))


def parts(sizes: Sizes) -> list[int]:
    """Return the bytes of each tensor of a large state."""
    each = min(TENSOR_BYTES, sizes.large_bytes // 4 // 8 * 8)
    count, rest = divmod(sizes.large_bytes // 8 * 8, each)
    return [each] * count + [rest] * (rest > 0)


@dataclass(frozen=True, slots=True)
class Done:
    """What a child did: seconds, bytes of the state, and its peak above what the state takes, in MiB."""

    seconds: float
    nbytes: int
    peak_mb: float
    whole_mb: float


def large(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Commit and restore a large state, each in a process of its own."""
    for codec in ("none", "auto"):
        folder.mkdir(parents=True)
        cs.init(folder / "repo", key=_key(folder), codec=codec).close()
        for verb in ("commit", "restore"):
            command = [sys.executable, "-m", "benchmarks.scale", "--child", verb, str(folder), str(sizes.large_bytes)]
            done = Done(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            speed = done.nbytes / GB / done.seconds
            yield f"{codec}: {verb}", f"{done.nbytes / GB:.2f} GB in {done.seconds:.1f} s, {speed:.2f} GB/s"
            peak = f"{done.peak_mb:,.0f} MiB above the state ({done.whole_mb:,.0f} MiB resident in all)"
            yield f"{codec}: {verb}, peak", peak
        shutil.rmtree(folder)


def child(verb: str, folder: Path, nbytes: int) -> Done:
    """Do one of the two; a restored bit that is wrong ends it."""
    sizes = parts(Sizes(large_bytes=nbytes))
    with cs.open(folder / "repo", key=cs.KeyFile(folder / "key")) as repo:
        if verb == "commit":
            state = {f"part.{number}": filled(number, each) for number, each in enumerate(sizes)}
            reset_peak()
            before = rss_mb()
            seconds, _ = _timed(lambda: repo.commit(state))
            return Done(seconds, sum(sizes), rss_mb("VmHWM") - before, rss_mb("VmHWM"))
        reset_peak()
        before, started = rss_mb(), time.perf_counter()
        restored = repo.checkout()
        seconds, peak = time.perf_counter() - started, rss_mb("VmHWM")
    assert isinstance(restored, dict)
    for number, each in enumerate(sizes):
        if not torch.equal(restored[f"part.{number}"].view(torch.int64), filled(number, each).view(torch.int64)):
            raise WrongResult(f"part.{number} came back with other bits")
    return Done(seconds, sum(sizes), peak - before - sum(sizes) / (1 << 20), peak)


JOBS: dict[str, Callable[[Path, Sizes], Iterator[Line]]] = {"tensors": tensors, "large": large}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--tensors", type=int, default=None, help="how many (default: 100 000)")
    parser.add_argument("--commits", type=int, default=None, help="how many are counted (default: 5)")
    parser.add_argument("--gb", type=float, default=None, help="of the large state (default: 10)")
    parser.add_argument("--folder", type=Path, default=None, help="on which disk (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        verb, folder, nbytes = options.child
        print(json.dumps(asdict(child(verb, Path(folder), int(nbytes)))))
        return
    usual = QUICK if options.quick else Sizes()
    sizes = Sizes(
        options.tensors or usual.tensors,
        options.commits or usual.commits,
        int(options.gb * GB) if options.gb is not None else usual.large_bytes,
    )
    print("| job | | |\n|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        for job in options.only:
            for what, found in JOBS[job](Path(root) / job, sizes):
                print(f"| {job} | {what} | {found} |", flush=True)
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"| all | peak of a process | {most / 1024:,.0f} MiB; load average {os.getloadavg()[0]:.1f} |")


if __name__ == "__main__":
    main()
