"""Gathering: what a snapshot of a training run holds, and what is said about the run in its commits."""

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from chainstore.errors import InvalidInput
from chainstore.live import capture as gather_objects
from chainstore.manager.stepping import StepHooks

_LIBRARIES = ("torch", "numpy", "chainstore", "transformers", "accelerate", "lightning")


class Tracked:
    """The objects of a run that every snapshot holds, whether a call names them or not.

    Args:
        hooks: what optimizers among these, and among those that a call names, get.
    """

    def __init__(self, hooks: StepHooks) -> None:
        self._named: dict[str, Any] = {}
        self._hooks = hooks

    def add(self, named: Mapping[str, Any]) -> None:
        """Track objects under names.

        Raises:
            InvalidInput: one has no `state_dict` and `load_state_dict`.
        """
        for name, thing in named.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                raise InvalidInput(
                    f"{name}= a {type(thing).__name__} has no state_dict and load_state_dict",
                    hint="give plain values to a call: manager.step(step, extra={...})",
                )
        self._named |= named
        self._hooks.see(named.values())

    def name_for(self, kind: str, name: str | None = None) -> str:
        """Return a name for one more object: the one that is asked for, or the kind, with a number from the second on.

        Raises:
            InvalidInput: that name is taken.
        """
        if name is None:
            numbered = (f"{kind}{number}" if number > 1 else kind for number in range(1, len(self._named) + 2))
            return next(each for each in numbered if each not in self._named)
        if not name or name in self._named:
            raise InvalidInput(f"{name!r} is the name of something tracked already" if name else "a name is not empty")
        return name

    def clear(self) -> None:
        """Let the objects go, so that the workers of a loader end with the last reference of whoever made it."""
        self._named.clear()
        self._hooks.remove()

    def with_call(self, objects: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the objects of a call together with the tracked ones that it does not name itself."""
        self._hooks.see((*objects, *named.values()))
        return objects, {**{name: thing for name, thing in self._named.items() if thing not in objects}, **named}


def gather(objects: Sequence[Any], named: Mapping[str, Any], *, step: int, epoch: int | None) -> dict[str, Any]:
    """Return one state of live objects, random numbers, and the place in the run; arrays are not copied."""
    state = gather_objects(*objects, **named)
    return {**state, "progress": {"step": step, "epoch": epoch}}


def numbers(metrics: Mapping[str, object] | None) -> dict[str, float]:
    """Return metrics as floats: numbers, 0-dim tensors, NumPy scalars.

    Raises:
        InvalidInput: one is none of these.
    """
    found = {}
    for name, value in (metrics or {}).items():
        try:
            if isinstance(value, str | bytes):
                raise TypeError("text")
            found[name] = float(value.detach() if hasattr(value, "detach") else value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"metric {name!r} must be one number, not {type(value).__name__} ({error})") from error
    return found


def describe_run() -> dict[str, Any]:
    """Return what is worth knowing of a run later, but for its code (`worktree`): arguments, versions, devices."""
    loaded = {name: sys.modules[name] for name in _LIBRARIES if name in sys.modules}
    told: dict[str, Any] = {
        "argv": sys.argv,
        "versions": {
            "python": platform.python_version(),
            **{name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()},
        },
        "devices": _devices(),
    }
    return {key: value for key, value in told.items() if value}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences about what changed between two runs that could change what they compute."""
    found = []
    old, new = before.get("versions", {}), now.get("versions", {})
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            found.append(f"{name} was {old[name]} and is {new[name]}")
    if "devices" in before and before["devices"] != now.get("devices"):
        found.append(f"devices were {before['devices']} and are {now.get('devices')}")
    code, code_now = before.get("git", {}), now.get("git", {})
    was, is_ = code.get("revision"), code_now.get("revision")
    if was and is_ and was != is_:
        found.append(f"the code was at {was[:12]} and is at {is_[:12]}")
    elif was and is_ and _edits(code) != _edits(code_now):
        found.append("what is not committed of the code was something else")
    return found


def _edits(code: Mapping[str, Any]) -> object:
    """Return what tells the edits of a work tree from others."""
    return code.get("dirty"), dict(code.get("diff") or {}).get("blake3")


def _devices() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
