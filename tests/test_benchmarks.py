"""The benchmarks: they run, they notice wrong results, and the documents show what the kept run found."""

import copy
import importlib.util
import os
import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import chain_workers, chains, gc, goodput, manager, markdown, run, scale
from benchmarks.chain_report import ChainResults, Subject, verdict
from benchmarks.chain_workers import BackupSaver, Committer, Reader, Restorer, TorchLoader
from benchmarks.compare.backup import BackupPeer
from benchmarks.compare.chain import Chain
from benchmarks.compare.files import TorchSave
from benchmarks.compare.rules import Array, BitX, Dedupe, arrays, difference_bits
from benchmarks.jobs import JOBS, PLAN, Row, Turns, WrongResult
from benchmarks.micro import chunk_size, thrift
from benchmarks.recorded import Player, Recorder, Trace, find
from benchmarks.report import Results, Unusable, regressions, table, worst
from benchmarks.traces import CHAINS
from benchmarks.workloads import WORKLOADS, Sizes, Small, differences, flat

TINY = Sizes(dense_mb=12, lora_mb=4, tensors=20, commits=3)
ONCE = Turns(1, 1)


class Forgetful(TorchSave):
    """Loses the sign of one zero."""

    name = "forgetful"

    def load(self) -> object:
        state = super().load()
        next(iter(flat(state).values()))[0] = 0.0
        return state


class Zeros(Small):
    """Tensors of negative zeros, which equal zeros but for one bit."""

    def make(self, sizes: Sizes) -> None:
        self.tensors = {f"tensor.{i}": torch.full((64,), -0.0) for i in range(sizes.tensors)}

    def step(self) -> None:
        self.steps += 1


def results(**seconds: float) -> Results:
    """Return a run of one job in which each peer took so many seconds."""
    rows = tuple(
        Row("commit", "dense", "a state", name.replace("_", " "), (value,) * 3, value, 1 << 20, 1 << 30, 1 << 29, True)
        for name, value in seconds.items()
    )
    return Results(False, "2026-01-01", {}, {}, (), rows)


@pytest.fixture(scope="module")
def kept() -> Results:
    return Results.from_json(markdown.BASELINE.read_text())


def test_a_quick_run_prints_a_table_and_keeps_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "results.json"
    options = ["--quick", "--only", "log", "--peers", "chainstore", "torch.save", "--json", str(file)]
    assert run.main([*options, "--folder", str(tmp_path)]) == 0
    assert re.search(r"chainstore +[\d.]+ [mµ]?s", capsys.readouterr().out)
    found = Results.from_json(file.read_text())
    assert [(row.job, row.peer) for row in found.rows] == [("log", "chainstore"), ("log", "torch.save")]
    assert str(tmp_path) not in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_job_gives_back_the_same_bits(workload: str, tmp_path: Path):
    rows = run.run_workload(workload, list(JOBS), [Chain, TorchSave], TINY, ONCE, tmp_path)
    jobs = {row.job for row in rows}
    assert jobs - {"partial rows"} == set(PLAN[workload])
    assert all(row.seconds[0] > 0 and row.raw_bytes for row in rows)
    assert all(row.stored_bytes for row in rows if row.job == "commit")


def test_one_wrong_bit_ends_the_run_instead_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(WORKLOADS, "small", Zeros)
    with pytest.raises(WrongResult, match=r"forgetful gave back other values.*model/tensor\.0"):
        run.run_workload("small", ["commit"], [TorchSave, Forgetful], TINY, ONCE, tmp_path)


def test_differences_see_bits_types_and_what_is_missing():
    a = {"x": torch.tensor([float("nan"), -0.0]), "y": {"z": 1}}
    assert differences(a, {"x": a["x"].clone(), "y": {"z": 1}}) == []
    assert differences(a, {"x": torch.tensor([float("nan"), 0.0]), "y": {"z": 1}}) == ["x"]
    assert differences(a, {"x": a["x"], "y": {"z": True}}) == ["y/z"]
    assert differences(a, {"x": a["x"]}) == ["y/z"]
    assert differences(a, {"x": a["x"]}, whole=False) == []


def test_a_ratio_that_grew_by_a_quarter_is_a_regression():
    old = results(chainstore=1.0, torch_save=1.0)
    assert regressions(old, results(chainstore=2.4, torch_save=2.0)) == []  # a slower machine
    old, new = (replace(r, rows=tuple(_named(row) for row in r.rows)) for r in (old, results(chainstore=1.4, torch=1)))
    (worse,) = regressions(old, new)
    assert worse == "commit of dense: takes 1.40 times as long as torch.save, was 1.00"


def _named(row: Row) -> Row:
    return replace(row, peer="torch.save") if row.peer.startswith("torch") else row


def test_one_slow_turn_is_no_regression():
    old, new = results(chainstore=1.0, torch=1.0), results(chainstore=1.0, torch=1.0)
    ours, other = new.rows
    assert regressions(old, replace(new, rows=(replace(ours, seconds=(0.9, 1.4, 1.4)), other))) == []


def test_more_bytes_stored_and_more_memory_are_regressions():
    old = results(chainstore=1.0, torch=1.0)
    ours, other = old.rows
    fat = replace(ours, stored_bytes=(1 << 29) * 21 // 20, peak_bytes=1 << 27)
    assert [text.split()[3] for text in regressions(old, replace(old, rows=(fat, other)))] == ["stores", "peak"]


def test_runs_of_different_sizes_are_not_compared():
    with pytest.raises(Unusable, match="quick"):
        regressions(results(chainstore=1.0), replace(results(chainstore=1.0), quick=True))
    with pytest.raises(Unusable, match="not JSON"):
        Results.from_json("{")
    with pytest.raises(Unusable, match=r"chainstore\.benchmark/1"):
        Results.from_json("{}")


def test_the_command_tells_better_from_worse_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(results(chainstore=1.0, torch=1.0).to_json())
    new.write_text(results(chainstore=2.0, torch=1.0).to_json())
    assert run.main(["--from", str(old), "--against", str(new)]) == 0
    assert "nothing got worse" in capsys.readouterr().out
    assert run.main(["--from", str(new), "--against", str(old)]) == run.WORSE
    assert "worse: commit of dense" in capsys.readouterr().out
    assert run.main(["--from", str(tmp_path / "none.json")]) == run.MISUSED


def test_a_quick_run_is_never_kept_for_the_documents(tmp_path: Path):
    file, before = tmp_path / "quick.json", markdown.BASELINE.read_text()
    file.write_text(replace(results(chainstore=1.0), quick=True).to_json())
    assert run.main(["--from", str(file), "--write"]) == run.MISUSED
    assert markdown.BASELINE.read_text() == before


def test_a_run_is_drawn_where_matplotlib_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "run.json"
    file.write_text(results(chainstore=1.0, torch=2.0).to_json())
    told = run.main(["--from", str(file), "--plots", str(tmp_path / "plots")])
    if importlib.util.find_spec("matplotlib"):
        assert told == 0
        assert {path.name for path in (tmp_path / "plots").iterdir()} == {"commit-dense.svg", "commit-dense-stored.svg"}
    else:
        assert told == run.MISUSED and "pip install" in capsys.readouterr().err


def test_the_worst_jobs_are_those_where_the_fastest_peer_is_furthest_ahead():
    run = results(chainstore=2.0, fast=1.0, slow=9.0)
    other = [replace(row, job="restore") for row in results(chainstore=1.0, fast=0.1).rows]
    both = replace(run, rows=(*run.rows, *other))
    assert worst(both, 1) == [("restore", "dense")]
    assert "0.50x" in "".join(table(list(both.lines()["commit", "dense"].values())))


def test_the_documents_show_what_the_kept_run_found():
    for path, text in markdown.documents().items():
        assert path.read_text() == text, f"{path.name} is behind: python -m benchmarks.run --from FILE --write"


def test_the_readme_shows_the_two_jobs_at_which_we_do_worst(kept: Results):
    shown, lines = markdown.readme(kept), kept.lines()
    for line in worst(kept):
        ours = next(iter(lines[line].values()))
        assert f"| {markdown.JOBS[line[0]]}: {ours.what}" in shown


def test_the_kept_run_is_a_whole_one_and_names_no_machine_path(kept: Results):
    assert not kept.quick
    assert {(row.job, row.workload) for row in kept.rows if row.peer == "chainstore"} >= {
        (job, workload) for workload, jobs in PLAN.items() for job in jobs
    }
    assert not re.search(r"/(?:home|root|work|tmp|var|mnt|opt|dev|usr)\b", markdown.BASELINE.read_text())


@pytest.mark.parametrize("job", gc.JOBS)
def test_the_benchmark_of_gc_prints_a_row_for_each_figure(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    gc.main(["--quick", "--only", job, "--folder", str(tmp_path)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {job} |")]
    assert len(rows) >= 2
    assert not list(tmp_path.iterdir())


def test_the_benchmark_of_thrift_prints_a_row_for_each_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    thrift.main(["--quick", "--disk", str(tmp_path), "--tmpfs", str(tmp_path)])
    rows = [
        line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(("| disk", "| tmpfs"))
    ]
    assert len(rows) == 2 * len(thrift.STATES) * len(thrift.CODECS)
    assert all(row[3] == "1.00x" for row in rows if row[2] == "none")


def test_the_benchmark_of_chunk_sizes_compares_them_with_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chunk_size.main(["--quick", "--folder", str(tmp_path)])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if re.match(r"\| [\w ]+: ", line)]
    assert [row[0] for row in rows] == [
        *("| commit auto: time", "| commit auto: stored", "| commit small: time", "| commit small: stored"),
        *("| restore: time", "| 16 rows: time", "| moments none: time", "| moments none: stored"),
        *("| moments small: time", "| moments small: stored"),
    ]
    assert {row[1 + chunk_size.SIZES.index(1 << 20)] for row in rows} == {"1.00x"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", scale.JOBS)
def test_the_benchmark_of_scale_prints_its_figures(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    scale.main(["--quick", "--only", job, "--folder", str(tmp_path)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {job} |")]
    assert len(rows) >= 4 and any("peak" in row for row in rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", manager.JOBS)
def test_the_benchmark_of_the_manager_prints_its_figures(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    manager.main(["--quick", "--only", job, "--folder", str(tmp_path)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {job} |")]
    assert len(rows) >= 4 and "load average" in rows[-1]
    assert not list(tmp_path.iterdir())


def test_the_benchmark_of_the_manager_ends_where_a_bit_is_wrong():
    training = manager.layers(1, 64)
    back = copy.deepcopy(training.state())
    manager.check("a copy", training, back)
    next(iter(back["model"].values()))[0, 0].neg_()
    with pytest.raises(WrongResult, match=r"a copy gave back other values: model/0\.weight"):
        manager.check("a copy", training, back)


def test_everybody_takes_a_turn_and_another_one_begins_each_time():
    order: list[str] = []
    jobs = {name: partial(_note, order, name) for name in "abc"}
    seconds = manager.take_turns(jobs, lambda: None, 2)
    assert order == list("abcbcacab")
    assert seconds == {"a": [5.0, 7.0], "b": [3.0, 8.0], "c": [4.0, 6.0]}


def _note(order: list[str], name: str) -> float:
    order.append(name)
    return float(len(order) - 1)


@pytest.mark.parametrize("setting", goodput.SETTINGS)
def test_the_benchmark_of_goodput_prints_a_row_for_everybody(
    setting: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    if setting == "pinned" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core only")
    peers = ["chainstore process", "torch.save + fsync"]
    goodput.main(["--quick", "--settings", setting, "--peers", *peers, "--folder", str(tmp_path)])
    rows = [line.split(" | ")[1] for line in capfd.readouterr().out.splitlines() if line.startswith(f"| {setting} |")]
    assert rows == [goodput.CONTROL, *peers]
    assert not list(tmp_path.iterdir())


def test_a_loss_is_of_throughput_next_to_the_blocks_beside_it():
    half = goodput.Record([goodput.Block(2.0, 0.0, 0.1, 0.0, 0.1)] * 9, [1.0] * 9, [0.1] * 9)
    assert half.loss(0) == (0.5, 0.5, 0.5)
    mixed = replace(half, without=[1.0, 2.0, 1.5] * 3)
    loss, low, high = mixed.loss(0)
    assert loss == 0.25 and 0 < low < 0.25 < high < 0.5


def test_who_gives_back_other_bits_is_in_no_table_of_goodput(tmp_path: Path):
    class Careless(goodput.TorchSave):
        name = "careless"

        def load(self) -> object:
            state = super().load()
            next(iter(flat(state).values())).view(-1)[0] += 1
            return state

    training = goodput.Training(16, 1, 8)
    goodput.check([goodput.TorchSave(tmp_path, training)], training)
    with pytest.raises(WrongResult, match="careless gave back other values"):
        goodput.check([Careless(tmp_path, training)], training)


def chain_run(tmp_path: Path, *options: str) -> ChainResults:
    """Run the benchmark of chains in tiny sizes, and return what it kept."""
    file = tmp_path / "results.json"
    assert chains.main(["--quick", *options, "--folder", str(tmp_path), "--json", str(file)]) == 0
    assert not re.search(r"/(?:home|root|work|tmp|var|mnt|opt|dev|usr)\b", file.read_text())
    found = ChainResults.from_json(file.read_text())
    file.unlink()
    assert not list(tmp_path.iterdir())
    return found


SEVERAL_KINDS = ("dense-gpt-k1", "lora", "fork-tree")  # the others differ in their states alone


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SEVERAL_KINDS else [pytest.mark.long]) for name in CHAINS]
)
def test_every_chain_comes_back_and_every_peer_has_a_row(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = chain_run(tmp_path, "--only", name, "--codecs", "small", "--rules", "BitX rule", "--backups")
    (subject,) = found.subjects
    assert [row.peer for row in found.storing] == ["chainstore small", chains.SAVE, chains.SYNC, "BitX rule"]
    assert all(len(row.stored_bytes) == subject.states and row.cpu_seconds > 0 for row in found.storing)
    assert sum(len(row.seconds) for row in found.restoring) > subject.states
    assert found.storing[0].ratio > found.storing[1].ratio  # something is squeezed, or kept once
    printed = capsys.readouterr().out
    assert chains.CHAINS[name].what in printed and ("target:" in printed) == (subject.target is not None)
    assert bool(subject.facts) == (name == "fork-tree")


def test_parts_of_random_states_are_restored_warm_and_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chains, "RESTORED", ("lora",))
    found = chain_run(tmp_path, "--only", "W8", "--codecs", "small")
    kinds = {(row.part, row.cache) for row in found.restoring}
    assert kinds == {(part, cache) for part in ("whole", "layer", "tensor") for cache in ("warm", "cold")}


def test_a_trace_gives_back_what_was_recorded_in_the_same_memory(tmp_path: Path):
    state = {"w": torch.randn(3, 2).bfloat16(), "frozen": torch.ones(4), "o": {0: [1.5, (True, None, "a")], 1: -0.0}}
    states = [copy.deepcopy({**state, "w": state["w"] * number}) for number in (1, -1, 2)]
    recorder = Recorder(tmp_path / "trace")
    for step, one in enumerate(states):
        recorder.add(one, step)
    trace = recorder.close("a key", "a run", ("w", "w"))
    assert find(tmp_path / "trace", "another key") is None and find(tmp_path / "trace", "a key") == trace
    assert (tmp_path / "trace" / "arrays.bin").stat().st_size == 3 * 12 + 16
    player = Player(trace)
    tensors = [player.state(number)["w"] for number in (2, 0, 1)]
    assert tensors[0] is tensors[1] is tensors[2]
    assert [differences(one, player.state(number)) for number, one in enumerate(states)] == [[], [], []]
    player.close()


def test_a_restore_of_one_wrong_bit_ends_the_benchmark_of_chains(tmp_path: Path):
    class Careless(TorchLoader):
        name = "careless"

        def load(self, number: int, select: str | None, cold: bool) -> object:
            back = super().load(number, select, cold)
            next(iter(flat(back).values())).view(-1)[0].neg_()
            return back

    reader = Careless(two_states(tmp_path), tmp_path / "file.pt")
    with pytest.raises(WrongResult, match="careless gave back other values than it got: w"):
        reader.do(0, "whole", False)
    reader.close()


def two_states(folder: Path) -> Trace:
    recorder = Recorder(folder / "trace")
    for number in range(2):
        recorder.add({"w": torch.arange(1.0, 40_000.0) + number, "n": number}, number)
    return recorder.close("key", "two states", ("w", "w"))


def test_a_part_of_a_state_is_restored_cold_and_compared(tmp_path: Path):
    trace = two_states(tmp_path)
    committer = Committer(trace, tmp_path / "place", "small")
    assert [committer.do(number).new_bytes // 150_000 for number in (0, 0)] == [1, 0]
    commits = dict(enumerate(committer.do(None).commits))
    committer.close()
    readers: list[Reader] = [Restorer(trace, tmp_path / "place", commits), TorchLoader(trace, tmp_path / "file.pt")]
    for reader in readers:
        assert reader.do(0, "tensor", True).seconds > 0
        reader.close()


class Copies(BackupPeer):
    """Keeps a copy of every file, each by name."""

    name, program = "copies", "cp"

    def settings(self) -> dict[str, str]:
        return {}

    def make(self) -> None:
        self.repo.mkdir()

    def store(self) -> None:
        self.call("--", "state.pt", str(self.repo / f"{self.saves:06d}"))

    def fetch(self) -> Path:
        return self.repo / f"{self.saves:06d}"


class Behind(Copies):
    """Gives back the file before the newest."""

    name = "behind"

    def fetch(self) -> Path:
        return self.repo / f"{self.saves - 1:06d}"


def test_a_backup_keeps_every_state_and_one_that_gives_back_another_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = two_states(tmp_path)
    monkeypatch.setattr(chain_workers, "BACKUPS", {"copies": Copies, "behind": Behind})
    with closing(BackupSaver(trace, tmp_path / "copies", "copies")) as saver:
        done = [saver.do(number) for number in (0, 1)]
        assert all(one.stored_bytes > 150_000 and one.seconds > 0 for one in done)
        assert saver.do(None).disk_bytes == sum(one.stored_bytes for one in done)
    with closing(BackupSaver(trace, tmp_path / "behind", "behind")) as saver:
        saver.do(0)
        saver.do(1)
        with pytest.raises(WrongResult, match="behind gave back other values than it got: "):
            saver.do(None)


def test_the_rules_of_peers_keep_what_is_new_and_give_it_back():
    before = arrays({"w": torch.linspace(1, 2, 1 << 19), "small": torch.ones(10), "other": torch.zeros(3)})
    moved = before["w"].data.view(np.float32) * np.float32(1.0001)
    now = {**before, "w": before["w"]._replace(data=moved.view(np.uint8))}
    dedupe, bitx = Dedupe(), BitX()
    for rule in (dedupe, bitx):
        first, second = rule.store(before, None), rule.store(now, before)
        assert [len(kept) for kept in (first, second)] == [3, 2]  # of 2 MiB, and the small ones together
        assert all(kept.back() == kept.data.tobytes() for kept in (*first, *second))
    assert dedupe.store(now, before) == []
    assert sum(kept.stored for kept in bitx.store(now, before)) < moved.nbytes / 1.5


def test_the_entropy_is_that_of_planes_of_the_integer_difference():
    words = np.arange(1024, dtype=np.uint32)
    before = {"w": Array(words.view(np.uint8), "uint32", 4)}
    now = {"w": Array((words + (words % 2)).astype(np.uint32).view(np.uint8), "uint32", 4)}
    assert difference_bits(now, before) == 1024  # one of two differences: a bit for each
    assert difference_bits(now, now) == 0
    assert difference_bits(before, None) == 1024 * (8 + 2)


def test_a_missed_target_is_told_next_to_the_entropy():
    subject = Subject("a", "W1", "a chain", 2, 8, 5.0, 1.5, ())
    row = chains.Storing("a", "chainstore small", True, 16, 8, (8, 10), 1, 0.5, 1.0, 1.0, None, None, 1)
    peer = replace(row, peer="rule", ours=False, stored_bytes=(8, 9))
    assert verdict(subject, [row, peer]) == [
        "chainstore small, states after the first: median 4.00x, worst 4.00x",
        "best peer: rule, 8.00x; ours stores 2.00 times as much",
        "target: 5.00x, missed with 4.00x after the first state, 1.60x with it; "
        "order-0 entropy of the integer differences: 1.50x",
    ]


def test_a_run_over_chains_is_kept_drawn_and_never_kept_where_it_was_quick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = chain_run(tmp_path, "--only", "frozen-cnn", "--codecs", "small", "--rules", "--backups")
    file = tmp_path / "kept.json"
    file.write_text(results.to_json())
    assert chains.main(["--from", str(file), "--write"]) == chains.MISUSED
    assert "**W6 frozen-cnn" in markdown.chains(results)
    told = chains.main(["--from", str(file), "--plots", str(tmp_path / "plots")])
    if importlib.util.find_spec("matplotlib"):
        drawn = {path.name for path in (tmp_path / "plots").iterdir()}
        assert told == 0 and drawn == {f"frozen-cnn-{what}.svg" for what in ("bytes", "throughput", "restore")}
    else:
        assert told == chains.MISUSED and "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("wanted", [["W4"], ["zipf-sparse", "zipf-dense-k1", "zipf-dense-k10"]])
def test_chains_are_asked_for_by_name_or_by_workload(wanted: list[str]):
    assert chains.chosen(wanted) == ["zipf-sparse", "zipf-dense-k1", "zipf-dense-k10"]
    assert chains.chosen(["W8"]) == [chains.RESTORE]
