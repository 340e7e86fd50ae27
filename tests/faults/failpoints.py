"""Failpoints: the moments at which a disk is about to change, and what is made to happen there.

Every operation of `chainstore.storage.fs` that changes something is one, and so are both sides of a commit of the
index, whose own file operations are not ours to see.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chainstore.errors import ChainError, StorageError, StoreFull
from chainstore.storage import fs, index

Fault = Callable[[], None]


def die() -> None:
    """Be killed here and now."""
    os.kill(os.getpid(), signal.SIGKILL)


def _storage_error() -> None:
    raise StorageError("simulated")


def _store_full() -> None:
    raise StoreFull("simulated")


def _io_error() -> None:
    raise OSError(errno.EIO, "simulated")


def _no_space() -> None:
    raise OSError(errno.ENOSPC, "simulated")


ERRORS: dict[str, Fault] = {
    "StorageError": _storage_error,
    "StoreFull": _store_full,
    "EIO": _io_error,
    "ENOSPC": _no_space,
}


@dataclass(slots=True)
class Failpoints:
    """Counts the operations that passed, and lets `fault` happen at some of them.

    Attributes:
        at: at which operation, counted from 1; 0: at none.
        lasting: also at every later one.
        passed: what they were.
    """

    fault: Fault = die
    at: int = 0
    lasting: bool = False
    torn: bool = False
    passed: list[str] = field(default_factory=list)

    def __call__(self, name: str, path: Path) -> None:
        self.passed.append(f"{name} {path.name}")
        if self._strikes():
            self.fault()

    def _strikes(self) -> bool:
        return bool(self.at) and (len(self.passed) == self.at or (self.lasting and len(self.passed) > self.at))

    @contextmanager
    def installed(self) -> Iterator["Failpoints"]:
        """Be in force inside the block, in this process and those it forks there."""
        before, end, write_all = fs.failpoint, index._Environment.end, fs._write_all

        def end_here(environment: index._Environment, reader: index.Reader, commit: bool) -> None:
            if commit:
                try:
                    self("before index commit", environment.path)
                except (OSError, ChainError) as error:
                    end(environment, reader, False)  # as LMDB does when it cannot commit
                    raise StorageError("simulated: the index was not committed") from error
            end(environment, reader, commit)
            if commit and self.fault is die:  # a commit that is done does not fail
                self("after index commit", environment.path)

        def tear(fd: int, parts: tuple[fs.Buffer, ...], offset: int) -> None:
            if self._strikes():
                whole = b"".join(bytes(part) for part in parts)
                write_all(fd, (whole[: len(whole) // 2],), offset)
                self.fault()
            write_all(fd, parts, offset)

        fs.failpoint = self if not self.torn else self._count_only
        index._Environment.end = end_here  # type: ignore[method-assign, assignment]
        if self.torn:
            fs._write_all = tear
        try:
            yield self
        finally:
            fs.failpoint, fs._write_all = before, write_all
            index._Environment.end = end  # type: ignore[method-assign]

    def _count_only(self, name: str, path: Path) -> None:
        self.passed.append(f"{name} {path.name}")
