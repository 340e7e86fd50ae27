"""Offers: ways to store an object as a difference to others, from whoever knows which those may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chainstore.codecs.base import Against
from chainstore.codecs.chain import Encoder
from chainstore.ids import ObjectId


@dataclass(frozen=True, slots=True)
class Base:
    """An object that another may be a difference to.

    Attributes:
        depth: of its record.  read: returns its plain bytes.
    """

    id: ObjectId
    depth: int
    read: Callable[[], memoryview]


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to store a chunk as a difference.

    Attributes:
        tag: of a codec that uses bases.  bases, parameters: what it needs, see `Against`.
        keyframe: whether its base is one, and it is the next.
    """

    tag: int
    bases: tuple[Base, ...]
    parameters: bytes = b""
    keyframe: bool = False

    @property
    def depth(self) -> int:
        """Of a record that is made so."""
        return 1 + max(base.depth for base in self.bases)

    def against(self) -> Against:
        """Return it with the bytes of its bases.

        Raises:
            Damaged: a base cannot be read.
        """
        return Against(self.tag, tuple(base.read() for base in self.bases), self.parameters)


Choose: TypeAlias = Callable[[Encoder, memoryview], Sequence[tuple[Offer, Against]]]
"""Returns, for the bytes of an object, the offers that are worth trying on all of it, their bases read."""
