"""Holding a branch: one run at a time, told who the other is, until the last process that shares the hold has ended."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chainstore as cs
from chainstore.errors import ForkedHandle, InvalidRefName, Locked, ReadOnly, StorageError
from chainstore.repository import Repository, init
from tests.repository.conftest import Child, script


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with init(tmp_path / "repo") as repo:
        yield repo


def test_the_second_is_told_who_holds_the_branch_and_since_when(repo: Repository) -> None:
    with repo.hold_branch("main") as hold:
        assert hold.branch == "main"
        with pytest.raises(Locked) as refused:
            repo.hold_branch("main")
        assert refused.value.exit_code == 11
        assert f"process {os.getpid()} on " in refused.value.by
        assert "since 20" in refused.value.by
        assert "branch 'main' is held by" in str(refused.value)
        with repo.hold_branch("other"):
            pass
        repo.commit({"plain": "commits ask nobody"})
    with repo.hold_branch("main"):
        pass


def test_another_process_is_told_too(repo: Repository, child: Child) -> None:
    code = """
    with cs.open(root) as repo:
        try:
            repo.hold_branch("main")
            print("held")
        except errors.Locked as error:
            print(error.by)
    """
    with repo.hold_branch("main"):
        assert f"process {os.getpid()} on" in child(code, repo.path).stdout
    assert child(code, repo.path).stdout == "held\n"


def test_whoever_waits_gets_it_when_it_is_given_back(repo: Repository) -> None:
    hold = repo.hold_branch("main")
    timer = threading.Timer(0.2, hold.close)
    timer.start()
    started = time.monotonic()
    with repo.hold_branch("main", wait_seconds=30):
        assert time.monotonic() - started >= 0.15
    timer.join()
    with repo.hold_branch("main"), pytest.raises(Locked) as refused:
        repo.hold_branch("main", wait_seconds=0.1)
    assert refused.value.waited_seconds >= 0.1


def test_it_ends_with_its_process_and_names_no_branch_on_disk(repo: Repository, child: Child) -> None:
    child('repo = cs.open(root); hold = repo.hold_branch("secret-name"); os._exit(0)', repo.path)
    (file,) = repo.path.joinpath("leases").glob("*.branch")
    assert "secret" not in file.name
    assert b"secret" not in file.read_bytes()
    with repo.hold_branch("secret-name"):
        pass
    assert repo.gc().freed_bytes >= 0
    assert repo.verify().damaged == []


def test_a_process_that_was_given_the_hold_keeps_it_beyond_the_first(repo: Repository, tmp_path: Path) -> None:
    hold = repo.hold_branch("main")
    code = 'print("has it", flush=True); sys.stdin.read()'
    fd = hold.fileno()
    with subprocess.Popen(
        [sys.executable, "-c", script(code), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[fd],
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        hold.close()
        hold.close()
        with pytest.raises(Locked) as refused:
            repo.hold_branch("main")
        assert f"process {os.getpid()}" in refused.value.by
        other.stdin.close()
        with repo.hold_branch("main", wait_seconds=30):
            pass
    with pytest.raises(StorageError, match="closed"):
        hold.fileno()


def test_a_forked_child_neither_has_nor_ends_it(repo: Repository) -> None:
    hold = repo.hold_branch("main")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            hold.close()
            try:
                hold.fileno()
            except ForkedHandle:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(Locked):
        repo.hold_branch("main")
    hold.close()


def test_what_cannot_be_held_is_refused(repo: Repository) -> None:
    with pytest.raises(InvalidRefName):
        repo.hold_branch("a..b")
    with cs.open(repo.path, readonly=True) as reader, pytest.raises(ReadOnly):
        reader.hold_branch("main")
