"""Output: results on standard output, as text or as one JSON object; everything else on standard error.

With `--json` standard output holds exactly one object, also when the command fails:

    {"schema": "chain.log/1", ...}        {"error": {"code": "wrong-key", "message": "...", "hint": "..."}}
"""

import json
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import TextIO

import click

from chainstore.cli.progress import ProgressLine
from chainstore.cli.wording import printable
from chainstore.observe import Event, Notice, Progress


class Output:
    """Where a command's results, notices and errors go.

    Attributes:
        json: results are JSON.  quiet: notices are left out.  color: results may be coloured.
        progress: draws a line for work under way; None for nothing.
    """

    def __init__(self, *, color: bool = False) -> None:
        self.json = False
        self.quiet = False
        self.color = color
        self.progress: ProgressLine | None = None
        self._lock = threading.Lock()

    def result(self, schema: str, fields: Mapping[str, object], lines: Iterable[str] | str) -> None:
        """Print what a command found: `fields` as JSON, or `lines`, which are read one at a time.

        Args:
            schema: "chain.<command>/<version>"; a field is never removed or given another meaning within a version.
        """
        if self.json:
            self._write(sys.stdout, json.dumps({"schema": schema, **fields}, ensure_ascii=False, allow_nan=False))
            return
        for line in [lines] if isinstance(lines, str) else lines:
            self._write(sys.stdout, line)

    def raw(self, data: bytes) -> None:
        """Print bytes as they are."""
        with self._lock:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def style(self, text: str, color: str | None = None, *, bold: bool = False) -> str:
        """Return text in a colour, where the reader's terminal shows colours."""
        return click.style(text, fg=color, bold=bold or None) if self.color and text else text

    def say(self, text: str) -> None:
        """Tell a person something that is not the result; left out with --quiet."""
        if not self.quiet:
            self._write(sys.stderr, printable(text))

    def error(self, code: str, message: str, hint: str) -> None:
        """Print why a command failed, and what helps."""
        if self.json:
            fields = {"code": code, "message": message, "hint": hint}
            self._write(sys.stdout, json.dumps({"error": fields}, ensure_ascii=False))
            return
        label = click.style("error:", fg="red", bold=True) if self.color and sys.stderr.isatty() else "error:"
        self._write(sys.stderr, f"{label} {printable(message)}" + (f"\nhint: {printable(hint)}" if hint else ""))

    def observe(self, event: Event) -> None:
        """Listen to the engine: notices are printed, progress is drawn; called from any thread."""
        if isinstance(event, Notice):
            self.say(event.text)
        elif isinstance(event, Progress) and self.progress is not None:
            with self._lock:
                self.progress.update(event)

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            if self.progress is not None:
                self.progress.clear()
            encoding = stream.encoding or "utf-8"
            # names may hold what the terminal's encoding lacks; a question mark is better than no answer
            stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
            if stream is sys.stderr:
                stream.flush()
