"""The manager as a trainer uses it: snapshots that hold one step, runs that go on bit for bit, errors that say so."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import chainstore as cs
from chainstore.errors import ChainError, InvalidInput, Locked, SnapshotNotFound
from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository
from tests.manager.runs import Run

MODES = ("process", "thread", "sync")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_run_that_resumes_ends_where_one_that_never_stopped_does(tmp_path: Path, mode: str) -> None:
    straight = Run()
    straight.train(0, 12)
    first = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode=mode, when_full="wait") as manager:
        assert manager.resume(first.model, first.optimizer) == 0
        first.train(0, 7, lambda step, run, loss: manager.step(step, run.model, run.optimizer, metrics={"loss": loss}))
    second = Run(seed=99)
    with SnapshotManager(tmp_path / "run", interval=5, mode=mode) as manager:
        assert manager.resume(second.model, second.optimizer) == 7
        second.train(7, 12, lambda step, run, loss: manager.step(step, run.model, run.optimizer))
    assert second.bits() == straight.bits()
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log()] == [10, 7, 6, 5, 4, 3, 2, 1]
        assert repo.verify("data").ok and "loss" in repo.get_commit("step:7").metrics


def test_what_changes_after_step_returned_is_in_no_snapshot(tmp_path: Path, mode: str) -> None:
    run = Run()
    run.train(0, 2)
    held = {}
    with SnapshotManager(tmp_path / "run", interval=1, mode=mode, when_full="wait") as manager:
        for step in range(1, 41):
            held[step] = copy.deepcopy({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()})
            assert manager.step(step, run.model, run.optimizer)
            run.scramble()
    with open_repository(tmp_path / "run") as repo:
        for step, want in held.items():
            got = repo.checkout(f"step:{step}")
            for name, value in want["model"].items():
                assert torch.equal(got["model"][name], value), (step, name)
            for number, moments in want["optimizer"]["state"].items():
                for name, value in moments.items():
                    assert torch.equal(got["optimizer"]["state"][number][name], value), (step, number, name)


def test_the_manager_changes_nothing_of_training(tmp_path: Path, mode: str) -> None:
    plain, watched = Run(), Run()
    torch.manual_seed(5)
    plain.train(0, 6)
    torch.manual_seed(5)
    with SnapshotManager(tmp_path / "run", interval=2, mode=mode) as manager:
        watched.train(0, 6, lambda step, run, loss: manager.step(step, run.model, run.optimizer))
    assert watched.bits() == plain.bits()


def test_retention_leaves_what_it_says(tmp_path: Path, mode: str) -> None:
    with SnapshotManager(tmp_path / "run", mode=mode, max_snapshots=5, when_full="wait") as manager:
        for step in range(1, 24):
            assert manager.save({"w": torch.full((5000,), float(step)), "step": step})
    with open_repository(tmp_path / "run") as repo:
        kept = [commit.step for commit in repo.log() if commit.id not in repo.marks()]
        assert kept == [23, 22, 21, 20, 19]
        assert all(repo.checkout(f"step:{step}")["w"][0] == step for step in kept)


def test_a_script_that_forgets_to_load_buries_nothing(tmp_path: Path) -> None:
    def script() -> str:
        run = Run()
        with SnapshotManager(tmp_path / "run", interval=1, mode="thread", when_full="wait") as manager:
            run.train(0, 3, lambda step, run, loss: manager.step(step, run.model, run.optimizer))
            return manager.branch

    assert script() == "main"
    with pytest.warns(RuntimeWarning, match="without having loaded"):
        assert script() == "main-restart-1"
    with pytest.warns(RuntimeWarning, match="without having loaded"):
        assert script() == "main-restart-2"
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log("main")] == [3, 2, 1]
        assert [commit.step for commit in repo.log("main-restart-2")] == [3, 2, 1]
        assert repo.merge_base("main", "main-restart-1") is None


def test_a_run_that_counts_from_0_goes_on_with_the_step_after(tmp_path: Path) -> None:
    run = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode="thread", when_full="wait") as manager:
        assert manager.resume(run.model, run.optimizer) == 0
        for step in range(3):
            run.step()
            manager.step(step, run.model, run.optimizer)
        manager.save(2, run.model, run.optimizer)
    with SnapshotManager(tmp_path / "run", interval=1, mode="thread") as manager:
        assert manager.resume(run.model, run.optimizer) == 3


def test_damage_is_walked_past(tmp_path: Path) -> None:
    run = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode="sync", codec="none") as manager:
        run.train(0, 3, lambda step, run, loss: manager.step(step, run.model, run.optimizer))
    with open_repository(tmp_path / "run") as repo:
        newest = {e.chunk for entry in repo["main"].manifest.entries for e in entry.extents}
        older = {e.chunk for entry in repo["main~1"].manifest.entries for e in entry.extents}
        with repo._db.view() as view:
            place = view.place(next(iter(newest - older)))
            pack = repo._db.packs.path(view.pack(place.pack).pack)
        with repo._db.turn(), repo._db._index.write() as rows:
            for id in newest - older:
                rows.delete("inline", id)
    data = bytearray(pack.read_bytes())
    data[place.offset + place.length // 2] ^= 255
    pack.write_bytes(bytes(data))
    with (
        SnapshotManager(tmp_path / "run", interval=1, mode="sync") as manager,
        pytest.warns(RuntimeWarning, match="going further back"),
    ):
        assert manager.resume(run.model, run.optimizer) == 2


def test_two_managers_on_one_branch_are_told_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainstore.manager.manager._WAIT_SECONDS", 0.2)
    with SnapshotManager(tmp_path / "run", mode="thread") as manager:
        with pytest.raises(Locked, match="main"):
            SnapshotManager(tmp_path / "run", mode="thread")
        with SnapshotManager(tmp_path / "run", mode="thread", branch="other"):
            assert manager.branch == "main"


def test_a_snapshot_that_fails_warns_and_training_goes_on(tmp_path: Path, mode: str) -> None:
    run = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode=mode, when_full="wait") as manager:
        with pytest.warns(RuntimeWarning, match="training goes on"):
            manager.step(1, run.model, run.optimizer, extra=Odd())
            manager.wait()
        assert manager.step(2, run.model, run.optimizer)
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log()] == [2]


def test_a_snapshot_that_fails_raises_where_that_is_asked_for(tmp_path: Path) -> None:
    run = Run()
    with SnapshotManager(tmp_path / "run", interval=1, mode="thread", on_error="raise") as manager:
        manager.step(1, run.model, run.optimizer, extra=Odd())
        with pytest.raises(ChainError, match="step 1"):
            manager.step(2, run.model, run.optimizer)


class Odd:
    """An object whose state cannot be stored."""

    def state_dict(self) -> dict[str, object]:
        return {"odd": object()}

    def load_state_dict(self, state: object) -> None:
        raise AssertionError("it was never stored")


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"interval": "soon"},
        {"interval": 10, "triggers": []},
        {"triggers": []},
        {"mode": "magic"},
        {"max_pending": 0},
        {"when_full": "explode"},
        {"max_snapshots": 0},
        {"on_signal": ["SIGNOTHING"]},
        {"grace": "soon"},
        {"snapshot_dir": "a", "project_id": "b"},
        {"project_id": "../up"},
    ],
)
def test_nonsense_is_refused_before_anything_is_made(tmp_path: Path, wrong: dict, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(), pytest.raises(InvalidInput):
        warnings.simplefilter("error")
        SnapshotManager(**wrong)
    assert not list(tmp_path.iterdir())


def test_an_argument_that_nobody_knows_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="intervall"):
        SnapshotManager(tmp_path / "run", intervall=3)


def test_the_style_of_a_directory_of_snapshots(tmp_path: Path) -> None:
    def make() -> SnapshotManager:
        return SnapshotManager(snapshot_dir=str(tmp_path / "snapshots"), interval=2, max_snapshots=3)

    manager = make()
    with pytest.raises(FileNotFoundError):
        manager.load_latest()
    for step in range(4):
        manager.save({"step": step, "weights": torch.full((3,), float(step))})
    manager.close()
    again = make()
    state = again.load_latest()
    assert state["step"] == 3 and torch.equal(state["weights"], torch.full((3,), 3.0))
    again.close()
    with (
        SnapshotManager(snapshot_dir=str(tmp_path / "others"), mode="thread") as other,
        pytest.raises(SnapshotNotFound),
    ):
        other.load_latest()


def test_the_style_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIN_HOME", str(tmp_path / "home"))
    run = Run()
    with pytest.warns(RuntimeWarning, match="api_key is unused"):
        manager = SnapshotManager(project_id="gpt", api_key="secret", save_interval=2, encryption=True)
    for step in range(1, 5):
        run.step()
        manager.step(step, run.model, run.optimizer)
        manager.wait()  # real steps take longer
    manager.close()
    with open_repository(tmp_path / "home" / "gpt") as repo:
        assert repo.encrypted and next(commit.step for commit in repo.log()) == 4


def test_it_is_found_where_people_look() -> None:
    from chainstore.snapshot import SnapshotManager as there

    assert cs.SnapshotManager is SnapshotManager and there is SnapshotManager


def test_where_no_other_process_can_be_given_memory_a_thread_does_it(tmp_path: Path) -> None:
    code = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))  # memory with a descriptor counts as a file
import torch, chainstore as cs
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    manager = cs.SnapshotManager(sys.argv[1], interval=1)
    manager.save({"w": torch.zeros(700_000), "step": 1})
    manager.close()
print([str(each.message) for each in seen])
with cs.open(sys.argv[1]) as repo:
    print([commit.step for commit in repo.log()])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told, steps = done.stdout.splitlines()
    assert "by a thread" in told, done.stdout
    assert steps == "[1]", done.stdout
