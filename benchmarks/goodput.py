"""How much slower a training run gets because of snapshots in the background, next to others that make them.

    python -m benchmarks.goodput [--minutes 15] [--settings pinned sharing] [--peers PEER ...] [--steps 40] [--quick]

A small GPT is trained with AdamW.  Training goes in blocks of `--steps` steps: in a block one contender makes a
snapshot after the first step, and what it does in the background is over before the block is (what is not is waited
for, as part of the block).  Before and after each of these blocks stands one without snapshots, so that a machine that
slows down slows both down: what a block takes longer than the mean of its two neighbours is a pair's difference, and a
contender's loss of throughput is the mean of these, as a share of a block.  On a machine that others use as well a few
blocks are disturbed, whoever's turn it is, so the tenth of the differences at either end is left out, of every
contender alike; the mean of all of them stands beside it.  The order within a round is drawn anew each time, from a
seed.  The interval of 95 % is a bootstrap over blocks.  A control that makes no snapshots shows how exactly that
measures.  Time in which other programs had training's core is left out where it is known: pinned.

Settings:

    pinned    training on the first core with one thread; everything that anybody does in the background, threads and
              processes, on the second one
    sharing   nothing is pinned: training has a thread for each core, and the background has what it gets

Everybody writes the same state (model and optimizer) to the same disk, and syncs it: chainstore to an encrypted
repository; torch.save to a file, while training waits; torch.distributed.checkpoint (DCP) with `async_save` in a thread
or a process, its staging memory shared and used again.  At the end each writes once more, and what it gives back is
compared with the live state bit by bit.  Not the loss at an interval of your own: this one is seconds, where yours is
minutes, so that it can be seen at all.  The loss of a longer interval is smaller by as much as the interval is longer.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

import chainstore as cs
from benchmarks.gc import key_of
from benchmarks.jobs import WrongResult
from benchmarks.manager import Mode
from benchmarks.measure import settle_disk
from benchmarks.workloads import State, differences, raw_bytes

SETTINGS = ("pinned", "sharing")
CONTROL = "no snapshots (control)"
LATE_SECONDS = 0.01
SCHEDSTAT = Path("/proc/thread-self/schedstat")  # of this thread: ran, waited to run (ns), times
RESAMPLES = 10_000


class Training:
    """A GPT of a few million parameters on random text; a step takes tens of milliseconds."""

    def __init__(self, width: int, depth: int, tokens: int) -> None:
        torch.manual_seed(0)
        self.embed = nn.Embedding(512, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.model = nn.ModuleDict(
            {"embed": self.embed, "blocks": nn.TransformerEncoder(block, depth, enable_nested_tensor=False)}
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.text = torch.randint(0, 512, (1 << 16,))
        self.mask = nn.Transformer.generate_square_subsequent_mask(tokens)
        self.tokens = tokens

    def step(self) -> None:
        start = int(torch.randint(0, len(self.text) - self.tokens - 1, ()))
        piece = self.text[start : start + self.tokens + 1]
        hidden = self.model["blocks"](self.embed(piece[None, :-1]), mask=self.mask, is_causal=True)
        loss = nn.functional.cross_entropy((hidden @ self.embed.weight.T)[0], piece[1:])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def state(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Contender:
    """Makes snapshots of a run.

    Attributes:
        name: in the table, and to ask for it by.
    """

    name: ClassVar[str] = CONTROL

    def __init__(self, folder: Path, training: Training) -> None:
        self.folder, self.training = folder, training
        self.count = 0

    def snapshot(self) -> None:
        """Begin a snapshot; the state may be changed when this returns."""

    def step(self) -> None:
        """Be told of a step after which no snapshot is due."""

    def drain(self) -> None:
        """Wait until the snapshot is on the disk."""

    def prune(self) -> None:
        """Delete what is old; not timed."""

    def load(self) -> Any:
        """Return what was written last."""
        return self.training.state()

    def close(self) -> None:
        """Give everything up."""


class Chain(Contender):
    """A SnapshotManager; told of every step, as in a training loop."""

    mode: ClassVar[Mode]

    def __init__(self, folder: Path, training: Training) -> None:
        super().__init__(folder, training)
        self.repo = cs.init(folder / "repo", key=key_of(folder))
        self.manager = cs.SnapshotManager(
            self.repo, interval=10**9, mode=self.mode, when_full="raise", on_error="raise", on_signal=()
        )

    def snapshot(self) -> None:
        self.count += 1
        self.manager.save(self.count, self.training.model, self.training.optimizer)

    def step(self) -> None:
        self.count += 1
        self.manager.step(self.count, self.training.model, self.training.optimizer, metrics={"loss": 0.5})

    def drain(self) -> None:
        self.manager.wait()

    def load(self) -> Any:
        back = self.repo.checkout("main")
        return {part: back[part] for part in ("model", "optimizer")}

    def close(self) -> None:
        self.manager.close()
        self.repo.close()


class ChainProcess(Chain):
    name, mode = "chainstore process", "process"


class ChainThread(Chain):
    name, mode = "chainstore thread", "thread"


class Files(Contender):
    """Snapshots with a name of their own each."""

    def place(self) -> Path:
        return self.folder / f"{self.count:06d}"

    def prune(self) -> None:
        for path in self.folder.glob("[0-9]*"):
            if path != self.place():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class TorchSave(Files):
    """What most scripts do, and on the disk when it returns."""

    name = "torch.save + fsync"

    def snapshot(self) -> None:
        self.count += 1
        with self.place().open("wb") as file:
            torch.save(self.training.state(), file)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> Any:
        return torch.load(self.place())


class Dcp(Files):
    """`async_save`: copies the state into memory that it keeps, and writes that in the background."""

    kind: ClassVar[AsyncCheckpointerType]

    def __init__(self, folder: Path, training: Training) -> None:
        super().__init__(folder, training)
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        self.stager = DefaultStager(StagingOptions(False, True, False, False))
        self.going: Future[Any] | None = None

    def snapshot(self) -> None:
        self.count += 1
        self.going = async_save(  # type: ignore[assignment]
            self.training.state(),
            checkpoint_id=self.place(),
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )

    def drain(self) -> None:
        if self.going is not None:
            self.going.result()

    def load(self) -> Any:
        state: Any = torch.utils._pytree.tree_map(
            lambda value: torch.zeros_like(value) if isinstance(value, Tensor) else value, self.training.state()
        )
        load(state, checkpoint_id=self.place())
        return state

    def close(self) -> None:
        self.stager.close()


class DcpThread(Dcp):
    name, kind = "DCP async thread", AsyncCheckpointerType.THREAD


class DcpProcess(Dcp):
    name, kind = "DCP async process", AsyncCheckpointerType.PROCESS


CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind for kind in (ChainProcess, ChainThread, TorchSave, DcpThread, DcpProcess)
}


class Cores:
    """Keeps training on one core and everything else on another, or lets everybody have what they get."""

    def __init__(self, pinned: bool) -> None:
        self._background: set[int] = set()
        if not pinned:
            return
        first, second = sorted(os.sched_getaffinity(0))[:2]
        self._background = {second}
        torch.set_num_threads(1)
        os.sched_setaffinity(0, {first})  # this thread, and what it starts; threads move when they run:
        run = threading.Thread.run

        def run_aside(thread: threading.Thread) -> None:
            os.sched_setaffinity(0, {second})
            run(thread)

        threading.Thread.run = run_aside  # type: ignore[method-assign,assignment]

    def foreign(self) -> float:
        """Return seconds that this thread wanted to run and other programs had its core; 0 where that cannot be told.

        Pinned, nobody of ours runs there beside it.  Sharing, they may be ours, and count.
        """
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9 if self._background and SCHEDSTAT.exists() else 0.0

    def hold(self) -> None:
        """Put the processes that this one started where they belong."""
        if self._background:
            for pid in descendants(os.getpid()):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), self._background)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that they did."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            yield child
            yield from descendants(child)


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of a block.

    Attributes:
        total: all of it, without `foreign`.  foreign: when other programs had the core.
        call: that began the snapshot.  late: what was waited for at the end.  step: median of the other steps.
    """

    total: float
    foreign: float
    call: float
    late: float
    step: float


@dataclass(slots=True)
class Record:
    """Blocks of one contender, each with the mean of the two without snapshots beside it."""

    blocks: list[Block] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    plain_step: list[float] = field(default_factory=list)

    def loss(self, seed: int) -> tuple[float, float, float]:
        """Return the loss of throughput, and its interval of 95 %, as shares."""
        longer = np.array([block.total for block in self.blocks]) - self.without
        picks = np.random.default_rng(seed).integers(0, len(longer), (RESAMPLES, len(longer)))
        low, high = np.percentile(trimmed(longer[picks]), [2.5, 97.5])
        return tuple(self._share(float(extra)) for extra in (trimmed(longer), low, high))  # type: ignore[return-value]

    def mean_loss(self) -> float:
        """Return the loss with all blocks, disturbed or not, as a share."""
        return self._share(statistics.mean(block.total for block in self.blocks) - statistics.mean(self.without))

    def _share(self, extra: float) -> float:
        return extra / (statistics.median(self.without) + extra)


def trimmed(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the mean along the last axis without the tenth at either end."""
    count = values.shape[-1]
    out = count // 10
    return np.asarray(np.sort(values, axis=-1)[..., out : count - out].mean(axis=-1))


def run_block(training: Training, contender: Contender, cores: Cores, steps: int) -> Block:
    """Train for a block in which `contender` makes one snapshot."""
    others = []
    foreign, begun = cores.foreign(), time.perf_counter()
    training.step()
    started = time.perf_counter()
    contender.snapshot()
    call = time.perf_counter() - started
    for _ in range(steps - 1):
        started = time.perf_counter()
        training.step()
        contender.step()
        others.append(time.perf_counter() - started)
    started = time.perf_counter()
    contender.drain()
    ended = time.perf_counter()
    foreign = cores.foreign() - foreign
    return Block(ended - begun - foreign, foreign, call, ended - started, statistics.median(others))


def compete(
    training: Training, contenders: Sequence[Contender], cores: Cores, steps: int, seconds: float, seed: int
) -> tuple[dict[str, Record], int]:
    """Let everybody have a block in each round until the time is over, two rounds at least; return also how many."""
    records = {contender.name: Record() for contender in contenders}
    plain, order = Contender(Path(), training), random.Random(seed)
    for contender in contenders:  # warm memory, processes that are started by the first snapshot
        run_block(training, contender, cores, 2)
    deadline, rounds = time.monotonic() + seconds, 0
    cores.hold()
    before = run_block(training, plain, cores, steps)
    while rounds < 2 or time.monotonic() < deadline:
        for contender in order.sample(contenders, len(contenders)):
            cores.hold()
            settle_disk()
            block = run_block(training, contender, cores, steps)
            contender.prune()
            settle_disk()
            after = run_block(training, plain, cores, steps)
            record = records[contender.name]
            record.blocks.append(block)
            record.without.append((before.total + after.total) / 2)
            record.plain_step.append((before.step + after.step) / 2)
            before = after
        rounds += 1
    return records, rounds


def check(contenders: Sequence[Contender], training: Training) -> None:
    """End the run if somebody does not give back what training has.

    Raises:
        WrongResult: one does not.
    """
    for contender in contenders:
        contender.snapshot()
        contender.drain()
        wrong = differences(training.state(), contender.load())
        if wrong:
            raise WrongResult(f"{contender.name} gave back other values: {', '.join(wrong[:3])}")


def rows(setting: str, records: dict[str, Record], seed: int) -> Iterator[str]:
    """Yield the lines of the table of a setting, and what is compared there."""
    losses = {name: record.loss(seed) for name, record in records.items()}
    for name, record in records.items():
        loss, low, high = losses[name]
        call = statistics.median(block.call for block in record.blocks) * 1e3
        slower = statistics.median(
            block.step / plain for block, plain in zip(record.blocks, record.plain_step, strict=True)
        )
        late = sum(block.late > LATE_SECONDS for block in record.blocks)
        interval = f"{low * 100:+.2f} to {high * 100:+.2f}"
        lost = f"{loss * 100:+.2f} % | {interval} | {record.mean_loss() * 100:+.2f} %"
        found = f"{lost} | {call:.1f} ms | {(slower - 1) * 100:+.1f} % | {late}"
        yield f"| {setting} | {name} | {found} of {len(record.blocks)} |"
    dcp = {name: losses[name][0] for name in losses if name.startswith("DCP")}
    if dcp and ChainProcess.name in losses:
        best = min(dcp, key=dcp.__getitem__)
        ours, theirs = losses[ChainProcess.name], losses[best]
        compared = f"{ours[0] / theirs[0]:.2f}x" if theirs[1] > 0 else "no ratio: not told from none in so many rounds"
        yield (
            f"\n{setting}: {ChainProcess.name} loses at most {ours[2] * 100:.2f} % (95 %); "
            f"next to the best of DCP, {best} with {theirs[0] * 100:+.2f} %: {compared}\n"
        )


def run_setting(options: argparse.Namespace, setting: str, folder: Path) -> None:
    """Print the table of one setting, in a process that does nothing else."""
    cores = Cores(setting == "pinned")
    training = Training(32, 2, 16) if options.quick else Training(options.width, options.depth, options.tokens)
    for _ in range(3):
        training.step()
    contenders = [Contender(folder, training)]
    for name in options.peers:
        place = folder / name.replace(" ", "-")
        place.mkdir()
        try:
            contender = CONTENDERS[name](place, training)
            contender.snapshot()
            contender.drain()
        except Exception as error:
            if issubclass(CONTENDERS[name], Chain):
                raise
            print(f"{name} is left out: {type(error).__name__}: {error}", flush=True)
            continue
        contenders.append(contender)
    steps, seconds = (3, 0.0) if options.quick else (options.steps, options.minutes * 60 / len(options.settings))
    try:
        records, rounds = compete(training, contenders, cores, steps, seconds, options.seed)
        check(contenders, training)
    finally:
        for contender in contenders:
            contender.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    block = statistics.median(value for record in records.values() for value in record.without)
    blocks = [block for record in records.values() for block in record.blocks]
    foreign = sum(block.foreign for block in blocks) / sum(block.total + block.foreign for block in blocks)
    print(
        f"\n{setting}: {raw_bytes(training.state()) / 1e6:.0f} MB, {block / steps * 1e3:.1f} ms a step, a snapshot "
        f"every {steps} steps ({block:.1f} s), {rounds} rounds, seed {options.seed}, "
        f"{torch.get_num_threads()} threads of torch, load average {os.getloadavg()[0]:.1f}, {foreign:.0%} of the "
        "time left out because other programs had the core\n\n"
        "| setting | snapshots | loss of throughput | 95 % interval | all blocks | the call | other steps | late |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for row in rows(setting, records, options.seed):
        print(row, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="for all settings together; 2 for a first look")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--peers", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="PEER")
    parser.add_argument("--steps", type=int, default=40, help="of a block, which is the interval between snapshots")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=None, help="on which disk (default: a temporary folder)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        run_setting(options, options.settings[0], options.inside)
        return
    given = list(sys.argv[1:] if arguments is None else arguments)
    minutes = str(options.minutes / len(options.settings))
    for setting in options.settings:
        if setting == "pinned" and len(os.sched_getaffinity(0)) < 2:
            print("pinned is left out: there is one core only")
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            last = ["--settings", setting, "--minutes", minutes, "--inside", os.path.abspath(folder)]
            command = [sys.executable, "-m", "benchmarks.goodput", *given, *last]
            subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)


if __name__ == "__main__":
    main()
