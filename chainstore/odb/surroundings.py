"""Surroundings: what the engine may know of the world."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine may know of the world, handed in by whoever opens it.

    Attributes:
        now_us: microseconds since 1970 UTC.
        random: n -> n random bytes (nonces, names of packs).
        host, process: shown to people.
    """

    now_us: Callable[[], int]
    random: Callable[[int], bytes]
    host: str
    process: str

    @property
    def who(self) -> str:
        return f"{self.process} on {self.host}"
