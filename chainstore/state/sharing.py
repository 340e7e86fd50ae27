"""Sharing: which arrays of a state show the same memory.

Tied weights are one array under two paths, a flat parameter and its slices overlap, two halves of a buffer only
lie side by side.  The first two must come back sharing memory, the third need not and is stored as two.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from chainstore.state.leaf import Region

# Exact overlap is asked pair by pair; where this many arrays lie over each other they count as sharing, so that
# 10 000 interleaved columns do not cost 50 000 000 questions (2 us each).
_CROWD = 64


def is_packed(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return whether an array fills its memory without gaps and shows no byte twice, in whatever order.

    Args:
        strides: in the unit of `itemsize`.
    """
    expected = itemsize
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if size and stride != expected:
            return False
        expected *= size
    return True


def row_major(shape: Sequence[int], itemsize: int = 1) -> tuple[int, ...]:
    """Return the strides of an array in C order, as torch and numpy count them (a size of 0 counts as 1)."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    return tuple(reversed(strides))


def squeeze_repeats(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return `shape` with the dimensions that show one item many times (stride 0) reduced to one."""
    return tuple(1 if not stride and size > 1 else size for size, stride in zip(shape, strides, strict=True))


def sharing_groups(regions: Sequence[Region], overlap: Callable[[Region, Region], bool]) -> Iterator[tuple[int, ...]]:
    """Yield the groups of two and more regions that show common memory, as ascending indices.

    Sharing is transitive here: two halves share with each other if somebody shows the whole.

    Args:
        overlap: tells exactly (or errs towards True) whether two regions whose bounds overlap share a byte.

    Cost: a sort, and a question for each pair of distinct regions with overlapping bounds.
    """
    spans = sorted((region.device, *region.bounds()) for region in regions)
    if all(a[0] != b[0] or a[1] < b[1] >= a[2] for a, b in pairwise(spans)):
        return  # the common case: nobody's memory lies over another's
    same: dict[Region, list[int]] = defaultdict(list)
    for index, region in enumerate(regions):
        same[region].append(index)
    union = _Union()
    for a, b in _touching(list(same), overlap):
        union.join(same[a][0], same[b][0])
    groups: dict[int, list[int]] = defaultdict(list)
    for members in same.values():
        groups[union.find(members[0])] += members
    for group in groups.values():
        if len(group) > 1:
            yield tuple(sorted(group))


def _touching(regions: Sequence[Region], overlap: Callable[[Region, Region], bool]) -> Iterator[tuple[Region, Region]]:
    placed = sorted(((r.device, *r.bounds(), r) for r in regions), key=lambda place: place[:3])
    active: list[tuple[str, int, int, Region]] = []
    reach: tuple[str, int] = ("", 0)
    for place in placed:
        device, start, stop, region = place
        if reach[0] != device or reach[1] <= start:
            active, reach = [], (device, stop)  # the common case: nobody shares anything
        else:
            active = [other for other in active if other[2] > start]
            crowded = len(active) > _CROWD
            for other in active:
                if crowded or overlap(other[3], region):
                    yield other[3], region
            reach = (device, max(reach[1], stop))
        active.append(place)


class _Union:
    """Disjoint sets of ints, joined as needed."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def find(self, item: int) -> int:
        parent = self._parent
        while (above := parent.get(item, item)) != item:
            parent[item] = item = parent.get(above, above)
        return item

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)
