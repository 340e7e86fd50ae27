"""Processes that each do one thing with the states of a trace, when they are told to.

Each has the state in memory as a training run has it, and nothing else, so that its peak of memory is its own; whoever
measures lets them take turns.  They are forked from a process that has imported torch and never used it.
"""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import chainstore as cs
from benchmarks.compare.backup import BackupPeer, Borg, Restic
from benchmarks.compare.rules import RULES, Arrays, arrays, difference_bits
from benchmarks.jobs import WrongResult
from benchmarks.measure import cpu_seconds, disk_bytes, reset_peak, rss_mb
from benchmarks.recorded import Player, Trace
from benchmarks.workloads import State, differences, flat
from chainstore.ids import Kind
from chainstore.model.paths import format_path

BOUND = "entropy of the difference"
BACKUPS: Mapping[str, type[BackupPeer]] = {peer.name: peer for peer in (Borg, Restic)}


@dataclass(frozen=True, slots=True)
class Done:
    """What one order took.

    Attributes:
        cpu_seconds: of all threads, and of the processes that it started.
        stored_bytes, new_bytes, delta_bytes: of a save, as far as they are known.
        depth: of a restore: the most differences in a row that it had to undo.
    """

    seconds: float
    cpu_seconds: float
    stored_bytes: int = 0
    new_bytes: int = 0
    delta_bytes: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """What there is at the end.

    Attributes:
        peak_bytes: resident memory at its highest, above what there was before the first order.
        record_bytes: of all records, whatever they hold.  disk_bytes: of everything, in whole blocks.
        commits: their ids, in the order of the states.
    """

    peak_bytes: int
    record_bytes: int = 0
    disk_bytes: int = 0
    commits: tuple[str, ...] = ()


class Child:
    """A process that makes an object and calls its `do` with each order."""

    _context = multiprocessing.get_context("forkserver")

    def __init__(self, make: Callable[..., Any], *arguments: object) -> None:
        self._context.set_forkserver_preload([__name__])
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, *order: object) -> Any:
        """Return what `do` returned.

        Raises:
            WrongResult: that, in the child.  RuntimeError: anything else that ended it.
        """
        try:
            self._pipe.send(order)
            kind, answer = self._pipe.recv()
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError("a process of the benchmark ended") from error
        if kind == "wrong":
            raise WrongResult(answer)
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, make: Callable[..., Any], arguments: Sequence[object]) -> None:
    worker = make(*arguments)
    gc.collect()
    gc.freeze()
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            worker.close()
            return
        try:
            pipe.send(("done", worker.do(*order)))
        except WrongResult as error:
            pipe.send(("wrong", str(error)))


def timed(act: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what `act` returned, its seconds, and its CPU seconds."""
    cpu, started = cpu_seconds(), time.perf_counter()
    result = act()
    return result, time.perf_counter() - started, cpu_seconds() - cpu


class Saver:
    """Has the states of a trace, one after another, and saves each; memory counts from the first state on."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.player = trace, Player(trace)
        self.player.state(0)
        self._resident = 0.0

    def do(self, number: int | None) -> Done | End:
        """Save a state; None: say what there is at the end."""
        if number is None:
            return self.end(int(max(0.0, rss_mb("VmHWM") - self._resident) * (1 << 20)))
        state = self.player.state(number)
        if not self._resident:
            reset_peak()
            self._resident = rss_mb()
        return self.save(number, state)

    def save(self, number: int, state: State) -> Done:
        raise NotImplementedError

    def end(self, peak: int) -> End:
        return End(peak)

    def close(self) -> None:
        self.player.close()


class Committer(Saver):
    """Commits to a new encrypted repository, on the branch that the state is on."""

    def __init__(self, trace: Trace, place: Path, codec: str) -> None:
        super().__init__(trace)
        self.repo, self.codec = create(place), codec
        self.commits: list[cs.Commit] = []

    def save(self, number: int, state: State) -> Done:
        moment = self.trace.moments[number]
        if moment.branch not in self.repo.branches() and moment.parent is not None:
            self.repo.branch(moment.branch, self.commits[moment.parent].id)

        def commit() -> cs.Commit:
            return self.repo.commit(state, "benchmark", branch=moment.branch, step=moment.step, codec=self.codec)

        made, seconds, cpu = timed(commit)
        self.commits.append(made)
        with self.repo._db.view() as view:
            place = view.place(made.id)
        assert place is not None
        stats = made.stats
        return Done(seconds, cpu, stats.stored_bytes + place.length, stats.new_bytes, stats.delta_bytes)

    def end(self, peak: int) -> End:
        records = sum(kind.stored_bytes for kind in self.repo.usage().kinds)
        return End(peak, records, disk_bytes(self.repo.path), tuple(commit.id.hex() for commit in self.commits))

    def close(self) -> None:
        self.repo.close()
        super().close()


def create(place: Path) -> cs.Repository:
    """Make a repository, and its key beside it."""
    place.mkdir(parents=True)
    key_of(place).path.write_bytes(os.urandom(32))
    key_of(place).path.chmod(0o600)
    return cs.init(place / "repo", key=key_of(place))


def key_of(place: Path) -> cs.KeyFile:
    return cs.KeyFile(place / "key")


class TorchSaver(Saver):
    """torch.save to a new file, perhaps with fsync; nothing of it is left to be written."""

    def __init__(self, trace: Trace, place: Path, sync: bool) -> None:
        super().__init__(trace)
        self.file, self.sync = place, sync

    def save(self, number: int, state: State) -> Done:
        _, seconds, cpu = timed(lambda: torch_save(state, self.file, self.sync))
        stored = self.file.stat().st_size
        self.file.unlink()
        return Done(seconds, cpu, stored, stored)


class BackupSaver(Saver):
    """torch.save to a file, and a backup of that with a program; its repository keeps every state."""

    def __init__(self, trace: Trace, place: Path, name: str) -> None:
        super().__init__(trace)
        self.peer = BACKUPS[name](place)

    def save(self, number: int, state: State) -> Done:
        before = self.peer.stored()
        _, seconds, cpu = timed(lambda: self.peer.save(state, number, 0.0))
        grown = self.peer.stored() - before
        return Done(seconds, cpu, grown, grown)

    def end(self, peak: int) -> End:
        self.peer.ready()
        wrong = differences(self.player.state(len(self.trace.moments) - 1), self.peer.load())
        if wrong:
            raise WrongResult(f"{self.peer.name} gave back other values than it got: {', '.join(sorted(wrong)[:5])}")
        return End(max(peak, self.peer.child_peak_bytes), disk_bytes=disk_bytes(self.peer.repo))


def torch_save(state: State, place: Path, sync: bool) -> None:
    with place.open("wb") as file:
        torch.save(state, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())


class Ruler(Saver):
    """Stores by one of the rules of peers; what it keeps is decoded and compared."""

    def __init__(self, trace: Trace, rule: str) -> None:
        super().__init__(trace)
        self.before, self.rule = Player(trace), None if rule == BOUND else RULES[rule]()

    def save(self, number: int, state: State) -> Done:
        now, before = arrays(state), self.parent(number)
        if self.rule is None:
            bits, seconds, cpu = timed(lambda: difference_bits(now, before))
            return Done(seconds, cpu, int(bits / 8))
        rule = self.rule
        kept, seconds, cpu = timed(lambda: rule.store(now, before))
        for part in kept:
            if part.back() != part.data.tobytes():
                raise WrongResult(f"{rule.name} gave back other bytes than it got")
        return Done(seconds, cpu, sum(part.stored for part in kept))

    def parent(self, number: int) -> Arrays | None:
        parent = self.trace.moments[number].parent
        return None if parent is None else arrays(self.before.state(parent))

    def close(self) -> None:
        self.before.close()
        super().close()


class Reader:
    """Gives states back, whole or in part, and compares each with what was recorded."""

    name: str

    def __init__(self, trace: Trace) -> None:
        self.trace, self.player = trace, Player(trace)

    def do(self, number: int, part: str, cold: bool) -> Done:
        """Restore a state.

        Args:
            part: "whole", "layer" or "tensor".
            cold: nothing open, and nothing of it in the page cache.
        """
        select = {"whole": None, "layer": self.trace.part[1], "tensor": self.trace.part[0]}[part]
        if cold:
            self.forget_pages()
        back, seconds, cpu = timed(lambda: self.load(number, select, cold))
        if select is None:
            wrong = differences(self.player.state(number), back)
        else:
            wanted = {name: value for name, value in flat(self.player.state(number)).items() if under(name, select)}
            wrong = differences(wanted, flat(back))
        if wrong or back is None:
            raise WrongResult(f"{self.name} gave back other values than it got: {', '.join(sorted(wrong)[:5])}")
        return Done(seconds, cpu, depth=self.depth(number, select))

    def load(self, number: int, select: str | None, cold: bool) -> object:
        raise NotImplementedError

    def depth(self, number: int, select: str | None) -> int:
        return 0

    def forget_pages(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.player.close()


def under(name: str, select: str) -> bool:
    """Tell whether a path is selected: by its name, or by the start of it before a star."""
    return name == select or (select.endswith("*") and name.startswith(select.rstrip("*")))


class Restorer(Reader):
    """Restores from a repository."""

    name = "chainstore"

    def __init__(self, trace: Trace, place: Path, commits: Mapping[int, str]) -> None:
        super().__init__(trace)
        self.place, self.commits = place, commits
        self.repo = self.open()
        self._depths: dict[str, int] = {}

    def open(self) -> cs.Repository:
        return cs.open(self.place / "repo", key=key_of(self.place))

    def load(self, number: int, select: str | None, cold: bool) -> object:
        if cold:
            self.repo = self.open()
        return self.repo.checkout(self.commits[number], select=select)

    def depth(self, number: int, select: str | None) -> int:
        name = f"{number} {select}"
        if name not in self._depths:
            entries = self.repo.snapshot(self.commits[number]).manifest.values()
            chosen = [entry for entry in entries if select is None or under(format_path(entry.path), select)]
            with self.repo._db.view() as view:
                places = [view.place(extent.chunk) for entry in chosen for extent in entry.extents]
            self._depths[name] = max((place.depth for place in places if place is not None), default=0)
        return self._depths[name]

    def forget_pages(self) -> None:
        self.repo.close()
        for path in (self.place / "repo").rglob("*"):
            if path.is_file():
                forget_pages(path)

    def close(self) -> None:
        self.repo.close()
        super().close()


class TorchLoader(Reader):
    """torch.load of a file that holds one state; of a mapped one, copied, for a part."""

    name = "torch.load"

    def __init__(self, trace: Trace, place: Path) -> None:
        super().__init__(trace)
        self.file = place
        self._holds = 0
        torch_save(self.player.state(0), self.file, True)

    def do(self, number: int, part: str, cold: bool) -> Done:
        return super().do(0, part, cold)

    def load(self, number: int, select: str | None, cold: bool) -> object:
        if select is None:
            return torch.load(self.file)
        mapped = flat(torch.load(self.file, mmap=True))
        return {name: tensor.clone() for name, tensor in mapped.items() if under(name, select)}

    def forget_pages(self) -> None:
        forget_pages(self.file)


def forget_pages(path: Path) -> None:
    """Take a file out of the page cache, as far as nobody maps it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


class Forgetter:
    """Forgets all but the newest snapshot of every branch, collects, and compares what was kept."""

    def __init__(self, trace: Trace, place: Path, commits: Mapping[int, str]) -> None:
        self.reader = Restorer(trace, place, commits)

    def do(self) -> list[tuple[str, str]]:
        """Return what was found, in words."""
        repo, before = self.reader.repo, disk_bytes(self.reader.repo.path / "packs")
        repo.forget(cs.Retention(last=1))
        dead = self._dead()
        report, seconds, _ = timed(repo.gc)
        freed = before - disk_bytes(repo.path / "packs")
        kept = [number for number in self.reader.commits if self._kept(number)]
        for number in kept:
            self.reader.do(number, "whole", False)
        return [
            ("forgotten", f"{len(self.reader.commits) - len(kept)} of {len(self.reader.commits)} snapshots"),
            ("dead bytes back", f"{freed / dead:.1%} of {dead / 1e6:.1f} MB" if dead else "there were none"),
            ("gc", f"{seconds:.2f} s, {report.moved_bytes / 1e6:.1f} MB moved"),
            ("kept", f"{len(kept)} snapshots, equal bit by bit"),
        ]

    def _kept(self, number: int) -> bool:
        commit = self.reader.repo.resolve(self.reader.commits[number])
        return commit not in self.reader.repo.marks()

    def _dead(self) -> int:
        """Return the bytes of chunks that no kept snapshot names, whatever else is stored as a difference to them."""
        repo, named = self.reader.repo, set[object]()
        for number, id in self.reader.commits.items():
            if self._kept(number):
                named |= repo.snapshot(id).manifest.chunks()
        with repo._db.view() as view:
            chunks = [(id, place) for id, place in view.objects() if place.kind == Kind.CHUNK]
        return sum(place.length for id, place in chunks if id not in named)

    def close(self) -> None:
        self.reader.close()
