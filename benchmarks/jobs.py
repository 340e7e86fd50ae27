"""The jobs: each done by every peer in turns, each result compared with the live state before its time counts."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.compare.peer import Peer
from benchmarks.measure import Cost, measure, settle_disk
from benchmarks.workloads import Workload, differences, flat, raw_bytes, same_bits

ROWS = 16  # of one array, for `partial`


class WrongResult(Exception):
    """A peer gave back something other than what it was given: its times mean nothing."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How often each job is done.

    Attributes:
        fast: by most peers.  slow: by peers that take ten times as long, in the last turns.
    """

    fast: int = 5
    slow: int = 2


@dataclass(frozen=True, slots=True)
class Row:
    """What one peer took for one job on one workload.

    Attributes:
        job, workload, peer: what was done.  what: the workload in words.
        seconds: of each turn.
        cpu_seconds: the median.  peak_bytes: the highest of all turns.
        raw_bytes: of the state.  stored_bytes: by which the last save made the store grow, None for reads.
        durable: whether what was written survives a power cut.
    """

    job: str
    workload: str
    what: str
    peer: str
    seconds: tuple[float, ...]
    cpu_seconds: float
    peak_bytes: int
    raw_bytes: int
    stored_bytes: int | None
    durable: bool

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Arena:
    """One workload and the peers that have it."""

    def __init__(self, workload: Workload, peers: Sequence[Peer], turns: Turns) -> None:
        self.workload, self.peers, self.turns = workload, peers, turns
        self.filled: set[str] = set()
        if workload.first:
            self.fill()
            self.filled.clear()

    def save(self, peer: Peer) -> None:
        work = self.workload
        peer.save(work.state(), work.steps, 1 / (1 + work.steps))

    def fill(self, job: str = "commit") -> None:
        """Let every peer that can do a job have the present state."""
        for peer in self.peers:
            if job in peer.can and peer.name not in self.filled:
                peer.ready()
                self.save(peer)
                self.filled.add(peer.name)

    def check(self) -> None:
        """Compare what every peer has with the live state.

        Raises:
            WrongResult: it differs.
        """
        for peer in self.peers:
            if peer.name in self.filled and "restore" in peer.can:
                peer.ready()
                self.compare(peer, peer.load())

    def compare(self, peer: Peer, back: object) -> None:
        wrong = differences(self.workload.state(), back, whole=peer.whole)
        if wrong:
            raise WrongResult(f"{peer.name} gave back other values than it got: {', '.join(sorted(wrong)[:5])}")

    def race(
        self,
        job: str,
        act: Callable[[Peer], object],
        check: Callable[[Peer, object], None],
        *,
        can: str | None = None,
        opened: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> list[Row]:
        """Let every peer that can do a job do it, in turns, each time another one first.

        Args:
            check: raises WrongResult; not timed.
            can: what the peers call the job, if not `job`.
            opened: whether they have open what a training run has open.
            before: what happens ahead of each turn; not timed.
        """
        able = [peer for peer in self.peers if (can or job) in peer.can]
        taken: dict[str, list[tuple[Cost, int]]] = {peer.name: [] for peer in able}
        settle_disk()
        for turn in range(self.turns.fast):
            before()
            for place in range(len(able)):
                peer = able[(turn + place) % len(able)]
                if peer.name not in self.workload.slow_for or turn >= self.turns.fast - self.turns.slow:
                    taken[peer.name].append(self._once(peer, act, check, opened))
        return [self._row(job, peer, taken[peer.name], opened and job == "commit") for peer in able]

    def _once(
        self, peer: Peer, act: Callable[[Peer], object], check: Callable[[Peer, object], None], opened: bool
    ) -> tuple[Cost, int]:
        peer.ready() if opened else peer.rest()
        peer.child_peak_bytes = 0
        if opened:  # something was written or made in between
            settle_disk()
        had = peer.stored()
        result, cost = measure(lambda: act(peer))
        grown = peer.stored() - had
        check(peer, result)
        return replace(cost, peak_bytes=max(cost.peak_bytes, peer.child_peak_bytes)), grown

    def _row(self, job: str, peer: Peer, taken: Sequence[tuple[Cost, int]], writes: bool) -> Row:
        costs = [cost for cost, _ in taken]
        return Row(
            job,
            self.workload.name,
            self.workload.what,
            peer.name,
            tuple(round(cost.seconds, 6) for cost in costs),
            round(statistics.median(cost.cpu_seconds for cost in costs), 6),
            max(cost.peak_bytes for cost in costs),
            raw_bytes(self.workload.state()),
            taken[-1][1] if writes else None,
            peer.durable,
        )


def commit(arena: Arena) -> list[Row]:
    """Save the state after each of some steps."""

    def before() -> None:
        arena.workload.step()
        for peer in arena.peers:
            peer.prune()

    rows = arena.race("commit", arena.save, lambda peer, result: None, opened=True, before=before)
    arena.filled.update(peer.name for peer in arena.peers)
    return [replace(row, what=f"{row.what}, again") for row in rows] if arena.workload.first else rows


def restore(arena: Arena) -> list[Row]:
    """Make the newest state in fresh memory."""
    arena.fill("restore")
    return arena.race("restore", lambda peer: peer.load(), arena.compare, opened=True)


def open_(arena: Arena) -> list[Row]:
    """Open what is on disk and list the newest state: what it costs to look."""
    arena.fill("open")
    count = len(flat(arena.workload.state()))

    def check(peer: Peer, found: object) -> None:
        if found not in (count, -1):
            raise WrongResult(f"{peer.name} lists {found} arrays, not {count}")

    return arena.race("open", lambda peer: peer.names(), check)


def partial(arena: Arena) -> list[Row]:
    """Open, and read one array, or some rows of it."""
    arena.fill("partial")
    path = arena.workload.tensor
    live = flat(arena.workload.state())[path]

    def same(expected: torch.Tensor) -> Callable[[Peer, object], None]:
        def check(peer: Peer, found: object) -> None:
            if not isinstance(found, torch.Tensor) or not same_bits(expected, found):
                raise WrongResult(f"{peer.name} gave back another {path}")

        return check

    one = arena.race("partial", lambda peer: peer.tensor(path), same(live))
    some = arena.race("partial rows", lambda peer: peer.rows(path, 1, 1 + ROWS), same(live[1 : 1 + ROWS]), can="rows")
    return one + some


def diff(arena: Arena) -> list[Row]:
    """Open, and name the arrays whose bits changed between the newest two states."""
    arena.workload.step()
    arena.filled.clear()
    arena.fill("diff")
    moved = arena.workload.moved()

    def check(peer: Peer, found: object) -> None:
        if found != moved:
            raise WrongResult(f"{peer.name} found other arrays changed than those that were")

    return arena.race("diff", lambda peer: peer.changed(), check)


def log(arena: Arena) -> list[Row]:
    """Open, and read step and loss of every save."""
    work, expected = arena.workload, []
    able = [peer for peer in arena.peers if "log" in peer.can]
    for _ in range(getattr(work, "commits", 1)):
        work.step()
        expected.append((work.steps, 1 / (1 + work.steps)))
        for peer in able:
            peer.ready()
            arena.save(peer)

    def check(peer: Peer, found: object) -> None:
        if found != expected:
            raise WrongResult(f"{peer.name} tells another history")

    return arena.race("log", lambda peer: peer.history(), check)


JOBS: dict[str, Callable[[Arena], list[Row]]] = {
    "commit": commit,
    "restore": restore,
    "open": open_,
    "diff": diff,
    "partial": partial,
    "log": log,
}
PLAN: dict[str, tuple[str, ...]] = {  # workload to the jobs done on it, in order
    "dense": ("commit", "restore", "open", "partial"),
    "lora": ("commit", "restore", "diff"),
    "small": ("commit", "restore", "open"),
    "history": ("log",),
}
