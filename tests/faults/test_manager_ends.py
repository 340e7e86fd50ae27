"""What becomes of snapshots where nobody calls `close`: scripts that end, are killed, or forget to load."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainstore.manager.manager import SnapshotManager
from chainstore.repository import Repository
from chainstore.repository import open as open_repository

LONG_SECONDS = 60.0
ENDINGS = {
    "end": ("", 0),
    "exception": ("raise ValueError('on purpose')", 1),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "os._exit": ("import os; os._exit(4)", 4),
}

PROJECT = """
import os, sys
import torch
from chainstore import SnapshotManager

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())

manager = SnapshotManager(project_id="gpt", api_key="secret", save_interval=3, encryption=True)
start = manager.resume(model, optimizer) if "load" in sys.argv else 0
print("start", start, flush=True)
for step in range(start, 1000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if manager.step(step, model, optimizer):
        print("captured", step, flush=True)
    if "stop" in sys.argv and step >= start + 10:
        break
    import time; time.sleep(0.02)
"""

FOLDER = """
import sys
import torch
from chainstore.snapshot import SnapshotManager

model = torch.nn.Linear(4, 4)
manager = SnapshotManager(snapshot_dir="./snapshots", interval=3, max_snapshots=5)
try:
    state = manager.load_latest()
    model.load_state_dict(state["model"])
    start = state["step"] + 1
except FileNotFoundError:
    start = 0
print("start", start, flush=True)
for step in range(start, 1000):
    torch.nn.init.constant_(model.weight, float(step))
    manager.save({"step": step, "model": model.state_dict()})
    print("captured", step, flush=True)
    if "stop" in sys.argv and step >= start + 10:
        break
"""


class Script:
    """A script in a process of its own."""

    def __init__(self, text: str, folder: Path, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", "-c", text, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[tuple[str, int]] = []

    def lines(self) -> Iterator[tuple[str, int]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, number = line.partition(" ")
            self.said.append((word, int(number)))
            yield self.said[-1]

    def kill_after(self, captures: int) -> None:
        for word, _ in self.lines():
            captures -= word == "captured"
            if captures == 0:
                self._process.kill()
        assert self.end()[0] == -signal.SIGKILL

    def end(self) -> tuple[int, str]:
        for _ in self.lines():
            pass
        _, errors = self._process.communicate(timeout=LONG_SECONDS)
        return self._process.returncode, errors

    @property
    def captured(self) -> list[int]:
        return [number for word, number in self.said if word == "captured"]

    @property
    def start(self) -> int:
        return next(number for word, number in self.said if word == "start")


def steps_of(repo: Repository, branch: str = "main") -> list[int | None]:
    """Return the steps of a branch that can be loaded, once the writer process that may still be at it is done."""
    with repo.hold_branch(branch, wait_seconds=10):
        assert repo.verify("links").ok
        return [commit.step for commit in repo.log(branch) if commit.id not in repo.marks()]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_what_was_captured_is_durable_however_the_interpreter_ends(tmp_path: Path, mode: str) -> None:
    scripts = {}
    for name, (ending, _) in ENDINGS.items():
        text = f"""
            import numpy as np
            from chainstore import SnapshotManager
            manager = SnapshotManager({name!r}, mode={mode!r}, max_pending=2)
            for step in range(1, 6):
                manager.save({{"step": step, "w": np.full(100_000, step)}})
            {ending}
        """
        scripts[name] = Script(textwrap.dedent(text), tmp_path)
    for name, script in scripts.items():
        status, errors = script.end()
        assert status == ENDINGS[name][1], errors
        assert ("Traceback" in errors) == (name == "exception"), errors
    for name in scripts:
        with open_repository(tmp_path / name) as repo:
            steps = steps_of(repo)
            if mode == "thread" and name == "os._exit":  # which asks for nothing to be done any more
                assert steps in ([5, 4, 3, 2, 1], [4, 3, 2, 1], [3, 2, 1])
            else:
                assert steps == [5, 4, 3, 2, 1], name
            assert all((repo.checkout(f"step:{step}")["w"] == step).all() for step in steps)


def test_the_style_of_a_project_survives_kills_and_a_script_that_forgets_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIN_HOME", str(tmp_path))
    first = Script(PROJECT, tmp_path, "load")
    first.kill_after(3)
    second = Script(PROJECT, tmp_path, "load")
    second.kill_after(2)
    third = Script(PROJECT, tmp_path, "load", "stop")
    status, errors = third.end()
    assert status == 0 and "Traceback" not in errors, errors
    with open_repository(tmp_path / "gpt") as repo:
        steps = steps_of(repo)
        assert repo.branches().keys() == {"main"} and repo.encrypted
    assert first.start == 0
    assert second.start > first.captured[-1] and third.start > second.captured[-1]
    captured = {*first.captured, *second.captured, *third.captured}
    assert captured <= {*steps} and steps == sorted(steps, reverse=True)  # type: ignore[type-var]

    forgetful = Script(PROJECT, tmp_path, "stop")
    status, errors = forgetful.end()
    assert status == 0 and "without having loaded" in errors, errors
    with open_repository(tmp_path / "gpt") as repo:
        assert repo.branches().keys() == {"main", "main-restart-1"}
        assert steps_of(repo) == steps
        captured_later = forgetful.captured[::-1]
        assert captured_later and steps_of(repo, "main-restart-1")[: len(captured_later)] == captured_later


def test_the_style_of_a_folder_survives_kills_and_keeps_five(tmp_path: Path) -> None:
    first = Script(FOLDER, tmp_path)
    first.kill_after(7)
    second = Script(FOLDER, tmp_path)
    second.kill_after(7)
    third = Script(FOLDER, tmp_path, "stop")
    status, errors = third.end()
    assert status == 0 and "Traceback" not in errors, errors
    assert first.start == 0
    assert second.start in (first.captured[-1] + 1, first.captured[-1] + 2)  # one more than it could say
    assert third.start in (second.captured[-1] + 1, second.captured[-1] + 2)
    newest = third.captured[-1]
    with open_repository(tmp_path / "snapshots") as repo:
        assert repo.branches().keys() == {"main"}
        assert steps_of(repo) == list(range(newest, newest - 5, -1))
        for step in range(newest, newest - 5, -1):
            assert (repo.checkout(f"step:{step}")["model"]["weight"] == step).all()


@pytest.mark.parametrize("begin", [0, 1])
def test_a_run_that_forgets_to_load_is_known_by_where_it_begins(tmp_path: Path, begin: int) -> None:
    root = tmp_path / "run"
    with SnapshotManager(root, interval=5, mode="sync") as manager:
        for step in range(1, 8):
            manager.step(step)
    forgot = pytest.warns(RuntimeWarning, match="without having loaded")
    with SnapshotManager(root, interval=10, mode="sync") as manager, forgot:
        for step in range(begin, 12):  # its first snapshot is further on than the newest there is
            manager.step(step)
    with SnapshotManager(root, branch="main-restart-1", mode="sync") as manager:
        assert manager.resume() == (11 if begin == 0 else 10)
    with open_repository(root) as repo:
        assert steps_of(repo) == [5] and steps_of(repo, "main-restart-1")[0] == 10
