"""A network disk with two hosts: a FUSE mount whose type reads `fuse.glusterfs`, and two processes which have local
disks, caches and names of their own.

The locks of the mount are the kernel's, which both see, though nobody may know that: so taking over is asked for.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.fuse_mount import mounted
from tests.faults.needs import needs_fuse, needs_root_loop

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120

NAMED = """
import socket, sys
socket.gethostname = lambda: sys.argv[1]
import chainstore as cs
path = sys.argv[2]
"""
LOG = """
with cs.open(path, readonly=True) as repo:
    print([commit.message for commit in repo.log()])
"""
WORKER = """
from chainstore.errors import ChainError
with cs.open(path, create=True, take_over="take" in sys.argv) as repo:
    print("open", flush=True)
    for line in sys.stdin:
        try:
            repo.commit({"line": line.strip()}, line.strip())
            print("done", flush=True)
        except ChainError as error:
            print(error.code, error, flush=True)
"""


@dataclass
class Host:
    """A machine of its own, as far as a process can tell: name, local disk, cache."""

    name: str
    home: Path
    repository: Path
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        folder = self.home / self.name
        folder.mkdir(exist_ok=True)
        settings = {"CHAIN_CONFIG_DIR": str(self.home / "settings"), "CHAIN_CACHE_DIR": str(folder / "cache")}
        return os.environ | settings | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}

    def run(self, code: str, *arguments: str, fails: bool = False) -> str:
        """Run Python here; return what it printed, errors too."""
        command = [sys.executable, "-c", NAMED + code, self.name, str(self.repository), *arguments]
        return self._run(command, fails)

    def chain(self, *arguments: str, fails: bool = False) -> str:
        """Run a command here; return what it printed, errors too."""
        command = [sys.executable, "-m", "chainstore.cli.main", "-C", str(self.repository), *arguments]
        return self._run(command, fails)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a worker that commits each line it is sent; it has opened the repository when this returns."""
        command = [sys.executable, "-c", NAMED + WORKER, self.name, str(self.repository), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        worker = subprocess.Popen(command, env=self.environment, cwd=self.home, text=True, **pipes)
        self.started.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "open\n", worker.communicate()[1]
        return worker

    def indexes(self) -> list[Path]:
        return sorted((self.home / self.name).rglob("data.mdb"))

    def _run(self, command: list[str], fails: bool) -> str:
        limits = {"capture_output": True, "text": True, "timeout": PATIENCE_SECONDS}
        done = subprocess.run(command, env=self.environment, cwd=self.home, **limits)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout + done.stderr


def ask(worker: "subprocess.Popen[str]", line: str) -> str:
    """Let a worker commit, and return what it says."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(f"{line}\n")
    worker.stdin.flush()
    return worker.stdout.readline()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Give two hosts with one network disk; the local disks are real ones, where LMDB is at home."""
    with mounted(tmp_path / "backing", tmp_path / "net", subtype="glusterfs"):
        one, two = (Host(name, tmp_path, tmp_path / "net" / "runs" / "linear") for name in ("one", "two"))
        try:
            yield one, two
        finally:
            for worker in (*one.started, *two.started):
                worker.kill()
                worker.communicate()


def quick_start() -> str:
    """Return the code of README's quick start, which opens "runs/linear"."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    every_script, chained = blocks[0], next(block for block in blocks if 'cs.open("runs/linear", create=True)' in block)
    return f"import os\nos.chdir(os.path.dirname(os.path.dirname(path)))\n{every_script}{chained}"


@needs_fuse
def test_the_quick_start_works_without_a_flag_and_from_a_second_host(hosts: tuple[Host, Host]) -> None:
    pytest.importorskip("torch")
    one, two = hosts
    one.repository.parent.mkdir()
    code = quick_start()
    one.run(code)
    first = one.run(LOG)
    assert first.count(",") >= 3
    assert len(one.indexes()) == 1
    assert not list(one.repository.rglob("*.mdb"))
    # reading needs nothing
    assert two.run(LOG) == first
    # writing needs to be asked for, once
    assert "IndexElsewhere" in two.run("cs.open(path)", fails=True)
    said = two.chain("rebuild-index", "--take-over")
    assert "is on a network disk; its index was made in" in said and str(two.home / "two") in said
    two.run(code)
    assert two.run(LOG) == first  # everything was there, so there was nothing to train
    two.run("cs.open(path).commit({'more': 1}, 'from the second host')")
    assert "from the second host" in one.run(LOG)
    assert "index-elsewhere" in one.chain("--json", "tag", "v1", fails=True)
    assert json.loads(one.chain("--json", "verify"))["ok"]


@needs_fuse
def test_commands_need_no_flag_and_say_where_the_index_is(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    one.repository.parent.mkdir()
    (one.home / "weights.bin").write_bytes(b"weights" * 999)
    said = one.chain("init")
    assert said.count("its index was made in") == 1
    said = one.chain("commit", "weights.bin", "--as-file", "-m", "first")
    assert "its index was made in" not in said
    status = json.loads(one.chain("--json", "status"))
    assert Path(status["index"]).is_relative_to(one.home / "one" / "chainstore" / "index")
    assert "on this machine" in one.chain("status")
    findings = {each["what"]: each for each in json.loads(one.chain("--json", "doctor"))["findings"]}
    assert (findings["disk"]["state"], findings["index"]["state"], findings["commits"]["state"]) == ("ok", "warn", "ok")
    assert len(one.indexes()) == 1  # doctor leaves none behind
    said = two.chain("status")
    assert "is not on this machine; its index was made in" in said
    assert "for reading only" in said
    said = two.chain("commit", "weights.bin", "--as-file", "-m", "second", fails=True)
    assert "--take-over" in said
    assert "first" in two.chain("log")


@needs_fuse
def test_the_old_host_is_fenced(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    old = one.start()
    assert ask(old, "a") == "done\n"
    new = two.start("take")
    assert ask(new, "b") == "done\n"
    said = ask(old, "c")
    assert said.startswith("index-elsewhere") and "was taken over by host two" in said
    assert ask(new, "d") == "done\n"
    assert ask(old, "e").startswith("index-elsewhere")
    for host in (one, two):
        assert host.run(LOG) == "['d', 'b', 'a']\n"
    again = one.start("take")
    assert ask(again, "f") == "done\n"
    assert ask(new, "g").startswith("index-elsewhere")
    assert two.run(LOG) == "['f', 'd', 'b', 'a']\n"


@needs_fuse
def test_a_reader_elsewhere_follows_a_writer(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    writer = one.start()
    assert ask(writer, "0") == "done\n"
    follow = """
with cs.open(path, readonly=True) as repo:
    for line in sys.stdin:
        print(repo.checkout()["line"], repo.head.message, flush=True)
"""
    command = [sys.executable, "-c", NAMED + follow, two.name, str(two.repository)]
    with subprocess.Popen(
        command, env=two.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        for number in range(1, 6):
            assert ask(writer, str(number)) == "done\n"
            assert ask(reader, "look") == f"{number} {number}\n"
    assert [path.parent.parent.name[-8:] for path in two.indexes()] == [".private"]


@needs_fuse
def test_no_local_disk_is_an_error_that_says_what_to_name(hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    there = str(one.repository.parents[1])
    one.repository.parent.mkdir()
    code = f"""
import os
os.environ |= {{"TMPDIR": {there!r} + "/t", "CHAIN_CACHE_DIR": {there!r} + "/c"}}
cs.init(path)
"""
    said = one.run(code, fails=True)
    assert "UnsuitablePlace" in said and said.count("is on fuse.glusterfs") == 2
    one.run(code.replace("init(path", f"init(path, index_dir={str(one.home / 'local')!r}"))
    assert list((one.home / "local").rglob("data.mdb"))


@needs_root_loop
def test_read_only_media_that_lack_the_index_are_read(tmp_path: Path) -> None:
    host = Host("one", tmp_path, tmp_path / "media" / "run")
    there = tmp_path / "media"
    there.mkdir()
    host.run("cs.init(path).commit({'n': 1}, 'first')")
    for path in sorted((host.repository / "index").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    subprocess.run(["mount", "--bind", str(there), str(there)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(there)], check=True)
        assert host.run(LOG) == "['first']\n"
        assert host.run(LOG) == "['first']\n"
        assert "ReadOnly" in host.run("cs.open(path)", fails=True)
    finally:
        subprocess.run(["umount", str(there)], check=True)
    assert [path.parent.parent.name[-8:] for path in host.indexes()] == [".private"]
