"""Random numbers: the states of the generators that a training run draws from, taken and put back.

    python   the generator of `random`
    numpy    the legacy generator of `numpy.random`
    torch    torch's generator on the host
    cuda     torch's generators on CUDA devices, a list, one for each device

A library that the process has not loaded has drawn nothing: its generators are looked at only where it is there
already, or where a stored state belongs to it.

    >>> sorted(set(capture_rng()) - {"numpy", "torch", "cuda"})
    ['python']
"""

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

_MODULES: Final = {"numpy": "chainstore.state.numpy_rng", "torch": "chainstore.state.torch_rng"}
_LIBRARY_OF: Final = {"numpy": "numpy", "torch": "torch", "cuda": "torch"}


def capture_rng() -> dict[str, Any]:
    """Return the states of all generators by name; draws nothing and starts no device."""
    states: dict[str, Any] = {"python": random.getstate()}
    for library, module in _MODULES.items():
        if sys.modules.get(library) is not None:
            states |= import_module(module).states()
    return states


@dataclass(frozen=True, slots=True)
class RngPlan:
    """States of generators that were looked at and are about to be put back.

    Attributes:
        states: those that fit this process, by name.
        missing: "rng" where there is no state at all.
        mismatched: names of those that fit no generator here, with the reason.
    """

    states: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    def restore(self) -> None:
        """Put the generators where they were."""
        for name, state in self.states.items():
            if name == "python":
                random.setstate(state)
            else:
                import_module(_MODULES[_LIBRARY_OF[name]]).restore(name, state)


NO_RNG: Final = RngPlan()  # leaves all generators as they are


def plan_rng(states: object) -> RngPlan:
    """Return how the generators would be put back to `states`, of `capture_rng`; changes nothing.

    Args:
        states: None where nothing was stored.
    """
    if states is None:
        return RngPlan(missing=("rng",))
    if not isinstance(states, Mapping):
        return RngPlan(mismatched=(f"rng: a {type(states).__name__}, not the states that cs.capture makes",))
    problems = {name: _problem(name, state) for name, state in states.items()}
    return RngPlan(
        {name: state for name, state in states.items() if not problems[name]},
        mismatched=tuple(f"rng/{name}: {why}" for name, why in problems.items() if why),
    )


def _problem(name: object, state: Any) -> str:
    """Return why a generator cannot be put to `state`, "" if it can; tried on one that nobody uses."""
    if name == "python":
        try:
            random.Random().setstate(state)
        except (TypeError, ValueError) as error:
            return f"no state of Python's generator ({error})"
        return ""
    library = _LIBRARY_OF.get(name) if isinstance(name, str) else None
    return str(import_module(_MODULES[library]).problem(name, state)) if library else "no generator that is known here"
