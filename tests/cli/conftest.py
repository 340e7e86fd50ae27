"""A command line to try: run in this process where that says the same, with its two streams and its exit code."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.cli.main import main


@dataclass(frozen=True)
class Result:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


Chain = Callable[..., Result]


@pytest.fixture
def chain(capsys: pytest.CaptureFixture[str]) -> Chain:
    """Run a command line given as words."""

    def run(*words: object) -> Result:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is also the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def repo(place: Path) -> Path:
    """`.chain` in the current folder: five commits on main, the third tagged `best`, and a branch `wider` there."""
    with cs.init(place / ".chain") as repo:
        for n in range(5):
            state = {"w": np.arange(6, dtype=np.float32).reshape(2, 3) + n, "cfg": {"lr": 0.1, "n": n}}
            repo.commit(state, f"commit {n}\nmore", step=10 * n, metrics={"loss": 1 / (n + 1)})
        repo.tag("best", "main~2")
        repo.branch("wider", "main~2")
    return place / ".chain"
