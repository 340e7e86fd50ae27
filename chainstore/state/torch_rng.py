"""torch's default generators, on the host and on CUDA devices.  Loaded on first use only.

Devices that this process has not started are left alone: nothing was drawn from them, and starting them takes memory
and forbids forking.
"""

from typing import Any

import torch


def states() -> dict[str, Any]:
    """Return copies of the generators' states: uint8 tensors on the host."""
    found: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def problem(name: str, state: Any) -> str:
    """Return why the generators called `name` cannot be put to `state`, "" if they can."""
    if name == "torch":
        return _problem(state, torch.Generator("cpu"))
    if not isinstance(state, list | tuple):
        return f"a {type(state).__name__}, not a list of states"
    there = torch.cuda.device_count()
    if len(state) > there:
        return f"states of {len(state)} CUDA devices, and there are {there} here"
    return next(filter(None, (_problem(each, torch.Generator(f"cuda:{i}")) for i, each in enumerate(state))), "")


def _problem(state: Any, spare: torch.Generator) -> str:
    if not isinstance(state, torch.Tensor):
        return f"a {type(state).__name__}, not a tensor"
    try:
        spare.set_state(state.cpu())
    except (RuntimeError, TypeError) as error:
        return f"no state of torch's generator ({str(error).partition(chr(10))[0]})"
    return ""


def restore(name: str, state: Any) -> None:
    """Put the generators called `name` to `state`."""
    if name == "torch":
        torch.set_rng_state(state.cpu())
        return
    for device, each in enumerate(state):
        torch.cuda.set_rng_state(each.cpu(), device)
