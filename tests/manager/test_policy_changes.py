"""A policy that changes while a run is on: `chain config set` reaches it, what the script says stays."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chainstore.errors import ConfigError, StorageError
from chainstore.manager import policy
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.policy import LOOK_SECONDS, PolicyWatch
from chainstore.observe import Event, Notice
from chainstore.policies import EverySeconds, EverySteps, Retention, parse_interval
from chainstore.repository import init
from chainstore.repository import open as open_repository


class World:
    """Settings, a clock, and what was made of them."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.now, self.reads = 5000.0, 0
        self.used: list[tuple[str, str]] = []
        self.seen: list[Event] = []
        self.broken = False

    def read(self) -> dict[str, str]:
        self.reads += 1
        if self.broken:
            raise StorageError("the disk is gone")
        return dict(self.settings)

    def use(self, name: str) -> Callable[[str], None]:
        def note(text: str) -> None:
            if name == "interval" and text:
                parse_interval(text)
            self.used.append((name, text))

        return note

    def watch(self, *names: str) -> PolicyWatch:
        return PolicyWatch(self.read, {name: self.use(name) for name in names}, self.seen.append, lambda: self.now)

    def codes(self) -> list[str]:
        return [event.code for event in self.seen if isinstance(event, Notice)]


def test_a_change_is_seen_within_half_a_minute_and_looked_for_no_oftener() -> None:
    world = World()
    world.settings["interval"] = "5m"
    watch = world.watch("interval", "retention")
    assert world.used == [("interval", "5m")] and world.reads == 1 and not world.seen
    world.settings |= {"interval": "1h", "retention": "last=3"}
    for _ in range(100):
        world.now += LOOK_SECONDS / 101
        watch.look()
    assert world.reads == 1
    world.now += LOOK_SECONDS / 101 + 0.001
    watch.look()
    watch.look()
    assert world.reads == 2 and world.used[1:] == [("interval", "1h"), ("retention", "last=3")]
    assert world.codes() == ["policy-changed"] * 2
    del world.settings["interval"]
    world.now += LOOK_SECONDS
    watch.look()
    assert world.used[3:] == [("interval", "")] and LOOK_SECONDS <= 30


def test_what_the_script_said_is_not_looked_up() -> None:
    world = World()
    world.settings["interval"] = "5m"
    watch = world.watch()
    world.now += 1e6
    watch.look()
    assert not world.reads and not world.used


def test_trouble_is_said_once_and_ends() -> None:
    world = World()
    watch = world.watch("interval")
    world.broken = True
    for _ in range(3):
        world.now += LOOK_SECONDS
        watch.look()
    assert world.codes() == ["policy-unreadable"]
    world.broken, world.settings["interval"] = False, "rather often"
    for _ in range(3):
        world.now += LOOK_SECONDS
        watch.look()
    assert world.codes() == ["policy-unreadable"] * 2 and not world.used
    world.settings["interval"] = "7 steps"
    world.now += LOOK_SECONDS
    watch.look()
    assert world.used == [("interval", "7 steps")]


def test_a_running_manager_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Event] = []
    with init(tmp_path / "run", encrypt=False) as repo:
        repo.set_setting("interval", "2 steps")
    model = torch.nn.Linear(2, 2)
    with SnapshotManager(tmp_path / "run", mode="sync", observer=seen.append) as manager:
        assert manager._course.trigger == EverySteps(2)
        assert [manager.step(step, model) for step in range(1, 5)] == [False, True, False, True]
        command = ["-m", "chainstore.cli.main", "-C", str(tmp_path / "run"), "config", "set", "interval", "3 steps"]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        assert [manager.step(step, model) for step in range(5, 7)] == [False, True]  # nobody looked yet
        manager._insight.policy._due = 0.0  # half a minute goes by
        assert [manager.step(step, model) for step in range(7, 13)] == [False, False, True, False, False, True]
        assert [e.code for e in seen if isinstance(e, Notice)].count("policy-changed") == 1
        monkeypatch.setattr(policy, "LOOK_SECONDS", 0.0)
        with open_repository(tmp_path / "run") as other:
            other.set_setting("interval", None)
            manager._insight.policy._due = 0.0
            manager.step(13, model)
            assert manager._course.trigger == EverySeconds(600)
            other.set_retention(Retention(last=2))
        for step in range(14, 20):
            manager.save(step, model)
            manager.step(step, model)
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log() if commit.id not in repo.marks()] == [19, 18]


def test_what_the_script_says_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LOOK_SECONDS", 0.0)
    with init(tmp_path / "run", encrypt=False) as repo:
        repo.set_setting("interval", "2 steps")
        repo.set_retention(Retention(last=1))
    model = torch.nn.Linear(2, 2)
    with SnapshotManager(tmp_path / "run", interval=1, max_snapshots=3, mode="sync") as manager:
        assert all(manager.step(step, model) for step in range(1, 9))
        assert manager._shipping._retention == "last=3"
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log() if commit.id not in repo.marks()] == [8, 7, 6]


def test_a_setting_that_makes_no_sense_is_refused_where_it_is_set(tmp_path: Path) -> None:
    with init(tmp_path / "run", encrypt=False) as repo, pytest.raises(ConfigError):
        repo.set_setting("interval", "now and then")
