"""Following: what a rank that does not write has in place of `Shipping`."""

from collections.abc import Mapping
from typing import Any

from chainstore.manager.tally import Tally
from chainstore.observe import Observer
from chainstore.policies.retention import Retention


class Following:
    """Nothing is on its way from here: rank 0 writes what is told of in `Together`.  See `Shipping` for the methods.

    Attributes:
        branch, observer, tally: as there; nothing is ever counted.
        before: "" as nobody was here.  pending: 0.
    """

    before = ""
    pending = 0

    def __init__(self, branch: str, observer: Observer) -> None:
        self.branch, self.observer, self.tally = branch, observer, Tally()

    def __repr__(self) -> str:
        return "rank 0 writes"

    def look(self) -> None:
        """There is nothing to hear of."""

    def has_room(self, step: int | None, at_once: bool) -> bool:
        return True

    def keep(self, retention: Retention | None) -> None:
        """Rank 0 drops snapshots."""

    def say_ended(self, how: str) -> None:
        """Rank 0 leaves word."""

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Nothing is copied here."""

    def drain(self, timeout: float | None) -> bool:
        return True

    def flush(self, seconds: float) -> None:
        """There is nothing to wait for."""

    def close(self, timeout: float) -> None:
        """Nothing is held."""
