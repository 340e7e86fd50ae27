"""What a manager tells of itself: metrics in a file and on a port, numbers for people, how runs ended."""

import gc
import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from chainstore.errors import InvalidInput
from chainstore.manager import exposition
from chainstore.manager.endings import Ending, ending_of, words_again, words_for
from chainstore.manager.exposition import Port, Textfile
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.telemetry import Landing, Telemetry
from chainstore.repository import open as open_repository
from tests.manager.runs import Run


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return samples by name and labels, those of repository and branch left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in ("repository", "branch")]
            found[(sample.name, *labels)] = sample.value
    return found


def read(port: int | None, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


@pytest.mark.parametrize("mode", ["process", "thread", "sync"])
def test_what_happens_is_counted(tmp_path: Path, mode: str) -> None:
    run, textfile = Run(), tmp_path / "chainstore.prom"
    with SnapshotManager(
        tmp_path / "run", interval=1, mode=mode, when_full="wait", metrics_file=textfile, metrics_port=0
    ) as manager:
        manager.resume(run.model, run.optimizer)
        assert samples(read(manager.metrics_port))[("chain_snapshots_total",)] == 0
        for step in range(1, 4):
            run.step()
            assert manager.step(step, run.model, run.optimizer)
        manager.wait()
        found = samples(read(manager.metrics_port))
        stats = manager.stats()
    assert found[("chain_snapshots_total",)] == 3 == stats.durable
    for name in ("stall", "background", "time_to_durable"):
        assert found[(f"chain_snapshot_{name}_seconds_count",)] == 3, name
    assert found[("chain_snapshot_stall_seconds_sum",)] > 0
    assert found[("chain_snapshot_time_to_durable_seconds_sum",)] >= found[("chain_snapshot_stall_seconds_sum",)] / 2
    assert (found[("chain_snapshot_background_seconds_sum",)] < 1e-3) == (mode == "sync")
    with open_repository(tmp_path / "run") as repo:
        commits = list(repo.log())
        assert found[("chain_snapshot_bytes_total", "new")] == sum(commit.stats.new_bytes for commit in commits)
        assert found[("chain_snapshot_bytes_total", "stored")] > 0
        assert stats.raw_bytes == sum(commit.stats.raw_bytes for commit in commits)
        assert stats.last_commit == str(commits[0].id)
    assert found[("chain_snapshots_pending",)] == 0 and found[("chain_last_durable_step",)] == 3
    assert found[("chain_snapshot_interval_seconds",)] > 0
    assert 0 <= found[("chain_last_durable_age_seconds",)] < 60
    assert abs(found[("chain_last_durable_timestamp_seconds",)] - time.time()) < 60
    assert samples(textfile.read_text())[("chain_snapshots_total",)] == 3  # written once more at the end
    assert sorted(os.listdir(tmp_path)) == ["chainstore.prom", "run"]


def test_failed_and_skipped_ones_are_counted(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path / "run", interval=1, mode="thread") as manager:
        manager._shipping._writer = Slow(manager._shipping._writer)  # type: ignore[assignment]
        assert manager.step(1, extra=Plain(1)) and not manager.step(2, extra=Plain(2))
        manager._shipping._writer.go_on()  # type: ignore[attr-defined]
        manager.wait()
        with pytest.warns(RuntimeWarning, match="step 3"):
            manager.step(3, extra=Plain(object()))
            manager.wait()
        stats, found = manager.stats(), samples(manager._insight.text())
    assert (stats.durable, stats.skipped, stats.failed) == (1, 1, 1)
    assert found[("chain_snapshots_skipped_total",)] == 1
    assert found[("chain_snapshots_failed_total", "unsupported-state")] == 1


class Plain:
    """An object with a value for a state."""

    def __init__(self, value: object) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state["value"]


class Slow:
    """A writer that tells nothing until it is let."""

    def __init__(self, writer: object) -> None:
        self._writer, self._mute = writer, True

    def go_on(self) -> None:
        self._mute = False

    def poll(self) -> list[object]:
        return [] if self._mute else self._writer.poll()  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)


def test_the_age_is_that_of_the_moment_of_reading() -> None:
    now = [1000.0]
    telemetry = Telemetry({"branch": "main"}, clock=lambda: now[0], wall=lambda: 5000.0 + now[0])
    assert samples(telemetry.text(60.0))[("chain_last_durable_age_seconds",)] == 0
    telemetry.landed(Landing(7, "ab" * 32, 990.0, 10.0, 0.5, 4.0, 5.0, 100, 60, 40), 0)
    now[0] += 25
    found = samples(telemetry.text(60.0))
    assert found[("chain_last_durable_age_seconds",)] == 35
    assert found[("chain_last_durable_timestamp_seconds",)] == 5990
    assert found[("chain_snapshot_bytes_total", "reused")] == 40
    assert found[("chain_snapshot_interval_optimal_seconds",)] == 60


def test_time_to_durable_is_not_the_time_until_somebody_listened(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path / "run", interval=1, mode="thread") as manager:
        manager.step(1, extra=Plain(torch.zeros(1000)))
        manager._shipping._writer.drain(60)
        time.sleep(1.0)  # a long step
        manager.wait()
        assert manager.stats().time_to_durable_s < 0.9


def test_a_port_serves_nobody_else_and_nothing_else(tmp_path: Path) -> None:
    port = Port(0, lambda: "x 1\n", pytest.fail)
    assert read(port.number, "/metrics?a=b") == "x 1\n" == read(port.number, "/")
    connection = http.client.HTTPConnection("127.0.0.1", port.number or 0, timeout=10)
    connection.request("GET", "/etc/passwd")
    assert connection.getresponse().status == 404
    connection.close()
    told: list[str] = []
    second = Port(port.number or 0, lambda: "y 1\n", told.append)
    assert second.number is None and "cannot be served" in told[0]
    second.close()
    assert port._server is not None and port._server.server_address[0] == "127.0.0.1"
    port.close()
    port.close()
    with pytest.raises(OSError):
        read(port.number)


def test_a_forked_child_does_not_keep_the_port(tmp_path: Path) -> None:
    port = Port(0, lambda: "x 1\n", pytest.fail)
    gc.collect()
    hold_r, hold_w = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold_w)
        os.read(hold_r, 1)
        os._exit(0)
    try:
        port.close()
        again = Port(port.number or 0, lambda: "x 2\n", pytest.fail)
        assert read(again.number) == "x 2\n"
        again.close()
    finally:
        os.close(hold_w)
        os.close(hold_r)
        os.waitpid(child, 0)


def test_a_file_is_whole_at_every_moment_and_trouble_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "WRITE_SECONDS", 0.001)
    place, told, count = tmp_path / "there", [], iter(range(10**9))
    place.mkdir()
    path = place / "m.prom"

    def text() -> str:
        return f"{next(count)} " * 20000 + "end\n"

    writer = Textfile(path, text, told.append)
    deadline = time.monotonic() + 30
    seen: set[str] = set()
    while len(seen) < 5:
        assert time.monotonic() < deadline
        if path.exists():
            found = path.read_text()
            assert found.endswith("end\n")
            seen.add(found.partition(" ")[0])
    place.rename(tmp_path / "gone")
    while not told:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "gone").rename(place)
    time.sleep(0.05)
    writer.close()
    assert len(told) == 1 and "m.prom" in told[0]
    assert os.listdir(place) == ["m.prom"]


@pytest.mark.parametrize(
    "wrong", [{"metrics_port": -1}, {"metrics_port": 65536}, {"metrics_port": "80"}, {"metrics_file": "no/such/x.prom"}]
)
def test_nonsense_is_refused_at_once(tmp_path: Path, wrong: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput):
        SnapshotManager("run", **wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_stats_are_for_people(tmp_path: Path) -> None:
    with SnapshotManager(tmp_path / "run", interval=1, mode="sync", branch="a<b") as manager:
        assert "none yet" in str(manager.stats())
        manager.save({"w": torch.zeros(10), "step": 3})
        stats = manager.stats()
    assert "step 3" in str(stats) and "1 durable" in str(stats) and "ManagerStats(" in repr(stats)
    assert "a&lt;b" in stats._repr_html_() and "<td>" in stats._repr_html_()
    with pytest.raises(AttributeError):
        stats.durable = 7  # type: ignore[misc]


# ---- how runs end -----------------------------------------------------------------------------------------------


def test_words_of_endings() -> None:
    assert ending_of("") == Ending() == ending_of("process 7 on x, since y; ended well")
    assert ending_of("process 7 on x, since y") == Ending("unknown", True)
    assert ending_of("process 7 on x, since y; ended by preemption, all saved") == Ending("preemption", False)
    assert ending_of("x; ended by preemption") == Ending("preemption", True)
    assert ending_of(f"x; ended {words_for(MemoryError())}") == Ending("host-out-of-memory", True)
    assert ending_of(f"x; ended {words_for(torch.OutOfMemoryError())}") == Ending("device-out-of-memory", True)
    assert ending_of(f"x; ended {words_for(OSError())}") == Ending("storage", True)
    assert ending_of(f"x; ended {words_for(KeyError())}") == Ending("user-bug", True)
    assert ending_of(f"x; ended {words_for(SystemExit(3))}") == Ending("user-bug", True)
    for fine in (None, KeyboardInterrupt(), SystemExit(), SystemExit(0)):
        assert ending_of(f"x; ended {words_for(fine)}") == Ending()
    for before in ("", "x", "x; ended well", "x; ended by storage"):
        assert ending_of(f"y; ended {words_again(before)}") == ending_of(before)


SCRIPT = """
import os, signal, sys, torch
import chainstore as cs
how, root = sys.argv[1:]
model = torch.nn.Linear(3, 3)
manager = cs.SnapshotManager(root, interval=1, mode="thread", when_full="wait", on_signal=("SIGTERM",))
start = manager.resume(model)
stats = manager.stats()
print(start, stats.resumes, sorted(stats.interruptions.items()), flush=True)
for step in range(start + 1, start + 3):
    manager.step(step, model)
manager.wait()
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "term":
    os.kill(os.getpid(), signal.SIGTERM)
    manager.step(step + 1, model)
elif how == "raise":
    raise ValueError("a bug")
"""


def test_what_interrupted_a_run_is_counted_when_it_goes_on(tmp_path: Path) -> None:
    def go(how: str) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how, str(tmp_path / "run")], capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        return done.stdout.strip(), done.returncode

    assert go("kill") == ("0 0 []", -signal.SIGKILL)
    assert go("term") == ("2 1 [('unknown', 1)]", -signal.SIGTERM)
    assert go("raise") == ("5 2 [('preemption', 1), ('unknown', 1)]", 1)
    assert go("exit") == ("7 3 [('preemption', 1), ('unknown', 1), ('user-bug', 1)]", 0)
    model = torch.nn.Linear(3, 3)
    with SnapshotManager(tmp_path / "run", mode="thread") as manager:
        assert manager.resume(model) == 9
        assert manager.stats().resumes == 4 and sum(manager.stats().interruptions.values()) == 3


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_signal_ends_a_run_only_if_its_handler_does(tmp_path: Path, goes_on: bool) -> None:
    def handler(number: int, frame: object) -> None:
        if not goes_on:
            sys.exit(143)

    model, before = torch.nn.Linear(3, 3), signal.signal(signal.SIGUSR2, handler)
    try:
        with SnapshotManager(tmp_path / "run", mode="sync", interval=1, on_signal=["SIGUSR2"]) as manager:
            os.kill(os.getpid(), signal.SIGUSR2)
            manager.step(1, model)
            raise OSError
    except (OSError, SystemExit) as error:
        assert isinstance(error, OSError) == goes_on
    finally:
        signal.signal(signal.SIGUSR2, before)
    with SnapshotManager(tmp_path / "run", mode="sync") as manager:
        assert manager.resume(model) == 1
        assert dict(manager.stats().interruptions) == {"storage" if goes_on else "preemption": 1}
        assert manager._insight.learner.known.failures.count == pytest.approx(0.98 if goes_on else 0)


def test_a_manager_that_did_nothing_says_nothing(tmp_path: Path) -> None:
    run = Run()
    first = SnapshotManager(tmp_path / "run", interval=1, mode="sync")
    first.step(1, run.model)
    first._insight.leave("by storage")
    first._shipping._hold.close()  # it is gone as far as the next one can see
    with SnapshotManager(tmp_path / "run", mode="sync"):
        pass
    with SnapshotManager(tmp_path / "run", mode="sync") as third:
        third.resume(run.model)
        third.resume(run.model)  # goes back: a resume, not another interruption
        assert dict(third.stats().interruptions) == {"storage": 1} and third.stats().resumes == 2
    first.close()
