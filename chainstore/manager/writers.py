"""Writers: who makes captures durable - the training loop itself, a thread of its process, or another process."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from chainstore.errors import ForkedHandle, InvalidInput
from chainstore.manager.captured import Captured
from chainstore.manager.memory import Buffer
from chainstore.manager.messages import Durable, Failed, Request, Told
from chainstore.manager.process import ProcessWriter
from chainstore.manager.storing import store, tidy
from chainstore.observe import Notice, Observer, silent
from chainstore.repository import BranchHold, Repository, make_note

__all__ = ["ProcessWriter", "Request", "SyncWriter", "ThreadWriter", "Writer", "make_writer"]


class Writer(Protocol):
    """Makes captures durable, in the order in which they were submitted.  One thread uses it at a time."""

    @property
    def pending(self) -> int:
        """How many captures are neither durable nor failed, as far as `poll` knows."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it could take a capture without being started anew."""
        ...

    def submit(self, captured: Captured, buffer: Buffer, request: Request) -> None:
        """Take a capture; the buffer must not be changed until `poll` has told what became of it.

        Raises:
            ForkedHandle: a forked child asks.  InvalidInput: what should be said of the commit cannot be stored.
        """
        ...

    def poll(self) -> list[Durable | Failed]:
        """Return what became of captures since the last call; waits for nothing.

        Raises:
            ForkedHandle: a forked child asks.
        """
        ...

    def tidy(self, retention: str) -> None:
        """Drop what a retention policy (as text) does not keep, and take the garbage away, when there is time."""
        ...

    def drain(self, timeout_seconds: float, leave: int = 0) -> bool:
        """Wait until at most `leave` are pending; return whether that is so.  What became of them is for `poll`."""
        ...

    def close(self, timeout_seconds: float) -> None:
        """Finish and end; what takes longer than that goes on by itself.  Again is fine."""
        ...


def make_writer(
    mode: Literal["process", "thread", "sync"],
    repo: Repository,
    hold: BranchHold | None = None,
    observer: Observer = silent,
) -> Writer:
    """Return a writer of a kind; see `Writer`.

    Raises:
        Unsupported: there can be no writer process; a thread would do.
    """
    if mode == "process":
        return ProcessWriter(repo, hold, observer)
    return (ThreadWriter if mode == "thread" else SyncWriter)(repo, observer)


class SyncWriter:
    """Makes a capture durable before `submit` returns; see `Writer`."""

    def __init__(self, repo: Repository, observer: Observer = silent) -> None:
        self._repo, self._observer = repo, observer
        self._told: list[Durable | Failed] = []
        self._pid = os.getpid()

    @property
    def pending(self) -> int:
        return 0

    @property
    def alive(self) -> bool:
        return True

    def submit(self, captured: Captured, buffer: Buffer, request: Request) -> None:
        _own(self._pid)
        _check(request)
        self._told.append(store(self._repo, captured.number, captured.leaves, buffer.view, request))

    def poll(self) -> list[Durable | Failed]:
        if not self._told:
            return []
        told, self._told = self._told, []
        return told

    def tidy(self, retention: str) -> None:
        _own(self._pid)
        _pass_on(tidy(self._repo, retention), self._observer)

    def drain(self, timeout_seconds: float, leave: int = 0) -> bool:
        return True

    def close(self, timeout_seconds: float) -> None:
        pass


class ThreadWriter:
    """Lets a thread of this process make captures durable; see `Writer`.

    The thread ends whenever it has nothing to do.  So at the end of the interpreter, which waits for it, what was
    submitted becomes durable and nothing else is waited for: no thread sleeps there that somebody would have to wake.
    """

    def __init__(self, repo: Repository, observer: Observer = silent) -> None:
        self._repo, self._observer = repo, observer
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._told: list[Durable | Failed] = []
        self._notices: list[Told] = []
        self._closed = False

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def alive(self) -> bool:
        return not self._closed

    def submit(self, captured: Captured, buffer: Buffer, request: Request) -> None:
        _own(self._pid)
        _check(request)
        number, leaves, view = captured.number, captured.leaves, buffer.view

        def work() -> None:
            answer = store(self._repo, number, leaves, view, request)
            with self._changed:
                self._told.append(answer)
                self._pending -= 1
                self._changed.notify_all()

        with self._changed:
            self._pending += 1
        self._give(work)

    def poll(self) -> list[Durable | Failed]:
        if not self._told and not self._notices:
            return []
        _own(self._pid)
        with self._changed:
            told, self._told = self._told, []
            notices, self._notices = self._notices, []
        for notice in notices:
            _pass_on(notice, self._observer)
        return told

    def tidy(self, retention: str) -> None:
        _own(self._pid)

        def work() -> None:
            told = tidy(self._repo, retention)
            if told is not None:
                with self._changed:
                    self._notices.append(told)

        self._give(work)

    def drain(self, timeout_seconds: float, leave: int = 0) -> bool:
        _own(self._pid)
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._pending > leave and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 3600.0))
            return self._pending <= leave

    def close(self, timeout_seconds: float) -> None:
        if os.getpid() == self._pid:
            self._closed = True
            deadline = time.monotonic() + timeout_seconds
            thread = self._thread
            if thread is not None:
                thread.join(max(0.0, min(deadline - time.monotonic(), 1e6)))

    def _give(self, job: Callable[[], None]) -> None:
        if self._closed:
            raise InvalidInput("this writer was closed")
        with self._changed:
            self._jobs.append(job)
            if self._thread is not None:
                return  # it looks for more before it ends, and says so under this lock
            self._thread = threading.Thread(target=self._work, name="chainstore-writer")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is about to end, or the system has no threads left
            self._work()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            job()


def _own(pid: int) -> None:
    if os.getpid() != pid:
        raise ForkedHandle(
            "the writer of snapshots was used in a forked child",
            hint="snapshots are for the process that made the manager; make another one in the child",
        )


def _check(request: Request) -> None:
    make_note(request.message, request.step, request.epoch, request.metrics, request.meta)


def _pass_on(told: Told | None, observer: Observer) -> None:
    if told is not None:
        observer(Notice(told.code, told.text))
