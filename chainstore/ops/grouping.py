"""Grouping: which chunks are read in one job, and in which order jobs come.

Chunks whose records build on each other, or on the same one, go into one job, so that everything is decoded once: a
weight and its moments, where one is predicted from the other.  Jobs come in the order of their records in the packs,
so that a disk is read forward.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final

from chainstore.ids import ObjectId
from chainstore.odb.folding import Nodes

TOGETHER: Final = 16  # chunks in one job at most: jobs are what threads share out
_HUB: Final = 8  # records on one base: more than one place of a state has; those have nothing else in common


def in_jobs(nodes: Nodes, wanted: Collection[ObjectId], together: int = TOGETHER) -> list[tuple[ObjectId, ...]]:
    """Return `wanted` in jobs, ordered by pack and offset.

    Args:
        nodes: their records and everything below, see `folding.lay_out`.
        together: chunks in one job at most.
    """
    jobs: dict[ObjectId, list[ObjectId]] = {}
    unions = _Unions(nodes, wanted, together) if any(node.bases for node in nodes.values()) else None
    for id in sorted(wanted, key=lambda id: _where(nodes, id)):
        jobs.setdefault(unions.top(id) if unions is not None else id, []).append(id)
    return [tuple(ids) for ids in jobs.values()]


def _where(nodes: Nodes, id: ObjectId) -> tuple[int, int]:
    place = nodes[id].place
    return (place.pack, place.offset) if place is not None else (-1, -1)


class _Unions:
    """Sets of records that have bases in common, joined until there would be too many wanted ones in one."""

    def __init__(self, nodes: Nodes, wanted: Collection[ObjectId], together: int) -> None:
        self._together = together
        self._above: dict[ObjectId, ObjectId] = {}
        self._wanted = dict.fromkeys(wanted, 1)
        uses = Counter(base for node in nodes.values() for base in set(node.bases))
        for node in nodes.values():
            for base in node.bases:
                if uses[base] <= _HUB:
                    self._join(node.id, base)

    def top(self, id: ObjectId) -> ObjectId:
        """Return the record that stands for the set of `id`."""
        path = []
        while (above := self._above.get(id)) is not None:
            path.append(id)
            id = above
        self._above.update(dict.fromkeys(path, id))
        return id

    def _join(self, one: ObjectId, other: ObjectId) -> None:
        one, other = self.top(one), self.top(other)
        count = self._wanted.get(one, 0) + self._wanted.get(other, 0)
        if one != other and count <= self._together:
            self._above[other] = one
            self._wanted[one] = count
