"""What the adaptive interval loses to failures and to snapshots, next to the best constant one in hindsight.

    python -m benchmarks.interval [--failures N] [--seeds N] [--recovery SECONDS]

A trace is a list of gaps between failures.  A run on it takes snapshots that cost C = 1 s, loses at each failure what
it did since the last one, and R more for the restart.  Waste is the share of the time that left no work behind.  The
best constant interval is searched on the same trace, so it knows what is going to happen; the adaptive one begins with
the prior and knows what the commits hold: what it learns of a failure survives only if a snapshot comes before the
next.  `without R` leaves out the restarts, which no interval can change, so it is the harder comparison.

Kinds of traces, each with the same mean: exponential; Weibull of shape 0.7, where failures come in heaps; bursts, where
one in five failures brings on average three more, a twentieth of the mean apart.  Everything is seeded.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gamma

import numpy as np

from chainstore.policies.interval import Interval

COST_S = 1.0
MEANS = {"10 min": 600.0, "1 h": 3600.0, "3 h": 10_800.0, "1 d": 86_400.0, "10 d": 864_000.0}
FIXED_S = 1800.0


def exponential(mean_s: float, count: int, source: np.random.Generator) -> np.ndarray:
    return source.exponential(mean_s, count)


def weibull(mean_s: float, count: int, source: np.random.Generator) -> np.ndarray:
    return source.weibull(0.7, count) * mean_s / gamma(1 + 1 / 0.7)


def bursts(mean_s: float, count: int, source: np.random.Generator) -> np.ndarray:
    gaps: list[float] = []
    while len(gaps) < count:
        gaps.append(source.exponential(1.0))
        if source.random() < 0.2:
            gaps += list(source.exponential(0.05, source.geometric(1 / 3)))
    trace = np.array(gaps[:count])
    return trace * mean_s / trace.mean()


KINDS: dict[str, Callable[[float, int, np.random.Generator], np.ndarray]] = {
    "exponential": exponential,
    "weibull 0.7": weibull,
    "bursts": bursts,
}


@dataclass(frozen=True)
class Outcome:
    """How a policy did on one trace: shares of the time, 0 to 1."""

    waste: float
    without_recovery: float


def outcome(trace: np.ndarray, useful_s: float, recovery_s: float) -> Outcome:
    """Return shares from seconds of work that were kept."""
    up_s = float(np.maximum(trace - recovery_s, 0).sum())  # a failure may come before the restart is over
    return Outcome(1 - useful_s / float(trace.sum()), 1 - useful_s / up_s)


def constant(trace: np.ndarray, interval_s: float, recovery_s: float) -> Outcome:
    """Return how a constant interval does."""
    snapshots = np.floor(np.maximum(trace - recovery_s, 0) / interval_s).sum()
    return outcome(trace, float(snapshots) * (interval_s - COST_S), recovery_s)


def best_constant(trace: np.ndarray, recovery_s: float) -> tuple[float, Outcome]:
    """Return the constant interval that wastes least on a trace, and what it wastes: 1 000 tries.

    Near the formula they are 0.2 % apart: whether a snapshot comes just before a failure makes a rugged curve.
    """
    guess = (2 * COST_S * float(trace.mean())) ** 0.5
    tries = np.concatenate([np.geomspace(guess / 8, guess * 8, 200), np.geomspace(guess / 2, guess * 2, 800)])
    return min(((float(s), constant(trace, float(s), recovery_s)) for s in tries), key=lambda found: found[1].waste)


def adaptive(trace: np.ndarray, recovery_s: float, start: Interval) -> Outcome:
    """Return how the adaptive interval does: what it knows goes through a dict at each restart, as through a commit."""
    known, useful_s = start, 0.0
    for gap in trace:
        left, done = float(gap) - recovery_s, 0
        interval = known.seconds if known.blocking_s is not None else COST_S  # the first snapshot measures the cost
        while left >= interval:
            some = min(1 + done // 20, int(left // interval))  # looked at again 5 % later: the same, and much faster
            left -= some * interval
            useful_s += some * (interval - COST_S)
            known = known.snapshotted(COST_S, 0.0, ran_s=some * interval)
            interval, done = known.seconds, done + some
        known = Interval.from_dict(known.to_dict()).restarted(recovery_s=recovery_s)
    return outcome(trace, useful_s, recovery_s)


@dataclass(frozen=True)
class Line:
    """One trace, and how each policy did on it."""

    kind: str
    mean: str
    best_s: float
    best: Outcome
    adaptive: Outcome
    fixed: Outcome

    @property
    def ratio(self) -> float:
        """Waste of the adaptive interval over that of the best constant one."""
        return self.adaptive.waste / self.best.waste

    @property
    def ratio_without_recovery(self) -> float:
        return self.adaptive.without_recovery / self.best.without_recovery

    @property
    def gain(self) -> float:
        """Waste of 30 minutes over that of the adaptive interval."""
        return self.fixed.waste / self.adaptive.waste


def lines(failures: int, seed: int, recovery_s: float, means: Sequence[str] = tuple(MEANS)) -> list[Line]:
    """Return every kind of trace at every mean."""
    found = []
    for row, (kind, make) in enumerate(KINDS.items()):
        for mean in means:
            trace = make(MEANS[mean], failures, np.random.default_rng([seed, row, list(MEANS).index(mean)]))
            best_s, best = best_constant(trace, recovery_s)
            ours, fixed = adaptive(trace, recovery_s, Interval()), constant(trace, FIXED_S, recovery_s)
            found.append(Line(kind, mean, best_s, best, ours, fixed))
    return found


def table(found: Sequence[Line]) -> str:
    """Return lines as text."""
    head = f"{'trace':<12} {'MTBF':>6}  {'best constant':>16} {'adaptive':>9} {'30 min':>8}  {'adaptive/best':>13} "
    head += f"{'without R':>9}  {'30 min/adaptive':>15}"
    rows = [
        f"{line.kind:<12} {line.mean:>6}  {line.best_s:>6.0f} s {line.best.waste:>7.2%} {line.adaptive.waste:>9.2%} "
        f"{line.fixed.waste:>8.2%}  {line.ratio:>13.3f} {line.ratio_without_recovery:>9.3f}  {line.gain:>15.1f}"
        for line in found
    ]
    return "\n".join([head, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval", description=__doc__.partition("\n")[0])
    parser.add_argument("--failures", type=int, default=2000, help="in a trace")
    parser.add_argument("--seeds", type=int, default=1, help="how many traces of each kind")
    parser.add_argument("--recovery", type=float, default=10.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    for seed in range(options.seeds):
        print(f"seed {seed}, {options.failures} failures, C = {COST_S:g} s, R = {options.recovery:g} s")
        print(table(lines(options.failures, seed, options.recovery)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
