"""Children: work done in a forked process, so that it may die.

ending = run(lambda: rebuild(path))         what it returned, raised, or was killed by
child = Child(work); child.kill()           while it works
"""

import faulthandler
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended.

    Attributes:
        answer: what its work returned; None if it did not.
        error: the traceback of what it raised, "" if nothing.
        signal: what killed it, 0 if nothing did.
    """

    answer: Any = None
    error: str = ""
    signal: int = 0


class Child:
    """A forked process that does `work` and nothing else; its memory is the parent's at that moment."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reading)
            _work_and_exit(work, writing)
        os.close(writing)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def join(self, patience_seconds: float = PATIENCE_SECONDS) -> Ending:
        """Wait for the end; AssertionError, and a kill, if it does not come."""
        told = self._read_all(time.monotonic() + patience_seconds)
        if told is None:
            self.kill()
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._reading)
        assert told is not None, f"a child was not done after {patience_seconds:.0f} s"
        if os.WIFSIGNALED(status):
            return Ending(signal=os.WTERMSIG(status))
        ending: Ending = pickle.loads(told)
        return ending

    def join_dead(self) -> None:
        """Wait for one that ends without a word."""
        os.waitpid(self.pid, 0)
        os.close(self._reading)

    def _read_all(self, deadline: float) -> bytes | None:
        parts: list[bytes] = []
        while select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(self._reading, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
        return None


def run(work: Callable[[], object], patience_seconds: float = PATIENCE_SECONDS) -> Ending:
    """Do `work` in a child and return how that ended."""
    return Child(work).join(patience_seconds)


def succeed(work: Callable[[], object], patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """Do `work` in a child and return what it returned; AssertionError if it raised or died."""
    ending = run(work, patience_seconds)
    assert not ending.signal, f"the child was killed by signal {ending.signal}"
    assert not ending.error, ending.error
    return ending.answer


def _work_and_exit(work: Callable[[], object], writing: int) -> None:
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            ending = Ending(answer=work())
        except BaseException:
            ending = Ending(error=traceback.format_exc())
        data = memoryview(pickle.dumps(ending))
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)
