"""`chain` as a process: what it loads, how it ends at a signal or a closed pipe, what it draws on a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import chainstore as cs

CHAIN = [sys.executable, "-m", "chainstore.cli.main"]
ESCAPE = "\x1b["
PATIENCE_SECONDS = 60


def loaded_by(*words: str) -> list[str]:
    program = """
import sys
from chainstore.cli.main import main
code = main(sys.argv[1:])
print(*sorted({"torch", "numpy", "rich"} & set(sys.modules)), file=sys.stderr)
raise SystemExit(code)
"""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.mark.parametrize(
    "words",
    [
        ["log"],
        ["log", "--json"],
        ["branch"],
        ["tag"],
        ["reflog"],
        ["verify", "--quick"],
        ["verify"],
        ["show"],
        ["stats"],
        ["status"],
        ["ls"],
        ["du"],
        ["log", "--graph", "--stat"],
        ["stats", "--plot"],
        ["merge-base", "main", "wider"],
        ["config", "list"],
        ["key", "list"],
        ["switch", "wider"],
        ["checkout", "best"],
        ["--help"],
        ["commit", "--help"],
    ],
)
def test_looking_loads_neither_torch_nor_numpy_nor_rich(repo, words):
    assert loaded_by(*words) == []


def test_committing_files_and_arrays_does_not_load_torch(repo):
    Path("notes.txt").write_text("x")
    assert "torch" not in loaded_by("commit", "--as-file", "notes.txt", "-q")


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(fd: int, pattern: str) -> str:
    """Return what came from a terminal up to something that matches; fails after PATIENCE_SECONDS."""
    seen, end = "", time.monotonic() + PATIENCE_SECONDS
    while not re.search(pattern, seen):
        ready, _, _ = select.select([fd], [], [], max(end - time.monotonic(), 0))
        assert ready, f"{pattern!r} did not come; there was {seen!r}"
        seen += os.read(fd, 65536).decode()
    return seen


def rest(fd: int) -> str:
    """Return what still waits in a terminal."""
    seen = ""
    while select.select([fd], [], [], 0.05)[0]:
        seen += os.read(fd, 65536).decode()
    return seen


def test_ctrl_c_within_a_big_commit_is_130_and_commits_nothing(chain, place):
    assert chain("init").code == 0
    with open("big", "wb") as file:
        file.truncate(8 << 30)  # a hole: nothing on disk, some ten seconds of hashing
    with terminal() as (ours, theirs):
        process = subprocess.Popen([*CHAIN, "commit", "--as-file", "big"], stderr=theirs, stdout=subprocess.PIPE)
        line = read_until(ours, r"commit  [\d.]+ \w+ of 8.59 GB  \d+%  [\d.]+ \w+/s  .* left")
        assert line.startswith("\r")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        ending = rest(ours)
    assert process.returncode == 130 and out == b""
    assert "interrupted" in ending and "Traceback" not in ending
    assert chain("log", "--json").json["commits"] == []
    assert chain("verify", "--read-data").code == 0


def test_nothing_is_drawn_where_nobody_watches(chain, place):
    assert chain("init").code == 0
    with open("big", "wb") as file:
        file.truncate(1 << 30)
    done = subprocess.run([*CHAIN, "commit", "--as-file", "big"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and "\r" not in done.stdout


def test_a_reader_that_has_enough_is_not_complained_about(repo):
    done = subprocess.run(
        f"{' '.join(CHAIN)} log | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert len(done.stdout.splitlines()) == 2 and done.stdout.endswith("\n0\n") and not done.stderr
    for words in (["log"], ["log", "--json"], ["branch"], ["show"], ["--help"]):
        assert unread(words) == (0, "")


def unread(words: list[str]) -> tuple[int, str]:
    """Return how a command ends, and what it says, when nobody is there to read its result."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*CHAIN, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    return done.returncode, done.stderr


def test_damage_is_4_even_if_nobody_reads_the_report(place):
    with cs.init(place / ".chain") as repo:
        repo.commit({"w": os.urandom(200_000)}, "big")
    for pack in (place / ".chain" / "packs").rglob("*"):
        if pack.is_file():
            os.truncate(pack, pack.stat().st_size // 2)
    assert unread(["verify", "--read-data"]) == (4, "")


def on_terminal(words: list[str], environment: dict[str, str]) -> str:
    with terminal() as (ours, theirs):
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        subprocess.run([*CHAIN, *words], stdout=theirs, env={**clean, "TERM": "xterm", **environment}, check=True)
        return rest(ours)


def test_colour_is_for_terminals_and_no_color_is_honoured(chain, repo):
    assert ESCAPE not in chain("log").out
    assert ESCAPE in on_terminal(["log"], {})
    assert ESCAPE in on_terminal(["log"], {"NO_COLOR": ""})
    assert ESCAPE not in on_terminal(["log"], {"NO_COLOR": "1"})
    assert ESCAPE not in on_terminal(["log"], {"TERM": "dumb"})
    assert ESCAPE in on_terminal(["stats", "--plot"], {})
    assert ESCAPE not in on_terminal(["stats", "--plot"], {"NO_COLOR": "1"})
    assert ESCAPE not in chain("stats", "--plot").out


def test_a_passphrase_is_asked_for_on_a_terminal_and_not_shown(place):
    def ask(words: list[str], answers: list[str]) -> tuple[int, str]:
        with terminal() as (ours, theirs):
            process = subprocess.Popen(
                [*CHAIN, *words],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,  # click asks on /dev/tty where there is one; the test's own must not answer
            )
            seen = ""
            for answer in answers:
                seen += read_until(ours, ": $")
                os.write(ours, f"{answer}\n".encode())
            code = process.wait(PATIENCE_SECONDS)
            return code, seen + rest(ours)

    code, seen = ask(["init", "--passphrase"], ["open sesame", "open sesame"])
    assert code == 0 and "open sesame" not in seen
    code, seen = ask(["log"], ["open sesame"])
    assert code == 0 and "nothing was committed yet" in seen and "open sesame" not in seen
    code, seen = ask(["log"], ["close sesame"])
    assert code == 12 and "close sesame" not in seen


def test_without_a_terminal_a_passphrase_is_not_asked_for(chain, place, monkeypatch):
    monkeypatch.setenv("CHAIN_PASSPHRASE", "open sesame")
    assert chain("init", "--passphrase").code == 0
    monkeypatch.delenv("CHAIN_PASSPHRASE")
    done = subprocess.run([*CHAIN, "log"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 12 and "CHAIN_PASSPHRASE" in done.stderr and "passphrase" in done.stderr


def test_quiet_and_no_progress_keep_standard_error_empty(chain, place):
    assert chain("init", "-q").err == ""
    assert chain("log", "-q").err == ""


def test_a_passphrase_is_added_as_a_key_on_a_terminal(chain, repo, monkeypatch):
    with terminal() as (ours, theirs):
        command = [*CHAIN, "key", "add", "--new-passphrase", "--label", "ada"]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        for _ in range(2):
            read_until(ours, ": $")
            os.write(ours, b"open sesame\n")
        code, seen = process.wait(PATIENCE_SECONDS), rest(ours)
    assert code == 0 and "open sesame" not in seen
    monkeypatch.setenv("CHAIN_PASSPHRASE", "open sesame")
    assert [slot["opened"] for slot in chain("key", "list", "--json").json["keys"]] == [False, True]


def completed(words: str, position: int) -> list[str]:
    environment = {**os.environ, "_CHAIN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = subprocess.run(CHAIN, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_a_shell_completes_commands_options_and_commands_below_others():
    assert completed("chain re", 1) == ["reset", "reflog", "repack", "rebuild-index", "rekey"]
    assert completed("chain log --gr", 2) == ["--graph"]
    assert completed("chain key r", 2) == ["remove", "rotate"]


def test_a_script_for_every_shell_is_printed(chain, place):
    for shell, sign in (("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --no-files")):
        done = chain("completion", shell)
        assert done.code == 0 and sign in done.out and "_CHAIN_COMPLETE" in done.out
    assert chain("completion", "csh").code == 2
