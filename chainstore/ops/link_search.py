"""The search for links: guesses by name, by order and by movement, each proved on a sample; see `linking`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from chainstore.codecs.adam_parameters import Predictor
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path
from chainstore.model.tree import Entry
from chainstore.ops.link_pairing import Pairing
from chainstore.ops.link_proof import DTYPES, Samples
from chainstore.ops.link_rules import Track, Way, Ways
from chainstore.ops.link_trials import Case, Trials, inputs
from chainstore.ops.linking import Input, Link, Memory, ReadSample, Role, Rule
from chainstore.ops.optimizers import FIRST, LARGEST, MOMENTUM, SECOND, Held, Optimizer, layout, members, optimizers
from chainstore.state.leaf import Leaf

_PATIENCE: Final = 4  # commits after which an array is looked at again that nothing predicted
_WITNESSES: Final = 4  # weights of an optimizer that are looked at again at each commit


def search(
    leaves: Sequence[Leaf],
    parent: Manifest,
    read: Callable[[Entry], bytes],
    sample: ReadSample,
    memory: Memory,
    least_bytes: int,
) -> dict[Path, Link]:
    """Return the links of a state; see `linking.find_links`."""
    now = Held({leaf.path: leaf for leaf in leaves}, _bytes_of)
    memory.begin(now.items)
    before = Held({entry.path: entry for entry in parent.entries}, read)
    found = optimizers(leaves, now)
    for optimizer in found:
        memory.keep_order(optimizer.path, [group["params"] for group in optimizer.groups])
    tracks = [track for optimizer in found for track in _tracks(optimizer, now, before, least_bytes)]
    return _Search(leaves, now, before, sample, memory, [(*each.path, "state") for each in found]).run(tracks)


def _bytes_of(leaf: Leaf) -> bytes:
    return bytes(leaf.source.read(0, leaf.source.nbytes)) if leaf.source is not None else b""


def _tracks(optimizer: Optimizer, now: Held[Leaf], before: Held[Entry], least_bytes: int) -> Iterator[Track]:
    """Yield the parameters that an optimizer changed since the parent, if it is one of those that are predicted."""
    former_groups = before.groups((*optimizer.path, "param_groups"))
    former = members(former_groups)
    for slot in optimizer.slots:
        kept, group = slot.kept, optimizer.groups[slot.group]
        first, second, largest = (_if_predicted(kept.get(name)) for name in (FIRST, SECOND, LARGEST))
        if second is None:
            first, largest = _if_predicted(kept.get(MOMENTUM)), None
        if first is None or first.spec is None or first.spec.nbytes < least_bytes:
            continue
        if second is not None and not _alike(first, second, largest):
            continue
        index = former.get(slot.place[-1])
        group_before = former_groups[index] if index is not None else group
        step, k = 1, 1
        if second is not None:
            counted = now.content(kept["step"]) if "step" in kept else group.get("step")
            earlier = before.value((*slot.place, "step")) if "step" in kept else group_before.get("step")
            step, k = _steps(counted, 0 if first.path not in before.items else earlier)
        if k >= 1:
            place = (slot.place, optimizer.path, slot.group, slot.name)
            yield Track(*place, group, group_before, step, k, first, second, largest)


def _steps(counted: object, earlier: object) -> tuple[int, int]:
    """Return a count of steps and how many they are since the parent; (0, 0) where they are no such thing."""
    if not isinstance(counted, int | float) or not isinstance(earlier, int | float):
        return 0, 0
    if not (0 <= earlier < counted < 1 << 53 and counted == int(counted) and earlier == int(earlier)):
        return 0, 0
    return int(counted), int(counted) - int(earlier)


def _if_predicted(leaf: Leaf | None) -> Leaf | None:
    return leaf if leaf is not None and leaf.spec is not None and leaf.spec.dtype in DTYPES else None


def _alike(first: Leaf, *others: Leaf | None) -> bool:
    there = [other for other in others if other is not None]
    if all(other.node == first.node and other.spec == first.spec for other in there):
        return True
    return all(layout(other) == layout(first) for other in there)


class _Search:
    """One search; `links` is what was found so far."""

    def __init__(
        self,
        leaves: Sequence[Leaf],
        now: Held[Leaf],
        before: Held[Entry],
        sample: ReadSample,
        memory: Memory,
        inside: Sequence[Path],
    ) -> None:
        self._leaves, self._now, self._memory, self._inside = leaves, now, memory, inside
        self._samples, self._ways = Samples(sample), Ways()
        self._trials = Trials(before, self._samples, self._ways)
        self._paired: list[tuple[Track, Leaf]] = []
        self._fits: dict[tuple[object, ...], float] = {}
        self._witnesses: dict[tuple[Path, int], bool] = {}
        self.links: dict[Path, Link] = {}

    def run(self, tracks: Sequence[Track]) -> dict[Path, Link]:
        """Return the links of all that stepped."""
        pairing = Pairing(self._leaves, self._trials, self._ways, self._inside)
        cases: list[Case] = []
        alone: list[Track] = []
        for optimizer, group in groupby(tracks, lambda track: track.optimizer):
            known = [(track, self._weight_of(track)) for track in group]
            pairs = [(track, weight) for track, weight in known if weight is not None]
            gone = any(weight is None and track.place in self._memory.weights for track, weight in known)
            if gone or self._are_doubtful(pairs):
                self._memory.part(optimizer)
                known, pairs = [(track, None) for track, _ in known], []
            self._paired += pairs
            alone += [track for track, weight in known if weight is None]
        alone = [track for track in alone if self._memory.is_due(track.place, track.regime)]
        for track in tracks:
            cases += self._unknown(track, None, _moments(track))
        for track, weight in self._paired:
            cases += self._unknown(track, weight, [("weight", weight)])
        self._trials.prove(cases)
        for case in cases:
            self._settle(case)
        if alone:
            taken = {weight.path for _, weight in self._paired}
            for track, found in zip(alone, pairing.pair(alone, taken), strict=True):
                if found is None:
                    self._memory.fail(track.place, track.regime)
                else:
                    self._memory.weights[track.place] = found.leaf.path
                    self._settle(found)
        return self.links

    def _weight_of(self, track: Track) -> Leaf | None:
        """Return the weight that a track was found to move, if it is still there and the same kind of array."""
        path = self._memory.weights.get(track.place)
        weight = self._now.items.get(path) if path is not None else None
        if weight is None or weight.spec != track.first.spec or layout(weight) != layout(track.first):
            return None
        return weight

    def _are_doubtful(self, pairs: Sequence[tuple[Track, Leaf]]) -> bool:
        """Return whether what was proved of an optimizer proves wrong now, for most of a few of its weights.

        Ids may stay while what they stand for changes: a program that lists its parameters in another order.
        """
        cases = []
        for track, weight in pairs:
            rule = self._memory.rules.get((weight.path, track.regime))
            if rule is not None and rule.predictor != Predictor.MOMENTUM and rule.rate != "fitted":
                cases.append((track, weight, rule))
        chosen = {place % len(cases) for place in self._memory.turn(_WITNESSES)} if cases else set()
        asked = [
            (track, weight, self._ways.of_rule(track, rule)) for track, weight, rule in map(cases.__getitem__, chosen)
        ]
        made = [self._trials.case(t, "weight", weight, weight, [way]) for t, weight, way in asked if way is not None]
        tried = [case for case in made if case is not None]
        self._trials.check(tried)
        return sum(case.doubtful for case in tried) * 2 >= len(tried) > 0

    def _unknown(self, track: Track, weight: Leaf | None, arrays: Iterable[tuple[Role, Leaf]]) -> Iterator[Case]:
        """Link those arrays of a track that are remembered, and yield cases of those that have to be proved."""
        for role, leaf in arrays:
            if self._trials.former(leaf) is None:
                continue
            rule = self._memory.rules.get((leaf.path, track.regime))
            if rule is not None:
                self._recall(track, role, leaf, weight, rule)
            elif self._memory.is_due(leaf.path, track.regime):
                case = self._trials.case(track, role, leaf, weight, self._ways.of_role(track, role))
                if case is not None:
                    yield case

    def _recall(self, track: Track, role: Role, leaf: Leaf, weight: Leaf | None, rule: Rule) -> None:
        fitted = self._fit(track, rule.decoupled) if rule.rate == "fitted" else 0.0
        way = self._ways.of_rule(track, rule, fitted)
        if way is None or (rule.rate == "fitted" and not fitted):
            return
        if rule.predictor != Predictor.MOMENTUM or self._is_one_step(track, leaf, way):
            self._link(track, role, leaf, weight, way)

    def _fit(self, track: Track, decoupled: bool) -> float:
        """Return the learning rate of a group whose learning rate is not what it says."""
        key = (track.optimizer, track.group, track.step, decoupled)
        if key not in self._fits:
            alike = [each for each in self._paired if (each[0].optimizer, each[0].group, each[0].step) == key[:3]]
            way = self._ways.of_rule(track, Rule(Predictor.WEIGHT, decoupled=decoupled))
            self._fits[key] = self._trials.fit(way, alike) if way is not None else 0.0
        return self._fits[key]

    def _is_one_step(self, track: Track, weight: Leaf, way: Way) -> bool:
        """Return whether a group that counts no steps took one: the first of its weights stands for all."""
        key = (track.optimizer, track.group)
        if key not in self._witnesses:
            case = self._trials.case(track, "weight", weight, weight, [way])
            if case is None:
                return False
            self._trials.check([case])
            self._witnesses[key] = case.holds
        return self._witnesses[key]

    def _settle(self, case: Case) -> None:
        """Link a case that was tried, if it holds, and remember how it went."""
        if case.way is not None and case.holds:
            self._memory.prove(case.leaf.path, case.track.regime, case.way.rule)
            self._link(case.track, case.role, case.leaf, case.weight, case.way)
        else:
            self._memory.fail(case.leaf.path, case.track.regime, _PATIENCE)

    def _link(self, track: Track, role: Role, leaf: Leaf, weight: Leaf | None, way: Way) -> None:
        needed = inputs(way.rule.predictor, track, leaf)
        for each, now in needed:
            if not now and self._trials.former(each) is None:
                return
        second = track.divisor if role == "weight" else track.second
        self.links[leaf.path] = Link(
            role,
            weight.path if weight is not None else self._memory.weights.get(track.place),
            track.first.path,
            second.path if second is not None else None,
            track.k,
            track.step,
            self._ways.others(track, way.hyper),
            way.rule.predictor,
            way.parameters,
            self._bases(way.rule.predictor, track, leaf, needed),
        )

    def _bases(
        self, predictor: Predictor, track: Track, leaf: Leaf, needed: Sequence[tuple[Leaf, bool]]
    ) -> tuple[Input, ...]:
        """Return the paths of what is needed, the same objects at each commit: a large state has tens of thousands."""
        key = (leaf.path, track.first.path, predictor, track.largest is not None)
        found = self._memory.bases.get(key)
        if found is None:
            found = self._memory.bases[key] = tuple(Input(each.path, now) for each, now in needed)
        return found


def _moments(track: Track) -> Iterator[tuple[Role, Leaf]]:
    """Yield what an optimizer keeps of a parameter, in an order in which nothing needs what comes later."""
    if track.second is None:
        yield "momentum", track.first
        return
    yield "exp_avg", track.first
    yield "exp_avg_sq", track.second
    if track.largest is not None:
        yield "max_exp_avg_sq", track.largest
