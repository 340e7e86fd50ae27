"""The writer process, as its trainer sees it: started, spoken to, missed when it dies, started again."""

import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from chainstore import config
from chainstore.errors import ForkedHandle, InvalidInput, Unsupported
from chainstore.manager.captured import Captured, CapturedLeaf
from chainstore.manager.channel import Channel, Gone, contents, in_memory
from chainstore.manager.memory import Buffer
from chainstore.manager.messages import (
    Bye,
    Durable,
    Failed,
    Hello,
    Message,
    Request,
    Snapshot,
    Tidy,
    Told,
    encode_leaves,
)
from chainstore.observe import Notice, Observer, silent
from chainstore.repository import BranchHold, Repository, hand_on

_WORKER: Final = "chainstore.manager.worker"
_FOLDER: Final = Path(__file__).resolve().parents[2]
_STARTS: Final = 2  # tries to send: the second where the process that was there has just ended


class ProcessWriter:
    """Lets a process of its own make captures durable; see `writers.Writer`.

    What `submit` has sent becomes durable even if this process is killed at once.  A writer process that dies is
    started anew by the next `submit`.

    Args:
        hold: the branch's lock; the writer process shares it, so that it lasts until the last capture is durable.
        observer: is told what the writer process has to say.

    Raises:
        Unsupported: the key of the repository cannot be sent, or there is no Python to start.
    """

    def __init__(self, repo: Repository, hold: BranchHold | None = None, observer: Observer = silent) -> None:
        self._handed, self._hold, self._observer = hand_on(repo), hold, observer
        self._pid = os.getpid()
        self._pending: dict[int, None] = {}
        self._inbox: list[Durable | Failed] = []
        self._leaves: tuple[tuple[CapturedLeaf, ...], int] | None = None
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = -1
        self._closed = False
        _ours.add(self)
        self._start()

    def __del__(self) -> None:
        if getattr(self, "_pid", 0) == os.getpid():
            self._forget_leaves()
            self._let_go()

    def __repr__(self) -> str:
        return f"<ProcessWriter {self.pid}, {self.pending} pending>"

    @property
    def pid(self) -> int:
        """Of the writer process, the last one if it has ended; also the id of its session."""
        assert self._process is not None
        return self._process.pid

    @property
    def pending(self) -> int:
        """How many captures are neither durable nor failed, as far as `poll` knows."""
        return len(self._pending)

    @property
    def alive(self) -> bool:
        """Whether the writer process runs."""
        return self._process is not None and self._process.poll() is None

    def submit(self, captured: Captured, buffer: Buffer, request: Request) -> None:
        """Send a capture; the buffer must not be changed until `poll` has told what became of it.

        Raises:
            ForkedHandle: a forked child asks.  InvalidInput: what should be said of the commit cannot be stored, or
                no other process can see the buffer.
            Unsupported: no writer process can be started.
        """
        self._own()
        if buffer.fd < 0:
            raise InvalidInput("no other process can see this memory", hint='mode="thread" needs no other process')
        leaves = self._encoded(captured.leaves)
        self._send(Snapshot(captured.number, request), [buffer.fd, leaves])
        self._pending[captured.number] = None

    def poll(self) -> list[Durable | Failed]:
        """Return what became of captures since the last call; waits for nothing.

        Raises:
            ForkedHandle: a forked child asks.
        """
        if not self._pending and not self._inbox:
            return []
        self._own()
        self._hear()
        told, self._inbox = self._inbox, []
        return told

    def tidy(self, retention: str) -> None:
        """Let the writer process drop what a policy does not keep, and take the garbage away, when it has the time."""
        self._own()
        self._send(Tidy(retention))

    def drain(self, timeout_seconds: float, leave: int = 0) -> bool:
        """Wait until at most `leave` are pending; return whether that is so.  What became of them is for `poll`."""
        self._own()
        deadline = time.monotonic() + timeout_seconds
        while len(self._pending) > leave and self._channel is not None:
            if not self._channel.ready(max(0.0, min(deadline - time.monotonic(), 3600.0))):
                if time.monotonic() >= deadline:
                    return False
                continue
            self._hear()
        return len(self._pending) <= leave

    def close(self, timeout_seconds: float) -> None:
        """Let the writer process finish and end, and wait for that; one that takes longer goes on by itself.

        Again is fine; does nothing in a forked child, whose parent goes on with it.
        """
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout_seconds
        if self._channel is not None:
            with suppress(Gone):
                self._channel.send(Bye())
        self.drain(timeout_seconds)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        self._forget_leaves()
        self._let_go()

    # -- inside

    def _own(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                "the writer of snapshots was used in a forked child",
                hint="snapshots are for the process that made the manager; make another one in the child",
            )

    def _send(self, message: Message, fds: list[int] | None = None) -> None:
        if self._closed:
            raise InvalidInput("this writer was closed")
        for _ in range(_STARTS):
            if self._channel is None or not self.alive:
                self._bury()
                self._start()
            assert self._channel is not None
            with suppress(Gone):
                self._channel.send(message, fds or [])
                return
            self._bury()
        raise Unsupported(f"the writer process ends as soon as it starts{self._last_words()}")

    def _encoded(self, leaves: tuple[CapturedLeaf, ...]) -> int:
        """Return memory with the leaves, the same one for as long as they stay the same."""
        if self._leaves is None or (self._leaves[0] is not leaves and self._leaves[0] != leaves):
            self._forget_leaves()
            self._leaves = (leaves, in_memory(encode_leaves(leaves)))
        return self._leaves[1]

    def _forget_leaves(self) -> None:
        if self._leaves is not None:
            os.close(self._leaves[1])
            self._leaves = None

    def _start(self) -> None:
        if not sys.executable:
            raise Unsupported("there is no Python to start a process with", hint='mode="thread" needs none')
        ours, theirs = Channel.pair()
        self._stderr = os.memfd_create("chainstore-writer", os.MFD_CLOEXEC)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-X", "faulthandler", "-m", _WORKER, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # whoever waits for the end of the trainer's output waits for no other
                    stderr=self._stderr,
                    env=config.helper_environment(_FOLDER),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C, and a kill of the trainer's process group, are not for it
                )
            except OSError as error:
                ours.close()
                raise Unsupported(f"no writer process can be started: {error.strerror}") from error
        self._channel = ours
        with suppress(Gone):  # noticed by whatever comes next
            ours.send(Hello(self._handed, self._pid), [self._hold.fileno()] if self._hold is not None else [])

    def _hear(self) -> None:
        """Take in everything that the writer process has said."""
        while self._channel is not None and self._channel.ready():
            try:
                message, _ = self._channel.receive()
            except Gone:
                self._bury()
                return
            if isinstance(message, Durable | Failed):
                self._pending.pop(message.number, None)
                self._inbox.append(message)
            elif isinstance(message, Told):
                self._observer(Notice(message.code, message.text))

    def _bury(self) -> None:
        """Take note that the writer process has ended, and of what that means for the captures it had."""
        if self._channel is None:
            return
        channel, self._channel = self._channel, None
        with suppress(Gone, BlockingIOError):  # what it said before
            while True:
                message, _ = channel.receive()
                if isinstance(message, Durable | Failed):
                    self._pending.pop(message.number, None)
                    self._inbox.append(message)
        channel.close()
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        why = f"the writer process {self.pid} {_ending(self._process.returncode)}{self._last_words()}"
        for number in self._pending:
            self._inbox.append(Failed(number, "writer-died", why, "the next snapshot starts another one"))
        self._pending.clear()
        os.close(self._stderr)
        self._stderr = -1

    def _last_words(self) -> str:
        if self._stderr < 0:
            return ""
        lines = contents(self._stderr).decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _let_go(self) -> None:
        """Close everything of this process; the writer process then finishes what it has, and ends."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1


_ours: Final[weakref.WeakSet[ProcessWriter]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: hold nothing that would make the writer process believe that the trainer still lives."""
    for writer in list(_ours):
        writer._let_go()
        writer._forget_leaves()
        if writer._process is not None:
            writer._process.returncode = 0  # not a child of this process: nothing to wait for
    _ours.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _ending(status: int | None) -> str:
    if status is None:
        return "hears nothing any more"
    if status < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
