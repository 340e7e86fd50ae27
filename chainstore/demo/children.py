"""The demo's training processes: start one, listen to it, kill it by its process id."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from chainstore.errors import ChainError

Event = dict[str, Any]  # what a training process says: {"event": "step", "step": 7, "loss": 3.2}


class TrainingProcess:
    """One process of `chainstore.demo.training`; leaving its context ends it, whatever happened.

    Args:
        arguments: its command line after the module's name.
        errors: a file that takes what it writes to standard error, shown if it fails by itself.
    """

    def __init__(self, *arguments: str, errors: Path) -> None:
        self._errors = errors
        command = [sys.executable, "-m", "chainstore.demo.training", *arguments]
        with errors.open("wb") as sink:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, text=True, encoding="utf-8"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _pipe(self) -> TextIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def events(self) -> Iterator[Event]:
        """Yield what the process says, as it says it, until it ends.

        Raises:
            ChainError: it ended with an error that is not our kill; carries what it wrote to standard error.
        """
        for line in self._pipe:
            if line.endswith("\n"):  # a process that is killed while it writes leaves half a line
                yield json.loads(line)
        code = self._process.wait()
        if code:
            raise ChainError(
                f"a training process of the demo ended with exit code {code}",
                hint=self._errors.read_text(errors="replace").strip(),
            )

    def kill(self) -> list[Event]:
        """Send SIGKILL, wait until the process is gone, and return what it had said and nobody had read yet."""
        self._process.kill()
        self._process.wait()
        return [json.loads(line) for line in self._pipe if line.endswith("\n")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # does nothing to a process that has ended
        self._process.wait()
        self._pipe.close()
