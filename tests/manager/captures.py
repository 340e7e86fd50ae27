"""Captures of small states, for tests of what becomes of them."""

from itertools import count
from typing import Any

import numpy as np

from chainstore.manager.capture import Capturer
from chainstore.manager.captured import Captured
from chainstore.manager.memory import Buffer, make_buffer

_numbers = count(1)


class Camera:
    """A buffer and its capturer."""

    def __init__(self, *, shared: bool = True) -> None:
        self.buffer: Buffer = make_buffer(1 << 16, shared=shared)
        self._capturer = Capturer(self.buffer)

    def take(self, state: object) -> Captured:
        """Capture a state, under a number of its own."""
        return self._capturer.capture(state, next(_numbers))


def state_of(step: int, nbytes: int = 300_000) -> dict[str, Any]:
    """Return a state that says of which step it is, everywhere."""
    return {
        "w": np.full(nbytes // 8, step, np.int64),
        "small": {"step": np.array(step), "name": f"step {step}", "list": [step, 1.5, None]},
        "empty": np.zeros((0, 3)),
    }


def is_state_of(step: int, state: dict[str, Any], nbytes: int = 300_000) -> bool:
    """Whether a state is whole, and the one of that step."""
    expected = state_of(step, nbytes)
    return (
        state.keys() == expected.keys()
        and bool((state["w"] == expected["w"]).all())
        and state["w"].shape == expected["w"].shape
        and state["small"] == expected["small"]
        and state["empty"].shape == (0, 3)
    )
