"""numpy's legacy generator: what `numpy.random.rand` and its kin draw from.  Loaded on first use only."""

from typing import Any

import numpy as np


def states() -> dict[str, Any]:
    """Return a copy of the state of the generator behind `numpy.random`."""
    return {"numpy": np.random.get_state(legacy=False)}


def problem(name: str, state: Any) -> str:
    """Return why the generator cannot be put to `state`, "" if it can."""
    kind = type(np.random.mtrand.get_bit_generator())
    spare = np.random.RandomState(kind())
    try:
        spare.set_state(state)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        return f"no state of numpy's generator ({error})"
    return ""


def restore(name: str, state: Any) -> None:
    """Put the generator behind `numpy.random` to `state`."""
    np.random.set_state(state)
