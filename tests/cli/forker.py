"""A process that runs many command lines, each in a child of its own: `python -m tests.cli.forker FOLDER < lines.json`.

Starting Python once for all of them is what makes it fast.  Reads a list of groups of command lines; each group runs in
a copy of FOLDER, line after line.  They find their standard output as the argument after FOLDER says: `pipe`, `closed`
(no file descriptor 1 at all) or `unread` (a pipe whose reader has gone).  Prints a list of [exit code, standard output,
standard error], one for every line, as JSON.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click
import numpy  # noqa: F401  # loaded once, for all children

from chainstore.cli.main import GROUP, main

Ending = tuple[int, str, str]


def run_group(lines: list[list[str]], folder: Path, stdout: str) -> list[Ending]:
    """Run command lines one after the other in one copy of `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "place"
        shutil.copytree(folder, place)
        return [run(line, place, stdout) for line in lines]


def run(line: list[str], place: Path, stdout: str) -> Ending:
    """Run one command line in a child process whose current folder is `place`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.chdir(place)
            os.dup2(err.fileno(), 2)
            _provide(stdout, out.fileno())
            _leave(line)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), _content(out), _content(err)


def _provide(stdout: str, file: int) -> None:
    if stdout == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]  # as Python does when it starts so
    elif stdout == "unread":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    else:
        os.dup2(file, 1)


def _leave(line: list[str]) -> None:
    code = 99  # what escapes from main is a traceback
    try:
        code = main(line)
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _content(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read().decode(errors="replace")  # type: ignore[attr-defined,no-any-return]


if __name__ == "__main__":
    for name in GROUP.list_commands(click.Context(GROUP)):
        GROUP.get_command(click.Context(GROUP), name)  # loaded once, for all children
    groups = json.load(sys.stdin)
    print(json.dumps([end for group in groups for end in run_group(group, Path(sys.argv[1]), sys.argv[2])]))
