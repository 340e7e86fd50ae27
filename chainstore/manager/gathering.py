"""Gathering: what a snapshot of a training run holds, and what is said about the run in its commits."""

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chainstore.errors import InvalidInput
from chainstore.live import capture as gather_objects

_GIT_SECONDS = 5.0
_LIBRARIES = ("torch", "numpy", "chainstore", "transformers", "accelerate", "lightning")


class Tracked:
    """The objects of a run that every snapshot holds, whether a call names them or not."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

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

    def with_call(self, objects: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the objects of a call together with the tracked ones that it does not name itself."""
        return objects, {**{name: thing for name, thing in self._named.items() if thing not in objects}, **named}


def gather(objects: Sequence[Any], named: Mapping[str, Any], *, step: int, epoch: int | None) -> dict[str, Any]:
    """Return one state of live objects, random numbers, and the place in the run; arrays are not copied."""
    state = gather_objects(*objects, **named)
    return {**state, "progress": {"step": step, "epoch": epoch}}


def describe_run(folder: Path) -> dict[str, Any]:
    """Return what is worth knowing of a run later: revision of the code, arguments, versions, devices.

    Cost: two calls of git, at most some seconds in all; do it aside.
    """
    loaded = {name: sys.modules[name] for name in _LIBRARIES if name in sys.modules}
    told: dict[str, Any] = {
        "argv": sys.argv,
        "versions": {
            "python": platform.python_version(),
            **{name: str(getattr(module, "__version__", "?")) for name, module in loaded.items()},
        },
        "git": _git(folder),
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
    for what, name in (("devices", "devices"), ("world_size", "world size")):
        if what in before and before[what] != now.get(what):
            found.append(f"{name} were {before[what]} and are {now.get(what)}")
    return found


def _git(folder: Path) -> dict[str, Any]:
    revision = _run_git(folder, "rev-parse", "HEAD")
    if revision is None:
        return {}
    changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"revision": revision, "dirty": None if changed is None else bool(changed)}


def _run_git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _devices() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
