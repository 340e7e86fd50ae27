"""Links: which arrays of a state an optimizer makes of which others, so that only what it cannot know is stored.

A state says nothing of this: it is looked for in names, orders and shapes, and believed when a sample of the values
proves it.  A wrong link costs bytes, never bits: whatever is predicted, the difference to the truth is stored.

    links = find_links(leaves, parent, read, sample, memory)
    links[("model", "head.weight")].bases          (Input(path=("model", "head.weight"), now=False), ...)

What was proved is kept in a `Memory`, one for each branch, as long as it pays.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from chainstore.codecs.adam_parameters import Hyper, Predictor
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path
from chainstore.model.tree import Entry
from chainstore.state.leaf import Leaf

ReadSample: TypeAlias = Callable[[Entry, Any], Any]  # (array of the parent, ascending flat indices) -> its elements
Rate = Literal["before", "now", "mean", "fitted"]
Role = Literal["weight", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum"]

_SEARCHING: Final = "chainstore.ops.link_search"  # needs numpy, so it is loaded when the first state has an optimizer
_FEW: Final = 1000  # things remembered, below which nobody counts them
_LONGEST_WAIT: Final = 64  # commits after which what could not be proved is looked at again


class Input(NamedTuple):
    """An array that a prediction needs: its path, and whether as it is now or as it was in the parent."""

    path: Path
    now: bool


@dataclass(frozen=True, slots=True)
class Link:
    """How an array follows from others.

    Attributes:
        role: what the array is to its optimizer.
        weight, exp_avg, exp_avg_sq: paths of the weight and its moments, where they are known.  `exp_avg` is the
            momentum of SGD; `exp_avg_sq` of a weight is what its steps divide by, of amsgrad the greatest so far.
        k: optimizer steps since the parent.
        step: the optimizer's own count of steps, now.
        hyper: how it was set, the proved setting first, then others that are possible.
        predictor, parameters: what predicts the array best, with all it must know.
        bases: what it computes from, in its order; the first is the array itself, as it was.
    """

    role: Role
    weight: Path | None
    exp_avg: Path | None
    exp_avg_sq: Path | None
    k: int
    step: int
    hyper: tuple[Hyper, ...]
    predictor: Predictor
    parameters: bytes
    bases: tuple[Input, ...]


class Rule(NamedTuple):
    """How the parameters of a link are made at each commit.

    Attributes:
        predictor, variant: see `adam_parameters`.
        rate: whose learning rate counts: the parent's (as a rule, for a schedule steps after the optimizer), the
            present one, one between them, or one that fits the values.
        decoupled: what kind of weight decay.
    """

    predictor: Predictor
    variant: int = 0
    rate: Rate = "before"
    decoupled: bool = True


Regime = Literal[1, 2, 3]  # one step since the parent, as few as are replayed, more: what pays differs


@dataclass(slots=True)
class Memory:
    """What was proved at earlier commits of a branch; for one thread at a time.

    Attributes:
        rules: (path of an array, regime) -> how it is predicted.
        weights: path of the dict that an optimizer keeps for a parameter -> path of that parameter.
        orders: path of an optimizer -> the ids in its groups: pairs are void when they change.
        bases: (path of an array, of its first moment, predictor, whether of amsgrad) -> what it is computed from.
    """

    rules: dict[tuple[Path, Regime], Rule] = field(default_factory=dict)
    weights: dict[Path, Path] = field(default_factory=dict)
    orders: dict[Path, object] = field(default_factory=dict)
    bases: dict[tuple[Path, Path, Predictor, bool], tuple[Input, ...]] = field(default_factory=dict)
    _waits: dict[tuple[Path, Regime], tuple[int, int]] = field(default_factory=dict)  # until which commit, how often
    _commits: int = 0

    def begin(self, there: Collection[Path]) -> None:
        """Take note that another commit is being made, and of which paths there are: the rest is dropped in time."""
        self._commits += 1
        if len(self.rules) + len(self.bases) + len(self._waits) > 4 * len(there) + _FEW:
            self.rules = {key: rule for key, rule in self.rules.items() if key[0] in there}
            self.bases = {key: bases for key, bases in self.bases.items() if key[0] in there}
            self._waits = {key: wait for key, wait in self._waits.items() if key[0] in there}
            self.weights = {place: weight for place, weight in self.weights.items() if weight in there}

    def keep_order(self, optimizer: Path, ids: object) -> None:
        """Take note of the ids in an optimizer's groups; where they are others, its weights are looked for anew."""
        if self.orders.setdefault(optimizer, ids) != ids:
            self.orders[optimizer] = ids
            self.part(optimizer)

    def part(self, optimizer: Path) -> None:
        """Drop what is known of the weights of an optimizer."""
        state = (*optimizer, "state")
        for place in [place for place in self.weights if place[: len(state)] == state]:
            weight = self.weights.pop(place)
            for regime in REGIMES:
                self.rules.pop((weight, regime), None)

    def turn(self, count: int) -> range:
        """Return `count` numbers that are others at each commit."""
        return range(self._commits * count, (self._commits + 1) * count)

    def is_due(self, path: Path, regime: Regime) -> bool:
        """Return whether it is time to look (again) for what could not be proved."""
        return self._waits.get((path, regime), (0, 0))[0] <= self._commits

    def fail(self, path: Path, regime: Regime, patience: int = 1) -> None:
        """Take note that nothing was proved: it is looked for again, each time after twice as many commits.

        Args:
            patience: commits until then, the first time.
        """
        _, times = self._waits.get((path, regime), (0, 0))
        self._waits[path, regime] = (self._commits + min(patience << times, _LONGEST_WAIT), times + 1)

    def prove(self, path: Path, regime: Regime, rule: Rule) -> None:
        """Take note of what was proved."""
        self.rules[path, regime] = rule
        self._waits.pop((path, regime), None)

    def forget(self, path: Path) -> None:
        """Have a link proved anew, because it did not pay."""
        for regime in REGIMES:
            self.rules.pop((path, regime), None)
        self.weights = {place: weight for place, weight in self.weights.items() if weight != path}


REGIMES: Final[tuple[Regime, ...]] = (1, 2, 3)


def find_links(
    leaves: Sequence[Leaf],
    parent: Manifest,
    read: Callable[[Entry], bytes],
    sample: ReadSample,
    memory: Memory,
    *,
    least_bytes: int = 0,
) -> dict[Path, Link]:
    """Return what is known of the arrays that optimizers of a state change, by path; {} where nothing is.

    Args:
        leaves: of the state that is being committed, in walk order.
        parent: the snapshot before.
        read: returns all bytes of a small entry of it (counters, parameter groups).
        sample: returns the elements of an array of it at ascending flat indices; a few hundred of at most 4 chunks.
        memory: of the branch.
        least_bytes: smaller arrays are passed over (those that have no chunk of their own).

    Damaged entries of the parent count as absent.

    Cost: 0.2 us for each leaf of any state; for each array of an optimizer 10 us where it is remembered, 50 us and a
    call of `sample` where it is not.
    """
    if not any(leaf.path and leaf.path[-1] == "param_groups" for leaf in leaves):
        return {}
    search = import_module(_SEARCHING).search
    return cast("dict[Path, Link]", search(leaves, parent, read, sample, memory, least_bytes))
