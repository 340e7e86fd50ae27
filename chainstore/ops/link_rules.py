"""Rules: the ways in which an optimizer may have computed an array, and the parameters that each leads to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from chainstore.codecs.adam_parameters import MOST_REPLAYED, PRODUCT, QUOTIENT, Hyper, Predictor, parameters_for
from chainstore.model.paths import Path
from chainstore.ops.linking import Rate, Regime, Role, Rule
from chainstore.state.leaf import Leaf


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One parameter of an optimizer that stepped since the parent.

    Attributes:
        place: path of the dict that is kept for it.
        optimizer: path of its optimizer.  group: index of its parameter group.
        name: of the parameter, where the optimizer knows one.
        now, before: its parameter group, in this state and in the parent.
        step, k: the optimizer's own count of steps, and how many of them since the parent; both 1 where it counts none.
        first, second: its moments; of SGD the momentum and None.
        largest: the greatest second moment of amsgrad.
    """

    place: Path
    optimizer: Path
    group: int
    name: str | None
    now: Mapping[str, Any]
    before: Mapping[str, Any]
    step: int
    k: int
    first: Leaf
    second: Leaf | None
    largest: Leaf | None

    @property
    def regime(self) -> Regime:
        return 1 if self.k == 1 else 2 if self.k <= MOST_REPLAYED else 3

    @property
    def divisor(self) -> Leaf | None:
        """The second moment by whose root steps are divided."""
        return self.largest if self.largest is not None else self.second


class Way(NamedTuple):
    """One way in which an array may have been computed."""

    rule: Rule
    hyper: Hyper
    parameters: bytes


_PREDICTORS: Final[Mapping[tuple[Role, bool], tuple[Predictor, ...]]] = {  # (role, whether after one step)
    ("weight", True): (Predictor.WEIGHT,),
    ("weight", False): (Predictor.WEIGHT_IDLE, Predictor.WEIGHT_MIXED),
    ("exp_avg", True): (Predictor.FIRST_IDLE,),
    ("exp_avg", False): (Predictor.FIRST_IDLE,),
    ("exp_avg_sq", True): (Predictor.SECOND,),
    ("exp_avg_sq", False): (Predictor.SECOND_IDLE, Predictor.SECOND_MIXED),
    ("max_exp_avg_sq", True): (Predictor.GREATEST,),
    ("momentum", True): (Predictor.FIRST_IDLE,),
}
_TOUCHED: Final[Mapping[Role, Predictor]] = {  # after one step
    "weight": Predictor.WEIGHT_TOUCHED,
    "exp_avg_sq": Predictor.SECOND_TOUCHED,
}
_VARIANTS: Final[Mapping[Predictor, tuple[int, ...]]] = {  # beside 0
    Predictor.WEIGHT: (QUOTIENT,),
    Predictor.WEIGHT_IDLE: (PRODUCT, QUOTIENT, PRODUCT | QUOTIENT),
    Predictor.WEIGHT_MIXED: (PRODUCT, QUOTIENT, PRODUCT | QUOTIENT),
    Predictor.FIRST_IDLE: (PRODUCT,),
    Predictor.SECOND: (PRODUCT,),
    Predictor.SECOND_MIXED: (PRODUCT,),
}


class Ways:
    """Parameters of predictions, each made once a commit: most arrays of a group share theirs."""

    def __init__(self) -> None:
        self._hypers: dict[tuple[object, ...], Hyper | None] = {}
        self._of_roles: dict[tuple[object, ...], list[Way]] = {}
        self._made: dict[tuple[object, ...], Way | None] = {}
        self._others: dict[tuple[int, int, int], tuple[Hyper, ...]] = {}

    def of_role(self, track: Track, role: Role) -> list[Way]:
        """Return the ways to try first, the likeliest first."""
        key = (role, *self._setting(track), track.step, track.k)
        if key not in self._of_roles:
            predictors = _PREDICTORS.get((role, track.k == 1), ())
            if role == "weight" and track.second is None:
                predictors = (Predictor.MOMENTUM,) if track.k == 1 else ()
            rules = [Rule(predictor, 0, rate, kind) for predictor, kind, rate in product(predictors, *_choices(track))]
            self._of_roles[key] = self._distinct(track, rules)
        return self._of_roles[key]

    def variants(self, track: Track, way: Way) -> list[Way]:
        """Return what differs from `way` by rounding only."""
        others = _VARIANTS.get(way.rule.predictor, ())
        fitted = way.hyper.lr if way.rule.rate == "fitted" else 0.0
        return self._distinct(track, [way.rule._replace(variant=variant) for variant in others], fitted)

    def touched(self, track: Track, role: Role) -> list[Way]:
        """Return the ways of a step that left idle items alone, for what no other way explains."""
        if track.k > 1 or track.second is None or role not in _TOUCHED:
            return []
        return self._distinct(track, [Rule(_TOUCHED[role], 0, rate) for rate in _choices(track)[1]])

    def fitted(self, track: Track, rate: float, decoupled: bool) -> list[Way]:
        """Return the way of one step with a learning rate that was found."""
        return self._distinct(track, [Rule(Predictor.WEIGHT, 0, "fitted", decoupled)], rate)

    def of_rule(self, track: Track, rule: Rule, fitted: float = 0.0) -> Way | None:
        """Return the way that a rule is at this commit; None where it is none."""
        key = (rule, *self._setting(track), track.step, track.k, fitted)
        if key not in self._made:
            self._made[key] = self._make(track, rule, fitted)
        return self._made[key]

    def _make(self, track: Track, rule: Rule, fitted: float) -> Way | None:
        hyper = self.hyper(track, rule.rate, rule.decoupled, fitted)
        if hyper is None:
            return None
        try:
            return Way(rule, hyper, parameters_for(rule.predictor, hyper, track.step, track.k, rule.variant))
        except ValueError:  # not for so many steps, or numbers that no optimizer has
            return None

    def hyper(self, track: Track, rate: Rate, decoupled: bool, fitted: float = 0.0) -> Hyper | None:
        """Return how the optimizer was set, as far as one knows; None where it says nothing that makes sense."""
        key = (*self._setting(track), rate, decoupled, fitted)
        if key not in self._hypers:
            group = dict(track.now if rate in ("now", "fitted") else track.before)
            if rate == "mean":
                group["lr"] = _mean(track.before.get("lr"), track.now.get("lr"))
            elif rate == "fitted":
                group["lr"] = fitted
            self._hypers[key] = _hyper(group, decoupled, track.second is None, track.largest is not None)
        return self._hypers[key]

    @staticmethod
    def _setting(track: Track) -> tuple[int, int, bool, bool]:
        """Return what tracks have in common that are set alike (groups live as long as the search)."""
        return id(track.now), id(track.before), track.second is None, track.largest is not None

    def others(self, track: Track, hyper: Hyper) -> tuple[Hyper, ...]:
        """Return a setting that was proved, and those that are possible beside it."""
        key = (id(track.now), id(track.before), id(hyper))
        if key not in self._others:
            kinds, rates = _choices(track)
            found = [self.hyper(track, rate, kind) for kind, rate in product(kinds, rates)]
            self._others[key] = tuple(dict.fromkeys([hyper, *(each for each in found if each is not None)]))
        return self._others[key]

    def _distinct(self, track: Track, rules: Iterable[Rule], fitted: float = 0.0) -> list[Way]:
        ways: dict[bytes, Way] = {}
        for rule in rules:
            way = self.of_rule(track, rule, fitted)
            if way is not None:
                ways.setdefault(way.parameters, way)
        return list(ways.values())


def _choices(track: Track) -> tuple[tuple[bool, ...], tuple[Rate, ...]]:
    """Return which kinds of weight decay and which learning rates come into question."""
    said, decay = track.now.get("decoupled_weight_decay"), track.now.get("weight_decay")
    kinds = (said,) if type(said) is bool else (True, False) if decay else (True,)
    before, now = track.before.get("lr"), track.now.get("lr")
    if before == now:
        return kinds, ("before",)
    return kinds, ("before", "now") if track.k == 1 else ("before", "mean", "now")


def _hyper(group: Mapping[str, Any], decoupled: bool, momentum: bool, greatest: bool) -> Hyper | None:
    rate, decay, eps = group.get("lr"), group.get("weight_decay", 0.0), group.get("eps", 1e-8)
    betas = (group.get("momentum"), 0.5) if momentum else group.get("betas")
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        return None
    numbers = [rate, *betas, eps, decay]
    if not all(type(number) in (int, float) for number in numbers):
        return None
    lr, beta1, beta2, eps, decay = map(float, numbers)
    return Hyper(lr, beta1, beta2, eps, decay, decoupled, greatest)


def _mean(before: object, now: object) -> object:
    if type(before) is float and type(now) is float:
        return (before + now) / 2
    return before
