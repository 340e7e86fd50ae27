"""What training pays for a snapshot manager, next to the least that could be paid and to torch.save.

    python -m benchmarks.manager [--only JOB ...] [--folder DIR] [--quick]

Jobs; the repositories are encrypted, key in a file, codecs as they are by default:

    stall     how long `manager.step` keeps training when a snapshot is due, in each mode in which it is in the
              background, next to a memmove of each array into warm memory and to torch.save into memory (/dev/shm)
    idle      `manager.step` when nothing is due, by kind of interval, and while a snapshot is on its way
    memory    resident memory of the trainer and of its writer process over 1 000 commits of a small model
    durable   from the call of `step` to the moment a dense state is on the disk, next to torch.save + fsync

Everything that is compared takes turns, and another one begins each time; every turn is preceded by an optimizer step
that changes all bytes.  Times are medians, with the least and the most; a ratio is the median of the turns' ratios,
with its quartiles.  What was stored last is read back and compared bit by bit before a figure is printed.  The load
average of the last minute stands beside each job: on a machine that does something else, figures say little.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

import chainstore as cs
from benchmarks.capture import Memcpy, Training, tensors_in
from benchmarks.gc import key_of
from benchmarks.jobs import WrongResult
from benchmarks.measure import settle_disk
from benchmarks.workloads import differences
from chainstore.manager.process import ProcessWriter
from chainstore.manager.shipping import Shipping

MB = 1e6
WARM = Path("/dev/shm")
Line = tuple[str, str]
Mode = Literal["process", "thread", "sync"]


@dataclass(frozen=True)
class Sizes:
    """How much the jobs do.

    Attributes:
        stall_mb, durable_mb: of the state, 10^6 bytes.  width: of its layers.
        stall_turns, durable_turns: how often everybody takes part.
        calls: of `step`, for each kind of interval.
        commits: of the small model.
    """

    stall_mb: int = 600
    stall_turns: int = 11
    durable_mb: int = 1000
    durable_turns: int = 5
    width: int = 1024
    calls: int = 200_000
    commits: int = 1000


_LOOKS = 50  # at memory

QUICK = Sizes(stall_mb=6, stall_turns=2, durable_mb=6, durable_turns=2, width=256, calls=2000, commits=40)


@contextmanager
def managed(folder: Path, mode: Mode, **options: Any) -> Iterator[cs.SnapshotManager]:
    """Give a manager of a new repository in `folder`, which is removed at the end."""
    folder.mkdir(parents=True)
    try:
        with (
            cs.init(folder / "repo", key=key_of(folder)) as repo,
            cs.SnapshotManager(repo, mode=mode, on_signal=(), on_error="raise", **options) as manager,
        ):
            yield manager
    finally:
        shutil.rmtree(folder)


def check(name: str, training: Training, back: Any) -> None:
    """End the run if what was read back is not what training has.

    Raises:
        WrongResult: it is not.
    """
    wrong = differences(training.state(), {part: back[part] for part in ("model", "optimizer")})
    if wrong:
        raise WrongResult(f"{name} gave back other values: {', '.join(wrong[:3])}")


def take_turns(
    jobs: Mapping[str, Callable[[], float]], before: Callable[[], None], turns: int
) -> dict[str, list[float]]:
    """Let each job take its turn, each time another one first; return their seconds, as they say themselves.

    A turn before the first is for warming up, and not counted.
    """
    names, seconds = list(jobs), {name: list[float]() for name in jobs}
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before()
            taken = jobs[name]()
            if turn:
                seconds[name].append(taken)
    return seconds


def spread(seconds: Sequence[float], unit: float = 1e-3, name: str = "ms") -> str:
    """Return median, least and most, as text."""
    least, most = min(seconds) / unit, max(seconds) / unit
    return f"{statistics.median(seconds) / unit:.1f} {name} ({least:.1f} - {most:.1f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the turns' ratios, and its quartiles, as text."""
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    return f"{middle:.2f}x ({low:.2f} - {high:.2f})"


def stall(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Time the call that captures; what comes after it is over before the next turn."""
    training = layers(sizes.stall_mb, sizes.width)
    memcpy = Memcpy(training.state())
    file = WARM / f"chainstore-benchmark-{os.getpid()}.pt"
    steps = 0

    def before() -> None:
        nonlocal steps
        steps += 1
        training.step()

    def ours(manager: cs.SnapshotManager) -> float:
        started = time.perf_counter()
        assert manager.step(steps, training.model, training.optimizer, metrics={"loss": 1.0})
        taken = time.perf_counter() - started
        manager.wait()
        return taken

    def copy() -> float:
        state = training.state()
        return timed(lambda: memcpy(state))

    def save() -> float:
        try:
            return timed(lambda: torch.save(training.state(), file))
        finally:
            file.unlink()

    with ExitStack() as stack:
        process = stack.enter_context(managed(folder / "process", "process", interval=1))
        thread = stack.enter_context(managed(folder / "thread", "thread", interval=1))
        jobs = {
            "step, mode process": lambda: ours(process),
            "step, mode thread": lambda: ours(thread),
            "memcpy": copy,
            "torch.save to memory": save,
        }
        seconds = take_turns(jobs, before, sizes.stall_turns)
        for name, manager in (("process", process), ("thread", thread)):
            before()
            ours(manager)
            check(name, training, manager.repo.checkout(manager.branch))
    nbytes = sum(tensor.nbytes for tensor in tensors_in(training.state()))
    yield "state", f"{nbytes / MB:.0f} MB in {sum(1 for _ in tensors_in(training.state()))} tensors"
    for name, taken in seconds.items():
        yield name, spread(taken)
    for mode in ("process", "thread"):
        for peer in ("memcpy", "torch.save to memory"):
            yield f"mode {mode} / {peer}", ratio(seconds[f"step, mode {mode}"], seconds[peer])


def idle(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Time `step` where it has nothing to do, with all that a trainer passes to it."""
    training = Training(2, 64)
    blocks = 20
    for name, interval in (("steps", 10**9), ("time", "30m"), ("both", "every 1000000 steps or 30m")):
        with managed(folder, "process", interval=interval) as manager:
            manager.save(1, training.model, training.optimizer)
            manager.wait()
            micros = []
            for _ in range(blocks):
                started = time.perf_counter()
                for call in range(sizes.calls // blocks):
                    if manager.step(2 + call, training.model, training.optimizer, metrics={"loss": 1.0}):
                        raise WrongResult(f"a snapshot was made where none is due (interval {interval!r})")
                micros.append((time.perf_counter() - started) / (sizes.calls // blocks))
            yield f"interval of {name}", spread(micros, 1e-6, "us")
    with managed(folder, "process", interval=10**9) as manager:
        large = layers(sizes.stall_mb, sizes.width)
        manager.save(1, large.model, large.optimizer)
        micros = []
        while not (micros and manager.wait(0)):
            started = time.perf_counter()
            manager.step(2 + len(micros), large.model, large.optimizer, metrics={"loss": 1.0})
            micros.append(time.perf_counter() - started)
            time.sleep(1e-4)
        yield "while a snapshot is on its way", spread(micros, 1e-6, "us")


def memory(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Look at resident memory a few dozen times over many commits, after as many that are not counted.

    What threads hold at the moment comes and goes, so the drift is that of a line through all looks.  Memory of its own
    is what a process allocated.  Pages of mapped files (its libraries, and the repository's index, which grows with
    every commit) are the page cache's: counted as resident while nobody else needs the memory.
    """
    training = Training(8, 128)
    with managed(folder, "process", interval=1, when_full="wait") as manager:
        looks: dict[str, list[Resident]] = {"trainer": [], "writer process": []}
        every = max(1, sizes.commits // _LOOKS)
        for step in range(1, 2 * sizes.commits + 1):
            training.step()
            assert manager.step(step, training.model, training.optimizer, metrics={"loss": 1 / step})
            if step > sizes.commits and step % every == 0:
                manager.wait()
                looks["trainer"].append(resident(os.getpid()))
                looks["writer process"].append(resident(writer_of(manager)))
        check("the manager", training, manager.repo.checkout(manager.branch))
        assert sum(1 for _ in manager.repo.log()) == 2 * sizes.commits
    everybody = np.zeros(1)
    for who, seen in looks.items():
        own = np.array([look.own_mb for look in seen])
        everybody = everybody + own
        yield f"{who}: its own", _drift(own, sizes)
        yield f"{who}: mapped files", f"{seen[0].files_mb:.1f} -> {seen[-1].files_mb:.1f} MiB"
        yield f"{who}: descriptors", f"{seen[0].descriptors} -> {seen[-1].descriptors}"
    yield "both together", _drift(everybody, sizes)


def _drift(looks: "np.ndarray[Any, Any]", sizes: Sizes) -> str:
    slope, _ = np.polyfit(np.arange(len(looks)), looks, 1)
    drift = slope * (len(looks) - 1) / looks.mean()
    return f"{drift * 100:+.2f} % over {sizes.commits:,}: {looks.min():.1f} to {looks.max():.1f} MiB"


def durable(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Time from the call until what it captured is on the disk; files are deleted afterwards, snapshots stay."""
    training = layers(sizes.durable_mb, sizes.width)
    file = folder / "saved.pt"
    folder.mkdir()
    steps = 0

    def before() -> None:
        nonlocal steps
        steps += 1
        training.step()
        settle_disk()

    cpu: dict[str, list[float]] = {"process": [], "thread": [], "torch": []}

    def ours(name: str, manager: cs.SnapshotManager) -> float:
        started, busy = time.perf_counter(), processor_seconds()
        assert manager.step(steps, training.model, training.optimizer)
        assert manager.wait()
        taken = time.perf_counter() - started
        cpu[name].append(processor_seconds() - busy)
        return taken

    def save() -> float:
        started, busy = time.perf_counter(), processor_seconds()
        with file.open("wb") as out:
            torch.save(training.state(), out)
            out.flush()
            os.fsync(out.fileno())
        taken = time.perf_counter() - started
        cpu["torch"].append(processor_seconds() - busy)
        file.unlink()
        return taken

    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        process = stack.enter_context(managed(folder / "process", "process", interval=1))
        thread = stack.enter_context(managed(folder / "thread", "thread", interval=1))
        jobs = {
            "mode process": lambda: ours("process", process),
            "mode thread": lambda: ours("thread", thread),
            "torch.save + fsync": save,
        }
        seconds = take_turns(jobs, before, sizes.durable_turns)
        for name, manager in (("process", process), ("thread", thread)):
            before()
            ours(name, manager)
            check(name, training, manager.repo.checkout(manager.branch))
        stored = process.repo.get_commit(process.branch).stats
    nbytes = sum(tensor.nbytes for tensor in tensors_in(training.state()))
    yield "state", f"{nbytes / MB:.0f} MB, stored as {stored.stored_bytes / MB:.0f} MB"
    for name, taken in seconds.items():
        yield name, spread(taken, 1.0, "s") if sizes is not QUICK else spread(taken)
    shown = ", ".join(f"{name} {statistics.median(taken):.2f}" for name, taken in cpu.items())
    yield "processor seconds", shown
    for mode in ("process", "thread"):
        yield f"mode {mode} / torch.save + fsync", ratio(seconds[f"mode {mode}"], seconds["torch.save + fsync"])


def layers(megabytes: int, width: int) -> Training:
    """Return a model in training whose weights and moments take about so many MB."""
    return Training(max(1, round(megabytes * MB / (3 * 4 * width**2))), width)


def timed(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def writer_of(manager: cs.SnapshotManager) -> int:
    """Return the process that writes for this one; others of its children have nothing to do with it."""
    writer = cast(Shipping, manager._shipping)._writer
    assert isinstance(writer, ProcessWriter)
    return writer.pid


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that run."""
    return [int(each) for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]


def processor_seconds() -> float:
    """Return what this process and those that it started have taken so far."""
    ticks = 0
    for pid in (os.getpid(), *children(os.getpid())):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a process in MiB, its own and that of mapped files, and how many descriptors it has open."""

    own_mb: float
    files_mb: float
    descriptors: int


def resident(pid: int) -> Resident:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    own, shared, files = (int(fields[f"Rss{kind}"].split()[0]) / 1024 for kind in ("Anon", "Shmem", "File"))
    return Resident(own + shared, files, len(os.listdir(f"/proc/{pid}/fd")))


JOBS: dict[str, Callable[[Path, Sizes], Iterator[Line]]] = {
    "stall": stall,
    "idle": idle,
    "memory": memory,
    "durable": durable,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--folder", type=Path, default=None, help="on which disk (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args(arguments)
    print("| job | | |\n|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for job in options.only:
            for what, found in JOBS[job](Path(folder) / job, QUICK if options.quick else Sizes()):
                print(f"| {job} | {what} | {found} |", flush=True)
            print(f"| {job} | load average (1 min), {os.cpu_count()} cores | {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
