"""Surroundings: what the engine may know of the world."""

from collections.abc import Callable
from dataclasses import dataclass

from chainstore.observe import Observer, silent


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine may know of the world, handed in by whoever opens it.

    Attributes:
        now_us: microseconds since 1970 UTC.
        random: n -> n random bytes (nonces, names of packs).
        host, process: shown to people.
        observer: is told where an index was put that cannot lie in its repository.
    """

    now_us: Callable[[], int]
    random: Callable[[int], bytes]
    host: str
    process: str
    observer: Observer = silent

    @property
    def who(self) -> str:
        return f"{self.process} on {self.host}"
