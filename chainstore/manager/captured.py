"""What a capture is, in words that the process that writes it understands too (nothing here needs torch)."""

from dataclasses import dataclass

from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.wire import Node


@dataclass(frozen=True, slots=True)
class CapturedLeaf:
    """A leaf whose bytes are in a buffer.

    Attributes:
        path, node, spec: as in `Leaf`.
        offset: of its bytes in the buffer; -1 if it has none (containers, aliases, views, arrays without items).
        nbytes: how many.
    """

    path: Path
    node: Node
    spec: Spec | None
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Captured:
    """A state at one moment.

    Attributes:
        number: that was asked for; else it counts the captures of one capturer that succeeded, from 1.
        leaves: in walk order; the same object as that of the capture before if nothing but bytes changed.
        nbytes: of all leaves.
        copied_bytes: how many of them were written, because the buffer held others.
        seconds: that the caller waited.
    """

    number: int
    leaves: tuple[CapturedLeaf, ...]
    nbytes: int
    copied_bytes: int
    seconds: float
