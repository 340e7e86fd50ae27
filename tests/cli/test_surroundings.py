"""Surroundings: no command falls over a closed output, a missing home, a narrow terminal or the C locale."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.cli.main import SECTIONS
from tests.cli.lines import EVERY, lay_out

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [name for section in SECTIONS.values() for name in section]
LINES = {name: (*map(tuple, EVERY[name]), (name, "--help"), (name, "--no-such-option")) for name in COMMANDS}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "CHAIN_"))}
NO_HOME = {"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"}

Line = tuple[str, ...]
Ending = tuple[int, str, str]
SURROUNDINGS: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "a closed standard output": ("closed", {}, set()),
    "an output that nobody reads": ("unread", {}, set()),
    "no home": ("pipe", {}, NO_HOME),
    "forty columns and the C locale": ("pipe", {"COLUMNS": "40", "LANG": "C", "LC_ALL": "C"}, set()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository whose key is in it, so that it opens without a home, and with names beyond ASCII."""
    place = tmp_path_factory.mktemp("surroundings")
    lay_out(place)
    with cs.init(place / ".chain", encrypt=False) as repo:
        for n in range(3):
            state = {"w": np.arange(6, dtype=np.float32) + n, "cfg": {"größe": "µ", "n": n}, "odd": 1, "blob": b"\xff"}
            state["part"] = {"a": np.ones(2), "b": np.ones(3)}
            files = {"notes.txt": str(place / "notes.txt")}
            repo.commit(state, f"Übung {n} 雪", step=10 * n, metrics={"loss": 1 / (n + 1)}, files=files)
        repo.branch("wider", "main~2")
    return place


@cache
def endings(folder: Path, name: str) -> dict[Line, Ending]:
    """Run every line of every command in some surroundings, and return how each ended."""
    stdout, more, less = SURROUNDINGS[name]
    environment = {key: value for key, value in CLEAN.items() if key not in less} | more
    if not less:
        environment["CHAIN_CONFIG_DIR"] = str(folder.parent / "settings")
    return run_all(folder, list(LINES.values()), stdout, environment)


def run_all(
    folder: Path, groups: list[tuple[Line, ...]], stdout: str, environment: dict[str, str]
) -> dict[Line, Ending]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.forker", str(folder), stdout],
        input=json.dumps(groups),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for group in groups for line in group]
    return dict(zip(lines, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_no_command_crashes_in(folder, name, command):
    for line in LINES[command]:
        code, out, err = endings(folder, name)[line]
        assert "Traceback" not in err and "internal error" not in err, (line, err)
        wanted = {2} if "--no-such-option" in line else {0}
        if command in ("key", "rekey") or (command == "init" and name == "no home"):
            wanted |= {1, 12}  # this repository has no keys, and without a home there is none to be made
        assert code in wanted, (line, code, out, err)


def test_a_result_reaches_a_narrow_terminal_whole(folder):
    code, out, _ = endings(folder, "forty columns and the C locale")["log",]
    assert code == 0 and "step 20" in out and len(out.splitlines()) == 3


def test_what_ascii_lacks_becomes_a_question_mark(folder):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    lines = (("log",), ("stats", "--plot"), ("show",), ("cat", "main", "cfg"))
    found = run_all(folder, [lines], "pipe", {**CLEAN, **ascii_only})
    assert all(code == 0 and out.isascii() for code, out, _ in found.values())
    assert "?bung 2 ?" in found["log",][1] and "#" in found["stats", "--plot"][1]


def test_no_file_becomes_the_standard_output_where_that_is_closed(folder, tmp_path):
    """A file opened while descriptor 1 is free gets it, and whatever is printed then goes into the file."""
    with cs.init(tmp_path / ".chain", encrypt=False) as repo:
        repo.commit({"n": 1}, "one")
    command = f"{sys.executable} -m chainstore.cli.main -C {tmp_path} commit --as-file {folder / 'notes.txt'} >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, env={**CLEAN, "PYTHONPATH": str(ROOT)}).returncode == 0
    with cs.open(tmp_path) as repo:
        assert [commit.message for commit in repo.log()] == ["", "one"] and repo.verify("data").ok


def test_an_output_that_is_full_is_16_and_no_traceback(folder):
    command = f"{sys.executable} -m chainstore.cli.main -C {folder} log > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, env=CLEAN)
    assert done.returncode == 16 and "Traceback" not in done.stderr and "the output: No space" in done.stderr
