"""Sampling: which part of the chunks is read, where reading all of them every night would take too long.

A share and a number of bytes are drawn by a seed that the report tells, so that a finding can be repeated; the n-th of
t parts is taken by id, so that t nights read everything once.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from chainstore.ids import ObjectId

_DRAWS = 1 << 64


class Sample(Protocol):
    """A choice of objects; `text` says which, `seed` where it came from (None: not from chance)."""

    @property
    def text(self) -> str: ...
    @property
    def seed(self) -> int | None: ...
    def pick(self, objects: Mapping[ObjectId, int]) -> list[ObjectId]:
        """Return those to read of `objects`, given with their stored bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all objects, each drawn by itself."""

    share: Fraction
    text: str
    seed: int

    def pick(self, objects: Mapping[ObjectId, int]) -> list[ObjectId]:
        return [id for id in objects if _draw(self.seed, id) < self.share * _DRAWS]


@dataclass(frozen=True, slots=True)
class Part:
    """The `number`-th (from 1) of `parts` parts, by id."""

    number: int
    parts: int
    seed: None = None

    @property
    def text(self) -> str:
        return f"{self.number}/{self.parts}"

    def pick(self, objects: Mapping[ObjectId, int]) -> list[ObjectId]:
        return [id for id in objects if int.from_bytes(id[:8]) * self.parts // _DRAWS == self.number - 1]


@dataclass(frozen=True, slots=True)
class Amount:
    """Objects in an order that is drawn, until they are `nbytes` or more."""

    nbytes: int
    text: str
    seed: int

    def pick(self, objects: Mapping[ObjectId, int]) -> list[ObjectId]:
        chosen, total = [], 0
        for id in sorted(objects, key=lambda id: _draw(self.seed, id)):
            if total >= self.nbytes:
                break
            chosen.append(id)
            total += objects[id]
        return chosen


@dataclass(frozen=True, slots=True)
class Only:
    """Objects that are named: what a repair has put in order is read once more."""

    ids: frozenset[ObjectId]
    text: str = field(default="")
    seed: None = None

    def pick(self, objects: Mapping[ObjectId, int]) -> list[ObjectId]:
        return [id for id in objects if id in self.ids]


def _draw(seed: int, id: ObjectId) -> int:
    return int.from_bytes(hashlib.blake2b(id, digest_size=8, key=seed.to_bytes(8)).digest())
