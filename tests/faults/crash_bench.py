"""The bench: a workload is done once and written down, then the power is cut after each of its operations.

Nothing of chance is left: clock, nonces and names of packs come from the seed, so that a state that broke something
can be had again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chainstore.crypto.keys import generate_key_file
from chainstore.errors import SnapshotForgotten, WrongKey
from chainstore.ids import ObjectId
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.testing.faults.crashes import Crash, crashes
from chainstore.testing.faults.disk import Disk
from chainstore.testing.faults.ground import Ground
from chainstore.testing.faults.operations import Operation
from chainstore.testing.faults.recorder import Recorder
from chainstore.testing.faults.trees import read_tree
from tests.faults.chronicle import same
from tests.faults.crash_steps import LAST, NEW_KEY, OLD_KEY, STEPS, Seen, state
from tests.faults.crash_world import fixed_world, small_world, walked_once
from tests.odb.stores import logical


@dataclass(frozen=True, slots=True)
class Recording:
    """What a workload did.

    Attributes:
        start: the disk before.  ends: after how many operations each step was acknowledged; of what was before, 0.
        seen: what users see before the first step and after each.
    """

    start: Disk
    operations: list[Operation]
    ends: list[int]
    seen: list[Seen]

    def possible(self, crash: Crash) -> list[Seen]:
        """Return what may be seen after a power cut: what was acknowledged, or that and the step in flight."""
        done = sum(end <= crash.after for end in self.ends) - 1
        return self.seen[done : done + 2]


class Violation(AssertionError):
    """A power cut lost something, left half of something, or left what cannot be worked with."""


@dataclass
class Tally:
    """How much was looked at.

    Attributes:
        states: that a power cut can leave.  distinct: of them, those that differ.
        interrupted: states that a power cut during a recovery can leave.  rebuilt: indexes made anew.
    """

    states: int = 0
    distinct: int = 0
    interrupted: int = 0
    rebuilt: int = 0


class Bench:
    """A small repository, and the ground on which it lives through every power cut.

    Args:
        folder: empty, in memory if possible.
        small_files: instead of everything in one pack and one segment of the log.
        every: one in so many states is also recovered with interruptions, and one has its index rebuilt.
        chances: at each place, how many states are left to chance.
    """

    def __init__(
        self, folder: Path, *, encrypted: bool, small_files: bool = False, every: int = 40, chances: int = 1
    ) -> None:
        self.root, self.encrypted = folder / "repo", encrypted
        self._small_files, self._every, self._chances = small_files, every, chances
        self.keys = {
            name: generate_key_file(folder / f"{name}.key", Random(name).randbytes) for name in (OLD_KEY, NEW_KEY)
        }
        self.tally = Tally()
        self._known: dict[bytes, Seen] = {}
        self._opened_with = OLD_KEY
        (folder / "spare").mkdir()
        key = self.keys[OLD_KEY] if encrypted else None
        with self._rules(0, day=0), init(self.root, key=key, encrypt=encrypted, threads=1) as repo:
            for number in (1, 2, 3):
                repo.commit(state(number), str(number), step=number)
            repo.tag("first", "main~2")
        self._base = read_tree(self.root)
        self._before = Seen({"main": (1, 2, 3)}, {"first": 1})
        self._ground = Ground(self.root, folder / "spare")

    def explore(
        self,
        steps: tuple[str, ...],
        seed: int,
        *,
        one_handle: bool = True,
        most: int | None = None,
        last_step_only: bool = False,
    ) -> Tally:
        """Do a workload, cut the power everywhere, and look.

        Args:
            most: look at so many of the states, chosen by chance; None: at all.
            last_step_only: cut the power there.

        Raises:
            Violation: says what broke, and where.
        """
        recording = self.record(steps, seed, one_handle=one_handle)
        source = Random(seed)
        with self._rules(seed, day=2), self._ground.watched(), walked_once():
            every = list(crashes(recording.start, recording.operations, source, chances=self._chances))
            if last_step_only:
                every = [crash for crash in every if crash.after > recording.ends[-2]]
            chosen = sorted(source.sample(range(len(every)), min(most or len(every), len(every))))
            for crash in (every[number] for number in chosen):
                self.tally.states += 1
                what = f"{' '.join(steps)}, power cut {_where(recording.operations, crash)}"
                with _violation(what):
                    possible = recording.possible(crash)
                    seen = self._known.get(crash.tree.mark)
                    if seen is None:
                        seen = self._known[crash.tree.mark] = self._look(crash, possible, source, what)
                        self.tally.distinct += 1
                    assert seen in possible, f"I1, I2: {seen}\nshould be one of {possible}"
        return self.tally

    def record(self, steps: tuple[str, ...], seed: int, *, one_handle: bool = True) -> Recording:
        """Do a workload and return what it did."""
        with self._rules(seed, day=1), self._ground.watched():
            self._ground.put(self._base)
            recorder = Recorder(self.root, Disk.of(self._base))
            ends, seen = [0], [self._before]
            with recorder.installed():
                repo = self._open()
                try:
                    for number, name in enumerate(steps, start=4):
                        if not one_handle:
                            repo.close()
                            repo = self._open()
                        STEPS[name].do(repo, number, self.keys)
                        ends.append(len(recorder.operations))
                        seen.append(STEPS[name].then(seen[-1], number))
                finally:
                    repo.close()
        return Recording(recorder.start, recorder.operations, ends, seen)

    # -- looking at one state

    def _look(self, crash: Crash, possible: list[Seen], source: Random, what: str) -> Seen:
        """Recover from one state and return what is seen then."""
        number = self.tally.distinct + 1
        thorough, rebuild = number % self._every == 0, (number + self._every // 2) % self._every == 0
        self._ground.put(crash.tree)
        shown = self._shown() if thorough else None
        recovery = Recorder(self.root, crash.disk)
        with recovery.installed():
            seen = self._recovered()
        assert shown in (None, seen), f"I6: {shown} to who only reads, {seen} after recovery"
        self._go_on(seen, rebuild)
        if thorough:
            self._interrupt(recovery, seen, possible, source, what)
        return seen

    def _interrupt(self, recovery: Recorder, seen: Seen, possible: list[Seen], source: Random, what: str) -> None:
        """Cut the power, again, during a recovery.

        Args:
            seen: after that recovery.  possible: what may be seen where it began on a disk that was not synced.
        """
        done = set()
        for crash in crashes(recovery.start, recovery.operations, source, chances=1):
            self.tally.interrupted += 1
            if crash.tree.mark not in done:
                done.add(crash.tree.mark)
                with _violation(f"{what}, and during recovery {_where(recovery.operations, crash)}"):
                    self._ground.put(crash.tree)
                    again = self._recovered()
                    allowed = [seen] if crash.after == len(recovery.operations) else [seen, *possible]
                    assert again in allowed, f"I6: {again}\nafter an interrupted recovery, not {allowed}"

    def _recovered(self) -> Seen:
        """Open for writing, which settles; everything is there to the bit."""
        with self._open() as repo:
            report = repo.verify("data")
            assert report.ok, f"I1, I4: {report.damaged}"
            return self._observe(repo)

    def _shown(self) -> Seen:
        """Open for reading, which changes nothing."""
        recorder = Recorder(self.root, Disk())
        with recorder.installed(), self._open(readonly=True) as repo:
            seen = self._observe(repo)
        assert not _lasting(recorder), f"who only reads changed something: {_lasting(recorder)}"
        return seen

    def _go_on(self, seen: Seen, rebuild: bool) -> None:
        """Open again, which finds nothing to do; then work."""
        recorder = Recorder(self.root, Disk())
        with recorder.installed():
            repo = self._open()
        with repo:
            assert not _lasting(recorder), f"I6: a second recovery found more to do: {_lasting(recorder)}"
            again = self._observe(repo)
            assert again == seen, f"I6: {again} after closing and opening, {seen} before"
            if rebuild:
                self._rebuild(repo)
            commit = repo.commit(state(LAST), str(LAST), step=LAST, branch="main")
            assert same(repo.checkout(commit.id), state(LAST))
            assert repo.resolve("main") == commit.id
            assert commit.parents and repo.get_commit(commit.parents[0]).step == seen.branches["main"][-1]

    def _rebuild(self, repo: Repository) -> None:
        self.tally.rebuilt += 1
        before = logical(repo._db)
        report = repo.rebuild_index()
        assert not report.problems, f"I8: {report.problems}"
        after = logical(repo._db)
        different = [name for name in before if before[name] != after[name]]
        assert not different, f"I8: a rebuilt index has other {different}"

    def _observe(self, repo: Repository) -> Seen:
        """Return what users see; every snapshot that is not forgotten is read and compared."""
        numbers: dict[ObjectId, tuple[int, ...]] = {}
        forgotten = set()

        def chain(id: ObjectId) -> tuple[int, ...]:
            if id not in numbers:
                commit = repo.get_commit(id)
                number = int(commit.message)
                try:
                    found = repo.checkout(id)
                    assert same(found, state(number)), f"I1: commit {number} came back otherwise than it was"
                except SnapshotForgotten:
                    forgotten.add(number)
                numbers[id] = (*(chain(commit.parents[0]) if commit.parents else ()), number)
            return numbers[id]

        branches = {name: chain(tip) for name, tip in repo.branches().items()}
        tags = {name: chain(target)[-1] for name, target in repo.tags().items()}
        return Seen(branches, tags, frozenset(forgotten), self._opened_with)

    def _open(self, *, readonly: bool = False) -> Repository:
        self._opened_with = OLD_KEY
        if not self.encrypted:
            return open_repository(self.root, threads=1, readonly=readonly)
        try:
            repo = open_repository(self.root, key=self.keys[NEW_KEY], threads=1, readonly=readonly)
        except WrongKey:
            return open_repository(self.root, key=self.keys[OLD_KEY], threads=1, readonly=readonly)
        self._opened_with = NEW_KEY
        return repo

    @contextmanager
    def _rules(self, seed: int, day: int) -> Iterator[None]:
        with small_world(self._small_files), fixed_world(seed, day):
            yield


@contextmanager
def _violation(what: str) -> Iterator[None]:
    """Say where it happened, whatever goes wrong inside."""
    try:
        yield
    except Exception as error:
        raise Violation(f"{what}: {type(error).__name__}: {error}") from error


def _lasting(recorder: Recorder) -> list[str]:
    """Return what was done to anything but leases."""
    return [str(operation) for operation in recorder.operations if not operation.path.startswith("leases")]


def _where(operations: Sequence[Operation], crash: Crash) -> str:
    last = f" ({operations[crash.after - 1]})" if crash.after else ""
    return f"after operation {crash.after} of {len(operations)}{last}, {crash.kind}"
