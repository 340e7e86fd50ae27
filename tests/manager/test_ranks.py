"""Several ranks under torchrun: they save one state, agree on when, find replicas that drift, and go on after kills.

A torchrun takes seconds to start, so that two of them, started once each, do everything; the tests look at what their
ranks wrote down.  What the ranks do is in `ranks_job`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import chainstore as cs
from chainstore.errors import InvalidInput
from chainstore.manager.manager import SnapshotManager
from tests.manager import ranks_job
from tests.manager.ranks_job import EACH, INTERVAL, TOTAL, TRAINED, Run, manage

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 240.0  # for a whole torchrun
KILLS = [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)]  # whom, in each attempt but the last
STEPS_BEFORE = 2 * INTERVAL + 2  # a kill


class Torchrun:
    """Two ranks of `ranks_job`, in a folder and with settings of their own."""

    def __init__(self, what: str, folder: Path, *options: str) -> None:
        self.folder = folder
        self.environment = settings(folder) | {
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else the ranks that are started again look for the old store
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
        with open(folder / "output", "wb") as output:
            self._process = subprocess.Popen(
                [*command, "-m", "tests.manager.ranks_job", what, str(folder)],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    @property
    def runs(self) -> bool:
        assert time.monotonic() < self._deadline, f"not done in time:\n{self.output()}"
        return self._process.poll() is None

    def join(self) -> None:
        while self.runs:
            time.sleep(0.01)
        assert self._process.returncode == 0, self.output()

    def close(self) -> None:
        """End it where it is not over; it ends its ranks."""
        self._process.terminate()
        self._process.wait()

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def writers(self) -> list[int]:
        """Return the writer processes that its ranks left."""
        mark = f"CHAIN_CONFIG_DIR={self.environment['CHAIN_CONFIG_DIR']}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_writer(pid, mark)]


def settings(folder: Path) -> dict[str, str]:
    """Return where keys and indexes of a job are."""
    return {"CHAIN_CONFIG_DIR": str(folder / "settings"), "CHAIN_CACHE_DIR": str(folder / "settings" / "cache")}


def _is_writer(pid: int, mark: bytes) -> bool:
    try:
        command, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError:  # ended, or somebody else's
        return False
    return b"chainstore.manager.worker" in command and mark in environment.split(b"\0")


# ---- what ranks do together


@dataclass
class Checks:
    """What the ranks wrote down, of each check by rank; before is what one process had left to them."""

    folder: Path
    told: list[dict[str, dict[str, Any]]]
    before: list[float]

    def answers(self, name: str) -> list[Any]:
        """Return what each rank answered to a check that did not go wrong."""
        for rank in self.told:
            assert not rank[name]["error"], rank[name]["error"]
        return [rank[name]["answer"] for rank in self.told]


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checks]:
    folder = tmp_path_factory.mktemp("checks")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(folder).items():
            patch.setenv(name, value)
        run = Run(9)
        with manage(folder / "from_one_process") as manager:
            run.loader = manager.loader(run.loader)
            run.train(0, lambda step: manager.step(step, *run.parts), total=3)
    job = Torchrun("checks", folder)
    try:
        job.join()
        told = [(folder / f"told-{rank}.jsonl").read_text().splitlines() for rank in range(2)]
        found = [{line["name"]: line for line in map(json.loads, lines)} for lines in told]
        yield Checks(folder, found, run.weights())
    finally:
        job.close()


EXACT = {
    "exact_with_a_loader_of_ours": [0, 3, 6],
    "exact_with_gradients_accumulated": [0, 5],
    "exact_with_a_loader_that_keeps_its_place": [0, 2, 7],
}


@pytest.mark.parametrize("name", EXACT)
def test_a_run_that_stopped_goes_on_bit_for_bit_on_every_rank(checks: Checks, name: str) -> None:
    found = checks.answers(name)
    for answer in found:
        assert answer["begins"] == EXACT[name]
        assert answer["snapshots"] > len(EXACT[name]) - 1
        assert answer["stopped_losses"] == answer["straight_losses"]
        assert answer["stopped"] == answer["straight"]
    assert found[0]["straight"]["rng"] != found[1]["straight"]["rng"]
    assert found[0]["straight"]["optimizer"] == found[1]["straight"]["optimizer"]
    assert len(found[0]["straight_losses"]) >= TOTAL > 2 * EACH


def test_a_replica_that_drifts_is_named_once_with_its_path(checks: Checks) -> None:
    leads, follows = checks.answers("drift")
    (code, first), (again, second) = leads["told"]
    assert code == again == "ranks-diverge"
    assert "rank 1 at step 3" in first and "model/module.0.weight" in first
    assert "rank 1 at step 7" in second and "optimizer/state/5/exp_avg" in second
    assert follows["told"] == []


def test_statistics_that_differ_between_replicas_are_none_of_it(checks: Checks) -> None:
    leads, follows = checks.answers("drift")
    assert leads["statistics"][:2] != follows["statistics"][:2]  # at step 1 and 2, of which nothing was told


def test_replicas_are_compared_after_a_first_snapshot_that_failed(checks: Checks) -> None:
    leads, follows = checks.answers("drift_after_a_first_snapshot_that_failed")
    assert leads["captured"] == follows["captured"] == [False, True, True]
    assert [code for code, _ in leads["told"]] == ["snapshot-failed", "ranks-diverge"]
    assert "rank 1 at step 3" in leads["told"][1][1] and "array/state" in leads["told"][1][1]


def test_a_signal_to_one_rank_is_one_to_all(checks: Checks) -> None:
    leads, follows = checks.answers("signal_to_one_rank")
    assert leads["step"] == follows["step"] >= 5
    assert {leads["tip"], follows["tip"]} == {leads["step"]}
    assert leads["why"] == "signal" and leads["durable"] == 1
    assert (leads["heard"], follows["heard"]) == (0, 1)


def test_ranks_at_different_steps_are_told_so(checks: Checks) -> None:
    for name in ("ranks_at_different_steps", "ranks_that_save_different_steps"):
        for kind, text in checks.answers(name):
            assert kind == "RankFailure" and "rank 0 is at 7, rank 1 is at 8" in text


def test_a_rank_that_has_no_state_is_named_to_the_others_and_training_may_go_on(checks: Checks) -> None:
    leads, follows = checks.answers("a_rank_without_a_state")
    assert follows["error"] == ["ValueError", "it is not a good moment"]
    assert leads["error"][0] == "RankFailure"
    assert "rank 1 has no state to save: ValueError: it is not a good moment" in leads["error"][1]
    assert leads["next"] and follows["next"]


def test_a_place_that_cannot_be_gathered_is_named(checks: Checks) -> None:
    leads, follows = checks.answers("a_place_that_cannot_be_gathered")
    assert follows["error"][0] == "UnsupportedState" and "loader/state" in follows["error"][1]
    assert leads["error"][0] == "RankFailure" and "loader/state" in leads["error"][1]
    assert leads["next"] and follows["next"]


def test_the_name_of_the_state_of_ranks_is_taken(checks: Checks) -> None:
    for kind, text in checks.answers("a_name_that_is_taken"):
        assert kind == "InvalidInput" and "'ranks'" in text


def test_all_are_told_at_once_why_rank_0_cannot_begin(checks: Checks) -> None:
    leads, follows = checks.answers("a_branch_that_is_held")
    assert leads["error"][0] == "Locked" and "main" in leads["error"][1]
    assert follows["error"] == ["RankFailure", f"rank 0: {leads['error'][1]}"]
    assert leads["next"] and follows["next"]
    assert follows["seconds"] < 30


def test_a_snapshot_that_failed_is_raised_on_all_ranks(checks: Checks) -> None:
    leads, follows = checks.answers("a_snapshot_that_failed_is_raised")
    assert leads["captured"] == follows["captured"] == [False, True]
    for error, other in zip(leads["errors"], follows["errors"], strict=True):
        assert error[0] == "SnapshotFailed" and other == ["RankFailure", f"rank 0: {error[1]}"]


def test_processes_that_train_on_their_own_have_branches_of_their_own(checks: Checks) -> None:
    assert checks.answers("each_on_its_own") == [
        {"step": 2, "state": {"state": 0}, "size": None},
        {"step": 3, "state": {"state": 1}, "size": None},
    ]


def test_ranks_that_do_not_know_each_other_are_told_what_to_do(checks: Checks) -> None:
    for kind, text, made in checks.answers("before_they_know_each_other"):
        assert kind == "InvalidInput" and "2 processes" in text and not made


def test_processes_that_do_not_know_each_other_may_say_that_they_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInput, match="not initialized") as told:
        manage(tmp_path / "run")
    assert "init_process_group" in told.value.hint and "process_group=False" in told.value.hint
    with manage(tmp_path / "run", process_group=False) as manager:
        assert manager.save({"step": 1})
    monkeypatch.setenv("WORLD_SIZE", "1")
    with manage(tmp_path / "run") as manager:
        assert manager.load_latest() == {"step": 1}


def test_a_group_without_torch_distributed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="process_group= is given"):
        SnapshotManager(tmp_path / "run", process_group=object())


def test_two_ranks_go_on_with_what_one_process_left(checks: Checks) -> None:
    leads, follows = checks.answers("from_one_process")
    assert leads["start"] == follows["start"] == 3
    assert leads["weights"] == follows["weights"] == checks.before
    assert leads["captured"] and follows["captured"]
    (text,) = leads["told"]
    assert "of a run of 1 rank, and this one has 2 ranks" in text and "data loaders begin anew" in text
    assert follows["told"] == []


def test_one_process_goes_on_with_what_two_ranks_left(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings(checks.folder).items():
        monkeypatch.setenv(name, value)
    leads, _ = checks.answers("for_one_process")
    run = Run(10)
    with manage(checks.folder / "for_one_process") as manager:
        run.loader = manager.loader(run.loader)
        with pytest.warns(RuntimeWarning, match="of a run of 2 ranks, and this one has 1 rank"):
            assert manager.resume(*run.parts) == 3
        assert run.weights() == leads["weights"]
        assert len(list(run.loader)) == 2 * EACH  # all the data, from their beginning
        assert manager.step(4, *run.parts)
    with cs.open(checks.folder / "for_one_process") as repo:
        assert [commit.meta.get("world_size") for commit in repo.log()] == [None, 2, 2, 2]


def test_all_walk_back_to_the_same_snapshot(checks: Checks) -> None:
    for name in ("damage_that_all_see", "damage_that_rank_1_sees"):
        leads, follows = checks.answers(name)
        assert leads["start"] == follows["start"] == 2, name
        assert all(leads["same"]) and leads["place"] and follows["place"], name
        assert follows["same"].count(False) <= 2, name  # running statistics: those of rank 0
        (text,) = leads["told"]
        assert "going further back" in text
    assert "rank 1 cannot read" in text


def test_damage_of_all_snapshots_is_told_to_all(checks: Checks) -> None:
    for kind, text in checks.answers("damage_everywhere"):
        assert kind == "Damaged" and "no snapshot of 'main' reads" in text


def test_states_are_saved_and_loaded_as_they_are(checks: Checks) -> None:
    for answer in checks.answers("states_as_they_are"):
        assert answer["nothing"][0] == "SnapshotNotFound"
        assert answer["saved"] and answer["keys"] == ["step", "w"] and answer["w"] == [0, 1, 2, 3]


def test_rules_that_count_steps_are_kept_to_the_step(checks: Checks) -> None:
    for answer in checks.answers("every_7_steps"):
        assert answer["captured"] == answer["stored"] == list(range(7, 301, 7))


def test_a_metric_that_rank_0_alone_has_counts_for_all(checks: Checks) -> None:
    for answer in checks.answers("when_best"):
        assert answer["captured"] == answer["stored"] == [1, 2, 4, 6]


def test_epochs_are_seen_where_they_begin(checks: Checks) -> None:
    for answer in checks.answers("each_epoch"):
        assert answer["captured"] == answer["stored"] == [10, 19, 28, 37]


@pytest.mark.parametrize("name", ["by_time", "when_durable", "adaptive"])
def test_rank_0_says_when_where_time_does(checks: Checks, name: str) -> None:
    leads, follows = checks.answers(name)
    assert leads["captured"] == follows["captured"] == leads["stored"]
    assert leads["captured"][0] == 1 and (name == "adaptive" or len(leads["captured"]) >= 2)


def test_every_check_is_looked_at(checks: Checks) -> None:
    text = Path(__file__).read_text()
    assert [check.__name__ for check in ranks_job.CHECKS if f'"{check.__name__}"' not in text] == []
    assert set(checks.told[0]) == {check.__name__ for check in ranks_job.CHECKS} | {"before_they_know_each_other"}


# ---- what becomes of a run that is killed again and again


@dataclass
class Killed:
    """A run whose ranks were killed: what each said after each step, and how each ended; writers that were left."""

    folder: Path
    steps: list[dict[str, Any]]
    ends: list[dict[str, Any]]
    writers: list[int]

    def attempt(self, number: int) -> list[dict[str, Any]]:
        return [line for line in self.steps if line["attempt"] == number]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    job = Torchrun("train", folder, f"--max-restarts={len(KILLS)}")
    try:
        for attempt, (rank, number) in enumerate(KILLS):
            while not (pid := _victim(folder, attempt, rank)):
                assert job.runs, job.output()
                time.sleep(0.005)
            os.kill(pid, number)
        job.join()
        deadline = time.monotonic() + 10
        while job.writers() and time.monotonic() < deadline:
            time.sleep(0.02)
        ends = [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(2)]
        yield Killed(folder, _steps(folder), ends, job.writers())
    finally:
        job.close()


def _steps(folder: Path) -> list[dict[str, Any]]:
    """Return what was said of steps, whole lines only: whoever wrote may have been killed."""
    try:
        lines = (folder / "steps").read_text().split("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1]]


def _victim(folder: Path, attempt: int, rank: int) -> int:
    """Return the process of a rank once it is some steps into an attempt."""
    for line in _steps(folder):
        if (line["attempt"], line["rank"]) == (attempt, rank) and line["step"] >= line["start"] + STEPS_BEFORE:
            return int(line["pid"])
    return 0


def test_a_run_that_is_killed_ends_as_one_that_was_not(killed: Killed) -> None:
    for end in killed.ends:
        assert end["stopped"] == end["straight"]
        assert len(end["losses"]) == TRAINED
    assert max(line["step"] for line in killed.steps) == TRAINED


def test_every_attempt_computed_what_a_run_without_kills_does(killed: Killed) -> None:
    assert {line["attempt"] for line in killed.steps} == set(range(len(KILLS) + 1))
    for line in killed.steps:
        assert line["loss"] == killed.ends[line["rank"]]["losses"][line["step"] - 1], line


@pytest.mark.parametrize("attempt", range(len(KILLS)))
def test_a_kill_costs_no_more_steps_than_the_interval(killed: Killed, attempt: int) -> None:
    before, after = killed.attempt(attempt), killed.attempt(attempt + 1)
    (start,) = {line["start"] for line in after}
    assert start >= max(line["step"] for line in before if line["captured"])
    reached = max(line["step"] for line in before)
    assert 0 <= reached - start <= INTERVAL


def test_a_signal_to_one_rank_costs_no_step(killed: Killed) -> None:
    attempt = len(KILLS) - 1
    (start,) = {line["start"] for line in killed.attempt(attempt + 1)}
    assert start == max(line["step"] for line in killed.attempt(attempt) if line["rank"] == 0)


def test_interruptions_are_counted_by_cause(killed: Killed) -> None:
    assert killed.ends[0]["causes"] == {"unknown": 1, "peer-lost": 1, "preemption": 1}


def test_no_writer_is_left(killed: Killed) -> None:
    assert killed.writers == []
