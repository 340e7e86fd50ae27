"""Files beside the state are those of the step, and one that cannot be read costs a warning, not a snapshot."""

import mmap
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.errors import InvalidInput
from chainstore.manager.beside import MOST_BYTES, Beside
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.messages import Durable, Request
from chainstore.manager.process import ProcessWriter
from chainstore.manager.shipping import Shipping
from chainstore.manager.storing import store_leaves
from chainstore.observe import Event, Notice, silent
from chainstore.repository import FileContent, Repository, flatten, init
from chainstore.repository import open as open_repository

MODES = ("process", "thread", "sync")


def manage(root: Path, mode: Any, **options: Any) -> SnapshotManager:
    return SnapshotManager(root, mode=mode, on_signal=(), max_pending=8, when_full="wait", **options)


def warned(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught]


# ---- at the moment of the capture


@pytest.mark.parametrize("mode", MODES)
def test_a_file_is_the_one_of_the_step_whatever_becomes_of_it_afterwards(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "progress.json"
    state = {"w": np.zeros(200_000)}
    with manage(tmp_path / "run", mode, track_files=[path]) as manager:
        for step in range(1, 13):
            path.write_text(f"step {step}")
            state["w"][:] = step
            manager.save({**state, "step": step})
            path.write_text(f"after {step}")
    with open_repository(tmp_path / "run") as repo:
        for step in range(1, 13):
            snapshot = repo[f"step:{step}"]
            assert snapshot.read_file("progress.json") == f"step {step}".encode()
            assert snapshot.load()["w"][0] == step


@pytest.mark.parametrize("mode", MODES)
def test_small_and_large_files_arrive_whole_with_their_executable_bits(tmp_path: Path, mode: str) -> None:
    contents = {"empty": b"", "run.sh": b"#!/bin/sh\n", "at-most": os.urandom(MOST_BYTES)}
    contents["large.sh"] = os.urandom(MOST_BYTES + 1)
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    with manage(tmp_path / "run", mode, track_files=[tmp_path / name for name in contents]) as manager:
        manager.save({"step": 1})
    with open_repository(tmp_path / "run") as repo:
        snapshot = repo["main"]
        for name, data in contents.items():
            assert snapshot.read_file(name) == data
            assert snapshot.file_info(name) == (len(data), name.endswith(".sh"))


def test_what_is_small_travels_and_what_is_large_is_left_where_it_is(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(MOST_BYTES))
    large.write_bytes(bytes(MOST_BYTES + 1))
    found = Beside({"small": str(small), "large": str(large)}, silent).now()
    assert found == {"small": FileContent(bytes(MOST_BYTES)), "large": str(large)}


def test_changes_that_carry_no_time_of_their_own_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"000")
    beside = Beside({"a": str(path)}, silent)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 3) as mapped:
        for number in range(100):
            mapped[:] = data = b"%03d" % number
            assert beside.now()["a"] == FileContent(data)


# ---- files that cannot be read


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_is_gone_is_told_of_once_until_it_is_there_again(tmp_path: Path, mode: str) -> None:
    gone, there = tmp_path / "gone.yaml", tmp_path / "there.yaml"
    there.write_text("there")
    seen: list[Event] = []

    def told() -> int:
        return sum(isinstance(event, Notice) and event.code == "file-not-stored" for event in seen)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with manage(tmp_path / "run", mode, track_files=[gone, there], observer=seen.append) as manager:
            counts = []
            for step in range(1, 7):
                if step == 4:
                    gone.write_text("back")
                elif step == 5:
                    gone.unlink()
                manager.save({"step": step})
                counts.append(told())
    assert counts == [1, 1, 1, 1, 2, 2]
    texts = warned(caught)
    assert len(texts) == 2
    assert all(str(gone) in text and "No such file" in text and "training goes on" in text for text in texts)
    with open_repository(tmp_path / "run") as repo:
        files = {commit.step: [name for name in repo[commit].files if name != "git.diff"] for commit in repo.log()}
    assert files == {step: ["gone.yaml", "there.yaml"] if step == 4 else ["there.yaml"] for step in range(1, 7)}


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    paths = [tmp_path / "pipe", tmp_path / "folder"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with manage(tmp_path / "run", "sync", track_files=paths) as manager:
            manager.save({"step": 1})
    texts = warned(caught)
    assert len(texts) == 2
    assert all(str(path) in text and "not a file" in text for path, text in zip(paths, texts, strict=True))


def test_a_large_file_that_is_gone_when_the_writer_comes_to_it(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(MOST_BYTES + 1))
    small.write_bytes(b"small")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with manage(tmp_path / "run", "process", track_files=[large, small]) as manager:
            manager.save({"step": 1})
            assert manager.wait(30)
            shipping = manager._shipping
            assert isinstance(shipping, Shipping) and isinstance(shipping._writer, ProcessWriter)
            writer = shipping._writer
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                manager.save({"step": 2})
                manager.save({"step": 3})
                large.unlink()
                small.unlink()
            finally:
                os.kill(writer.pid, signal.SIGCONT)
    (text,) = warned(caught)
    assert str(large) in text and "No such file" in text and "training goes on" in text
    with open_repository(tmp_path / "run") as repo:
        files = {commit.step: [name for name in repo[commit].files if name != "git.diff"] for commit in repo.log()}
    assert files == {1: ["large", "small"], 2: ["small"], 3: ["small"]}


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with init(tmp_path / "repo", encrypt=False) as made:
        yield made


def test_a_file_that_becomes_shorter_while_it_is_committed_does_not_cost_the_snapshot(
    tmp_path: Path, repo: Repository
) -> None:
    made_up = Path("/sys/devices/system/cpu/online")  # says that it has 4096 bytes, and has a few
    if not made_up.exists():
        pytest.skip("this system has no /sys")
    (tmp_path / "other").write_bytes(b"other")
    files: dict[str, Any] = {"online": made_up, "other": tmp_path / "other", "read": FileContent(b"read")}
    told = store_leaves(repo, 1, flatten({"w": np.arange(5)}), Request(step=1, files=files))
    assert isinstance(told, Durable)
    assert set(told.left_out) == {"online", "other"}
    assert all(f"{made_up} became shorter" in why for why in told.left_out.values())
    assert repo["main"].files == ["read"]
    assert repo.checkout()["w"].tolist() == [0, 1, 2, 3, 4]


def test_a_file_that_cannot_be_read_is_left_out_by_the_writer(tmp_path: Path, repo: Repository) -> None:
    (tmp_path / "there").write_bytes(b"there")
    files: dict[str, Any] = {"gone": tmp_path / "gone", "there": tmp_path / "there", "folder": tmp_path}
    told = store_leaves(repo, 1, flatten({}), Request(step=1, files=files))
    assert isinstance(told, Durable)
    assert told.left_out == {"gone": "No such file or directory", "folder": "it is not a file"}
    assert repo["main"].files == ["there"]


# ---- names


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="two files"):
        manage(tmp_path / "run", "sync", track_files=[tmp_path / "a" / "x", tmp_path / "b" / "x"])
    with pytest.raises(InvalidInput, match="diff of the work tree"):
        manage(tmp_path / "run", "sync", track_files=["git.diff"])
    assert not (tmp_path / "run").exists()
