"""Pairing of optimizers' parameters with arrays of the state: by name, by order within a shape, by how they moved."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from chainstore.model.paths import Path
from chainstore.ops.link_names import Names
from chainstore.ops.link_proof import DTYPES, join
from chainstore.ops.link_rules import Track, Ways
from chainstore.ops.link_trials import Case, Trials
from chainstore.ops.optimizers import layout
from chainstore.state import nodes, references
from chainstore.state.leaf import Leaf

_OPTIONS: Final = 4  # arrays that are tried for one parameter, before how they moved decides

Layout = tuple[object, ...]


class Pairing:
    """Finds the weights of tracks.

    Args:
        inside: paths below which no weight is looked for: what optimizers keep.
    """

    def __init__(self, leaves: Sequence[Leaf], trials: Trials, ways: Ways, inside: Sequence[Path]) -> None:
        self._leaves, self._trials, self._ways, self._inside = leaves, trials, ways, inside
        self._best: dict[Path, Case] = {}  # place of a track -> the best guess
        self._taken: set[Path] = set()

    def pair(self, tracks: Sequence[Track], taken: Collection[Path]) -> list[Case | None]:
        """Return the case of the weight of each track, None where none was found.

        Args:
            taken: paths of arrays that are known to be weights of other tracks.
        """
        self._taken = set(taken)
        pools = self._pools({layout(track.first) for track in tracks})
        options = self._options(tracks, pools)
        for turn in range(_OPTIONS):
            self._try([(track, options[track.place][turn]) for track in tracks if turn < len(options[track.place])])
        self._join([track for track in tracks if not (track.name and options[track.place])], pools)
        found = self._settled()
        return [found.get(track.place) for track in tracks]

    def _pools(self, layouts: Collection[Layout]) -> dict[Layout, list[Leaf]]:
        """Return the arrays that may be weights, those with items that changed, by layout and in walk order."""
        specs = {of[0] for of in layouts}
        pools: dict[Layout, list[Leaf]] = {of: [] for of in layouts}
        for leaf in self._leaves:
            if leaf.source is None or leaf.spec not in specs or leaf.spec is None or leaf.spec.dtype not in DTYPES:
                continue
            if leaf.path in self._taken or any(leaf.path[: len(above)] == above for above in self._inside):
                continue
            pool = pools.get(layout(leaf))
            if pool is not None and self._trials.sampled(leaf) is not None:
                pool.append(leaf)
        return pools

    def _options(self, tracks: Sequence[Track], pools: dict[Layout, list[Leaf]]) -> dict[Path, Sequence[Leaf]]:
        """Return place of a track -> weights to try."""
        names = Names(self._named(pools), [track.name for track in tracks if track.name])
        options: dict[Path, Sequence[Leaf]] = {}
        passed: defaultdict[Layout, int] = defaultdict(int)
        for track in tracks:
            like = layout(track.first)
            found = [leaf for leaf in names[track.name] if layout(leaf) == like] if track.name else []
            if not found and passed[like] < len(pools[like]):
                found = [pools[like][passed[like]]]
            passed[like] += 1
            options[track.place] = found
        return options

    def _named(self, pools: dict[Layout, list[Leaf]]) -> Iterator[tuple[Path, Leaf]]:
        """Yield the names of arrays, those under which others show them too."""
        members = {leaf.path: leaf for pool in pools.values() for leaf in pool}
        for leaf in self._leaves:
            if leaf.path in members:
                yield leaf.path, leaf
            elif leaf.source is None and isinstance(leaf.node, list) and leaf.node[0] == nodes.ALIAS:
                target = members.get(references(leaf.node)[0])
                if target is not None:
                    yield leaf.path, target

    def _try(self, guesses: Sequence[tuple[Track, Leaf]]) -> None:
        cases = []
        for track, weight in guesses:
            best = self._best.get(track.place)
            if weight.path in self._taken or (best is not None and best.sure):
                continue
            case = self._trials.case(track, "weight", weight, weight, self._ways.of_role(track, "weight"))
            if case is not None:
                cases.append(case)
        self._trials.prove(cases)
        for case in cases:
            best = self._best.get(case.track.place)
            if case.way is not None and (best is None or _rank(case) > _rank(best)):
                self._best[case.track.place] = case
            if case.sure:
                self._taken.add(case.leaf.path)

    def _join(self, tracks: Sequence[Track], pools: dict[Layout, list[Leaf]]) -> None:
        """Try for each track the array that moved most like its step."""
        groups: defaultdict[tuple[Layout, bool], list[Track]] = defaultdict(list)
        claims = Counter(layout(track.first) for track in tracks)
        for track in tracks:
            best, like = self._best.get(track.place), layout(track.first)
            # Where there is an array for each track and no other, there is no copy that it could be confused with.
            enough = best is not None and (best.sure or (best.holds and len(pools[like]) <= claims[like]))
            if not enough:
                groups[like, track.k == 1].append(track)
        for (like, _), group in groups.items():
            free = [leaf for leaf in pools[like] if leaf.path not in self._taken]
            steps = [self._trials.step(track) for track in group]
            moved = [sampled for leaf in free if (sampled := self._trials.sampled(leaf)) is not None]
            likest = join(steps, moved) if free else []
            for turn in range(max(map(len, likest), default=0)):
                self._try([(t, free[c[turn]]) for t, c in zip(group, likest, strict=True) if turn < len(c)])

    def _settled(self) -> dict[Path, Case]:
        """Return the guesses that hold, each array for one track only."""
        found: dict[Path, Case] = {}
        given: set[Path] = set()
        for case in sorted(self._best.values(), key=_rank, reverse=True):
            if case.holds and case.leaf.path not in given:
                given.add(case.leaf.path)
                found[case.track.place] = case
        return found


def _rank(case: Case) -> tuple[bool, float]:
    return case.sure, case.score.gained
