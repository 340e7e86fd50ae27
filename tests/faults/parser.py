"""What a parser is to the fuzzer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chainstore.errors import Damaged, Unsupported
from tests.faults.mutation import Change, mutated, mutated_node

REFUSED = (Damaged, Unsupported)
NODES = (mutated, mutated_node, mutated_node)
MOST_BYTES = 64 << 20  # of arrays that a trial makes: what a snapshot may claim is no parser's to limit


@dataclass(frozen=True, slots=True)
class Parser:
    """Something that reads bytes.

    Attributes:
        samples: what it is given as it is, and changed.
        parse: gives a value or raises one of `refusals`; AssertionError where the value is not what was read.
        refusals: the errors that it may raise.
        sign: makes the checksums of changed bytes right again.
        trials: how many changed samples make a short run, some seconds.
        changes: how samples are changed, one of them at random.
    """

    samples: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    trials: int
    refusals: tuple[type[Exception], ...] = REFUSED
    sign: Callable[[bytes], bytes] | None = None
    changes: Sequence[Change] = (mutated,)
