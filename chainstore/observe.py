"""Events: how the engine tells what it is doing without knowing who listens.

The engine calls one observer; progress bars, metrics and journals subscribe to it.

    >>> seen = []
    >>> seen.append(Progress("commit", done=1, total=2))
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Work under way.

    Attributes:
        verb: "commit", "checkout", "diff", "verify", "repair", "latest-good", "rebuild-index", "gc", "gc recode",
            "rekey"; "verify names", "gc mark" and "repack" count commits, "verify copy" objects, instead of bytes.
        done, total: bytes of raw state (total 0 while unknown).
        new, reused: bytes stored anew, bytes found already stored.
    """

    verb: str
    done: int
    total: int
    new: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should read once: `code` is stable, `text` is a sentence."""

    code: str
    text: str


Event = Progress | Notice
Observer = Callable[[Event], None]


def silent(event: Event) -> None:
    """Listen to nothing."""
