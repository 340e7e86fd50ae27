"""Trials of guesses: each way in which an array may have been computed, judged until one is sure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chainstore.codecs.adam_parameters import Predictor
from chainstore.model.tree import Entry
from chainstore.ops.link_proof import (
    NOTHING,
    Floats,
    Samples,
    Score,
    Stepped,
    Trial,
    fitted_rate,
    judge,
    moves,
    step_of,
)
from chainstore.ops.link_rules import Track, Way, Ways
from chainstore.ops.linking import Role
from chainstore.ops.optimizers import Held, layout
from chainstore.state.leaf import Leaf

_FITTED: Final = 64  # weights that a learning rate is fitted to
_NEAR: Final = 0.9  # cosine from which on only the size of a step can be wrong

_FAR: Final = 0.2  # cosine below which an array moves like any other


@dataclass(slots=True, eq=False)
class Case:
    """One array whose computing is guessed at.

    Attributes:
        role, leaf: the array.  weight: the weight of the track, where it is known.
        ways: that are still to be tried.
        score, way: the best so far.
    """

    track: Track
    role: Role
    leaf: Leaf
    weight: Leaf | None
    ways: Sequence[Way]
    score: Score = NOTHING
    way: Way | None = None

    @property
    def holds(self) -> bool:
        """Whether the guess counts."""
        if self.role == "weight" and self.track.k > 1:
            return self.score.belongs
        return self.score.pays

    @property
    def sure(self) -> bool:
        """Whether nothing else need be tried: no copy or average of a weight is given so exactly."""
        return self.holds and (self.score.exact >= 0.5 or (self.track.k > 1 and self.score.cosine >= 0.95))

    @property
    def doubtful(self) -> bool:
        """Whether what was proved before seems to be wrong; over many steps, that the array moves like any other."""
        return not self.holds and (self.track.k == 1 or self.score.cosine < _FAR)

    def take(self, way: Way, score: Score) -> None:
        """Keep the better of two ways."""
        if self.way is None or (score.pays, score.gained) > (self.score.pays, self.score.gained):
            self.way, self.score = way, score


class Trials:
    """What guesses about one commit are tried on.

    Args:
        before: the parent.
        samples: of both.
    """

    def __init__(self, before: Held[Entry], samples: Samples, ways: Ways) -> None:
        self._before, self._samples, self._ways = before, samples, ways
        self._former: dict[int, Entry | None] = {}
        self._changed: dict[int, tuple[Floats, Floats] | None] = {}

    def former(self, leaf: Leaf) -> Entry | None:
        """Return what an array was in the parent, where it had the same items in the same order."""
        key = id(leaf)
        if key not in self._former:
            entry = self._before.items.get(leaf.path)
            alike = entry is not None and entry.spec == leaf.spec and len(entry.extents) > 0
            if alike and entry is not None and entry.node != leaf.node:
                alike = layout(entry) == layout(leaf)
            self._former[key] = entry if alike else None
        return self._former[key]

    def sampled(self, leaf: Leaf) -> tuple[Floats, Floats] | None:
        """Return elements of an array before and now; None where it was not there, or none of them changed."""
        key = id(leaf)
        if key not in self._changed:
            former = self.former(leaf)
            before = self._samples.before(former) if former is not None else None
            both = (before, self._samples.now(leaf)) if before is not None else None
            self._changed[key] = both if both is not None and moves(*both) else None
        return self._changed[key]

    def step(self, track: Track) -> Floats:
        """Return the direction of a track's steps; over many steps, that of the moments at both ends."""
        first, divisor = self._samples.now(track.first), track.divisor
        former = self.former(track.first) if track.k > 1 else None
        before = self._samples.before(former) if former is not None else None
        return step_of(first if before is None else first + before, self._samples.now(divisor) if divisor else None)

    def case(self, track: Track, role: Role, leaf: Leaf, weight: Leaf | None, ways: Sequence[Way]) -> Case | None:
        """Return the case of an array; None where nothing can be told."""
        return Case(track, role, leaf, weight, ways) if ways and self.sampled(leaf) is not None else None

    def prove(self, cases: Sequence[Case]) -> None:
        """Find the best way for each case."""
        self.check(cases)
        self._try_fitted([case for case in cases if case.role == "weight" and not case.sure])
        unexplained = [case for case in cases if not case.holds]
        for case in unexplained:
            case.ways = self._ways.touched(case.track, case.role)
        self.check(unexplained)
        near = [case for case in cases if not case.score.sure and case.score.pays]
        for case in near:
            case.ways = self._ways.variants(case.track, case.way) if case.way is not None else ()
        self.check(near)

    def check(self, cases: Sequence[Case]) -> None:
        """Try the ways of each case."""
        for turn in range(max((len(case.ways) for case in cases), default=0)):
            asked = [(case, case.ways[turn]) for case in cases if turn < len(case.ways) and not case.score.sure]
            found = [(case, way, self._trial(case, way)) for case, way in asked]
            tried = [(case, way, trial) for case, way, trial in found if trial is not None]
            for (case, way, _), score in zip(tried, judge([trial for _, _, trial in tried]), strict=True):
                case.take(way, score)

    def _trial(self, case: Case, way: Way) -> Trial | None:
        sampled = self.sampled(case.leaf)
        bases = [self._input(leaf, now) for leaf, now in inputs(way.rule.predictor, case.track, case.leaf)]
        if sampled is None or any(base is None for base in bases):
            return None
        return Trial(way.parameters, tuple(base for base in bases if base is not None), *sampled)

    def _input(self, leaf: Leaf, now: bool) -> Floats | None:
        if now:
            return self._samples.now(leaf)
        former = self.former(leaf)
        return self._samples.before(former) if former is not None else None

    def _try_fitted(self, cases: Iterable[Case]) -> None:
        """Try the learning rates that explain the steps of whole groups, where those that are written down do not."""
        groups: defaultdict[tuple[object, ...], list[Case]] = defaultdict(list)
        for case in cases:
            if case.way is not None and case.way.rule.predictor == Predictor.WEIGHT and case.score.cosine >= _NEAR:
                groups[case.track.optimizer, case.track.group, case.track.step, case.way.rule.decoupled].append(case)
        for found in groups.values():
            way = found[0].way
            assert way is not None
            rate = self.fit(way, [(case.track, case.leaf) for case in found])
            for case in found:
                case.ways = self._ways.fitted(case.track, rate, way.rule.decoupled) if rate else ()
        self.check([case for found in groups.values() for case in found])

    def fit(self, way: Way, weights: Sequence[tuple[Track, Leaf]]) -> float:
        """Return the learning rate with which weights of one group took the same step; 0 where none fits."""
        stepped = [each for track, weight in weights[:_FITTED] for each in self._stepped(track, weight)]
        if not stepped:
            return 0.0
        hyper, step = way.hyper, weights[0][0].step
        decay = hyper.weight_decay if hyper.decoupled else 0.0
        return fitted_rate(stepped, decay, hyper.eps, 1 - hyper.beta1**step, 1 - hyper.beta2**step)

    def _stepped(self, track: Track, weight: Leaf) -> list[Stepped]:
        sampled, divisor = self.sampled(weight), track.divisor
        if sampled is None or divisor is None:
            return []
        return [Stepped(*sampled, self._samples.now(track.first), self._samples.now(divisor))]


def inputs(predictor: Predictor, track: Track, own: Leaf) -> tuple[tuple[Leaf, bool], ...]:
    """Return what a prediction of `own` is computed from: arrays, and whether as they are now."""
    first, second, divisor = track.first, track.second, track.divisor
    if predictor == Predictor.MOMENTUM:
        return (own, False), (first, True)
    if second is None or divisor is None or predictor in (Predictor.FIRST_IDLE, Predictor.SECOND_IDLE):
        return ((own, False),)
    if predictor in (Predictor.SECOND, Predictor.SECOND_MIXED, Predictor.SECOND_TOUCHED):
        return (own, False), (first, False), (first, True)
    if predictor == Predictor.GREATEST:
        return (own, False), (second, True)
    if predictor == Predictor.WEIGHT:
        return (own, False), (first, True), (divisor, True)
    if predictor == Predictor.WEIGHT_IDLE:
        return (own, False), (first, False), (divisor, False)
    return (own, False), (first, False), (first, True), (divisor, True)
