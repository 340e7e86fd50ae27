"""The writer process: `python -P -m chainstore.manager.worker FD`, started by `process.ProcessWriter` alone.

It makes durable what its trainer sends, one capture after the other, straight from the memory that the trainer
shares, and ends when the trainer says so or has ended, be it by SIGKILL: first it finishes everything that was sent.
In a session of its own, at a lower priority, without torch.

SIGTERM often goes to every process of a job at once: it finishes what it has, and waits a while for the last
snapshot, which the trainer makes because it was told as well.
"""

import ctypes
import gc
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from chainstore.errors import ChainError
from chainstore.manager.captured import CapturedLeaf
from chainstore.manager.channel import Channel, Gone, close_all, contents
from chainstore.manager.messages import (
    Bye,
    Durable,
    Failed,
    Hello,
    Message,
    Snapshot,
    Tidy,
    Told,
    decode_leaves,
)
from chainstore.manager.storing import failure, store, tidy
from chainstore.repository import Repository, take_up

# With 10, beside training that spins on every core, a snapshot took more processor time, and training lost more.
_NICE: Final = 5
_GRACE_SECONDS: Final = 30.0  # after a SIGTERM, for the trainer's last snapshot
_TRIM_EVERY: Final = 16  # snapshots: takes a millisecond, and what is given back has to be had again
_TIDY_SECONDS: Final = 5.0  # at the end, for gc: stopped at any moment, the next one goes on


class Worker:
    """Does what comes through a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._hello: Hello | None = None
        self._repo: Repository | None = None
        self._lock: list[int] = []
        self._leaves: tuple[bytes, tuple[CapturedLeaf, ...]] = (b"\x80", ())
        self._stored = 0
        self._tidying: threading.Thread | None = None
        self._tidy_lock = threading.Lock()
        self._untidy = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._trainer = -1
        self.last_call: float | None = None
        """When to hear no more (monotonic seconds), once a SIGTERM came."""

    def run(self) -> None:
        """Work until the trainer says that it is over, or is no more."""
        with suppress(Gone):
            while self._wait():
                self._take()
            self._channel.hear_no_more()  # a trainer that lives notices, and starts another one
            while self._channel.ready():
                self._take()
        self._finish()

    def terminate(self) -> None:
        """Finish soon; called by the handler of SIGTERM."""
        if self.last_call is None:
            self.last_call = time.monotonic() + _GRACE_SECONDS

    def _wait(self) -> bool:
        """Wait until there is a message; return False once none is to be waited for."""
        poll = select.poll()
        for fd in (self._channel.fileno(), self._wake, self._trainer):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while not self._channel.ready():
            left = None if self.last_call is None else self.last_call - time.monotonic()
            if left is not None and left <= 0:
                return False
            ready = {fd for fd, _ in poll.poll(None if left is None else left * 1000 + 1)}
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 64)
            if self._trainer in ready and not self._channel.ready():
                return False
        return True

    def _take(self) -> None:
        message, fds = self._channel.receive()
        try:
            self._do(message, fds)
        finally:
            close_all(fds)

    def _do(self, message: Message, fds: list[int]) -> None:
        match message:
            case Hello(_, trainer):
                self._hello = message
                self._lock, fds[:] = fds[:], []
                self._watch(trainer)
                with suppress(ChainError):  # tried again with the first snapshot, which then says why it failed
                    self._open()
            case Snapshot():
                self._tell(self._store(message, *fds))
                self._stored += 1
                if self._stored % _TRIM_EVERY == 0:
                    _give_memory_back()
            case Tidy(retention):
                self._tidy(retention)
            case Bye():
                raise Gone("the trainer is done")

    def _watch(self, trainer: int) -> None:
        """Notice the death of the trainer even if a process that it left behind still has its end of the channel."""
        with suppress(OSError):  # not everywhere allowed
            self._trainer = os.pidfd_open(trainer)
        if os.getppid() != trainer:
            self.last_call = time.monotonic()  # it is dead already, and its number may be another's

    def _open(self) -> Repository:
        if self._repo is None:
            assert self._hello is not None
            self._repo = take_up(self._hello.handed)
        return self._repo

    def _store(self, message: Snapshot, memory: int, leaves: int) -> Durable | Failed:
        try:
            repo = self._open()
            encoded = contents(leaves)
            if encoded != self._leaves[0]:
                self._leaves = (encoded, decode_leaves(encoded))
            mapped = mmap.mmap(memory, os.fstat(memory).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except Exception as error:
            return failure(message.number, error)
        try:
            return store(repo, message.number, self._leaves[1], memoryview(mapped), message.request)
        finally:
            with suppress(BufferError):  # an error holds a piece of it still, and lets go of it soon
                mapped.close()

    def _tidy(self, retention: str) -> None:
        try:
            repo = self._open()
        except ChainError as error:
            self._tell(Told("tidy-failed", f"old snapshots could not be dropped: {error}"))
            return

        def work() -> None:
            while True:
                with self._tidy_lock:
                    if not self._untidy:
                        self._tidying = None
                        return
                    self._untidy = False
                told = tidy(repo, retention)
                if told is not None:
                    self._tell(told)

        with self._tidy_lock:
            self._untidy = True  # also for whoever is at it: what became durable since is not seen by that
            if self._tidying is None:
                self._tidying = threading.Thread(target=work, name="chainstore-tidy", daemon=True)
                self._tidying.start()

    def _tell(self, message: Message) -> None:
        with suppress(Gone):  # nobody is there to be told; what is durable is durable
            self._channel.send(message)

    def _finish(self) -> None:
        tidying = self._tidying
        if tidying is not None:
            tidying.join(_TIDY_SECONDS)
            if tidying.is_alive():
                os._exit(0)
        if self._repo is not None:
            with suppress(ChainError):
                self._repo.close()


def _give_memory_back() -> None:
    """Return to the system what the C library keeps for later, which otherwise grows over thousands of snapshots."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _collect_seldom() -> None:
    """Have the collector of cycles pass over the modules, which stay anyway, and look seldom at the rest."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _step_back() -> None:
    """Leave the processor to training whenever that wants it, and the disk as far as that is possible."""
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):  # a session is a group for the scheduler, and within a group `nice` means nothing to others
        Path("/proc/self/autogroup").write_text(str(_NICE))


def main() -> None:
    """Be the writer process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _step_back()
    _collect_seldom()
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)  # a key command that hangs must not look like a writer that lives
    worker = Worker(Channel(end))
    signal.signal(signal.SIGTERM, lambda number, frame: worker.terminate())
    worker.run()


if __name__ == "__main__":
    main()
