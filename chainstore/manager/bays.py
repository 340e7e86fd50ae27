"""Bays: memory for one capture each, made when the first state comes."""

from collections.abc import Callable, Mapping
from typing import Any

from chainstore.manager.capture import Capturer
from chainstore.manager.captured import Captured
from chainstore.manager.memory import Buffer, make_buffer
from chainstore.model.paths import Path


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
