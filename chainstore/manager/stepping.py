"""Stepping: an optimizer that another thread steps does not begin a step while a snapshot is captured."""

import os
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import torch


class _Handle(Protocol):
    def remove(self) -> None: ...


class StepHooks:
    """Lets optimizers wait for a capture before each of their steps, by a pre-step hook.

    A hook before steps cannot make a capture wait for a step that runs already: that is what `SnapshotManager.lock`
    around `optimizer.step()` is for.  (One after steps could, but would never run after a step that raised.)

    Args:
        lock: held while a snapshot is captured, by a thread that may take it again.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._handles: weakref.WeakKeyDictionary[Any, _Handle] = weakref.WeakKeyDictionary()

    def see(self, objects: Iterable[object]) -> None:
        """Give every optimizer among these its hook, if it has none yet."""
        for thing in objects:
            register = getattr(thing, "register_step_pre_hook", None)
            if callable(register):
                with suppress(AttributeError, TypeError):  # it wraps an optimizer, and has the method without its data
                    weakref.ref(thing)
                    if thing not in self._handles:
                        self._handles[thing] = register(_waiter(self._lock))

    def remove(self) -> None:
        """Take all hooks away again."""
        for handle in list(self._handles.values()):
            handle.remove()
        self._handles.clear()


def _waiter(lock: AbstractContextManager[object]) -> Any:
    """Return a hook that holds on to the lock alone: it keeps neither an optimizer nor a manager alive."""
    pid = os.getpid()

    def wait(*_: object) -> None:
        # Traced code runs without Python; and in a forked child the lock may be held by a thread that is not there.
        if not torch.compiler.is_compiling() and os.getpid() == pid:
            with lock:
                pass

    return wait
