"""Bays: memory for one capture each, made when the first state comes."""

from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any

from chainstore.errors import ChainError, MemoryShort
from chainstore.manager.capture import Capturer
from chainstore.manager.captured import Captured
from chainstore.manager.memory import Buffer, make_buffer
from chainstore.manager.resuming import tell
from chainstore.model.paths import Path
from chainstore.observe import Observer


class Bay:
    """One buffer and what captures into it.

    Args:
        shared: with another process.
        frozen: tells paths of arrays that never change.

    Attributes:
        number: of the capture that lies in it; -1 for none.
    """

    def __init__(self, shared: bool, frozen: Callable[[Path], bool]) -> None:
        self._shared, self._frozen = shared, frozen
        self._capturer: Capturer | None = None
        self._buffer: Buffer | None = None
        self.number = -1

    @property
    def buffer(self) -> Buffer:
        """Its memory."""
        assert self._buffer is not None
        return self._buffer

    @property
    def capacity(self) -> int:
        """How many bytes of memory it has by now."""
        return self._buffer.capacity if self._buffer is not None else 0

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Have memory for a state like this one: the first touch of it takes longer than a copy."""
        self._made().prepare(state)

    def capture(self, state: Mapping[str, Any], number: int) -> Captured:
        """Copy a state into it; what it held before must be durable."""
        self.number = -1
        captured = self._made().capture(state, number)
        self.number = number
        return captured

    def _made(self) -> Capturer:
        if self._buffer is None or self._capturer is None:
            self._buffer = make_buffer(0, shared=self._shared)
            self._capturer = Capturer(self._buffer, self._frozen)
        return self._capturer

    def close(self) -> None:
        """Give its memory back."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = self._capturer = None


class Bays:
    """As many bays as there may be captures on their way; fewer where memory does not suffice for so many.

    Args:
        count: at first.
        shared, frozen: as for each of them.
        observer: is told when there is one fewer.
    """

    def __init__(self, count: int, shared: bool, frozen: Callable[[Path], bool], observer: Observer) -> None:
        self._bays = [Bay(shared, frozen) for _ in range(count)]
        self._observer = observer

    def __len__(self) -> int:
        return len(self._bays)

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Have memory for captures of states like this one, where nothing is on its way; failing is no failure."""
        for bay in self._bays:
            with suppress(ChainError):  # said when it is captured
                bay.prepare(state)

    def capture(
        self, state: Mapping[str, Any], number: int, taken: Container[int], wait: Callable[[], object]
    ) -> tuple[Bay, Captured]:
        """Copy a state into a bay that is free, and return both.

        Where there is no memory for one more copy beside those that are on their way, there is one bay fewer from
        here on.

        Args:
            taken: the numbers of captures that are on their way, of which there is one fewer than bays at most.
            wait: returns when there are none.

        Raises:
            MemoryShort: there is no memory for even one.  UnsupportedState: as `Capturer.capture`.
        """
        while True:
            free = (bay for bay in self._bays if bay.number not in taken)
            bay = max(free, key=lambda each: each.capacity)  # the first of those with the most memory
            try:
                return bay, bay.capture(state, number)
            except MemoryShort as short:  # the bay has no memory now
                if len(self._bays) == 1:
                    raise
                self._give_up(bay, short)
                wait()

    def close(self) -> None:
        """Give all memory back."""
        for bay in self._bays:
            bay.close()

    def _give_up(self, bay: Bay, short: MemoryShort) -> None:
        self._bays.remove(bay)
        bay.close()
        count = len(self._bays)
        text = f"{short}, beside others: no more than {count} {'is' if count == 1 else 'are'} on the way from here on"
        tell(self._observer, short.code, f"{text}, as with max_pending={count}")
