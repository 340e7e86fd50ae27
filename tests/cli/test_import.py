"""`chain import`: checkpoints of other tools become commits, in order, and what would run code is refused."""

import json
import pickle
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as library
import torch
import torch.distributed.checkpoint as dcp

import chainstore as cs
from chainstore.testing.same import assert_same

MODEL = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3).bfloat16()}  # in the order of a safetensors file


@pytest.fixture
def empty(chain, place) -> Path:
    assert chain("init", "--no-encrypt").code == 0
    return place


def steps(*numbers: int) -> list[str]:
    """Write `step_N.pt` for each number and return the names, in that order."""
    for number in numbers:
        torch.save({"model": {"w": torch.full((50,), float(number))}}, f"step_{number}.pt")
    return [f"step_{number}.pt" for number in numbers]


def hf(path: Path, step: int = 5) -> Path:
    path.mkdir()
    library.save_file(MODEL, path / "model.safetensors", {"format": "pt"})
    torch.save({"state": {}, "param_groups": [{"lr": 0.1}]}, path / "optimizer.pt")
    (path / "config.json").write_text('{"a": 1}')
    told = {"global_step": step, "epoch": 1.5, "log_history": [{"step": step, "loss": 0.5}]}
    (path / "trainer_state.json").write_text(json.dumps(told))
    return path


def log(chain) -> list[tuple[int | None, str]]:
    return [(c["step"], c["message"]) for c in reversed(chain("log", "--json").json["commits"])]


def test_many_paths_are_many_commits_in_the_order_given(chain, empty):
    done = chain("import", *steps(3, 1, 2), "--json")
    assert done.code == 0 and done.json["schema"] == "chain.import/1" and done.json["branch"] == "main"
    assert [each["path"] for each in done.json["imported"]] == ["step_3.pt", "step_1.pt", "step_2.pt"]
    assert log(chain) == [(None, "import step_3.pt"), (None, "import step_1.pt"), (None, "import step_2.pt")]


def test_steps_in_names_are_sorted_as_numbers(chain, empty):
    done = chain("import", *steps(10, 9, 100), "--step-from-name", r"step_(\d+)", "-m", "at {step}: {stem} ({kind})")
    assert done.code == 0
    assert log(chain) == [(n, f"at {n}: step_{n} (torch)") for n in (9, 10, 100)]
    assert_same(torch.full((50,), 10.0), cs.open(".chain").checkout("step:10")["model"]["w"], sharing=False)


def test_a_step_that_is_missing_from_a_name_is_refused_before_anything_is_imported(chain, empty):
    torch.save({}, "last.pt")
    done = chain("import", *steps(1), "last.pt", "--step-from-name", r"step_(\d+)")
    assert done.code == 1 and "last.pt" in done.err and not log(chain)
    assert chain("import", "last.pt", "--step-from-name", "step_").code == 2
    assert chain("import", "last.pt", "--step-from-name", "(").code == 2


def test_a_step_inside_the_checkpoint_is_used(chain, empty):
    torch.save({"model": MODEL, "global_step": 12}, "a.pt")
    assert chain("import", "a.pt").code == 0 and log(chain) == [(12, "import a.pt")]


def test_every_kind_is_recognized_and_comes_back(chain, empty):
    torch.save({"model": MODEL}, "a.bin")
    library.save_file(MODEL, "b.any")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": MODEL, "step": 7}, checkpoint_id="c", no_dist=True)
    hf(Path("d"))
    np.savez("e.npz", a=np.arange(3))
    done = chain("import", "a.bin", "b.any", "c", "d", "e.npz", "--json")
    assert done.code == 0 and [each["kind"] for each in done.json["imported"]] == [
        "torch",
        "safetensors",
        "dcp",
        "hf",
        "numpy",
    ]
    with cs.open(".chain") as repo:
        assert_same({"model": MODEL}, repo.checkout("main~4"), sharing=False)
        assert_same(MODEL, repo.checkout("main~3"), sharing=False)
        assert_same({"model": MODEL, "step": 7}, repo.checkout("main~2"), sharing=False)
        assert_same(MODEL, repo.checkout("main~1")["model"], sharing=False)
        assert_same({"a": np.arange(3)}, repo.checkout("main"), sharing=False)
        assert repo.get_commit("main~2").step == 7


def test_a_hugging_face_folder_brings_step_metrics_and_files(chain, empty):
    hf(Path("checkpoint-5"))
    commit = chain("import", "checkpoint-5", "--json").json["imported"][0]["commit"]
    assert commit["step"] == 5 and commit["epoch"] == 1 and commit["metrics"] == {"loss": 0.5}
    assert commit["meta"] == {"imported": {"from": "checkpoint-5", "kind": "hf"}}
    snap = cs.open(".chain")["HEAD"]
    assert snap.files == ["config.json", "trainer_state.json"]
    assert snap.read_file("config.json") == b'{"a": 1}'


def test_a_branch_is_made_and_head_stays(chain, empty):
    assert chain("import", *steps(1), "-b", "old").code == 0
    branches = {b["name"] for b in chain("branch", "--json").json["branches"]}
    assert branches == {"old"} and chain("log", "old", "--json").json["commits"]


def test_what_equals_the_tip_is_skipped(chain, empty):
    names = steps(1, 2)
    chain("import", *names)
    done = chain("import", "step_2.pt", "--json")
    assert done.code == 0 and done.json["skipped"] == 1 and "step_2.pt" in done.err and len(log(chain)) == 2


def test_a_dry_run_reads_everything_and_commits_nothing(chain, empty):
    torch.save(torch.nn.Linear(2, 2), "whole.pt")
    hf(Path("d"))
    done = chain("import", *steps(2, 1), "d", "--dry-run", "--json")
    assert done.code == 0 and done.json["dry_run"] and not log(chain)
    told = done.json["imported"][2]
    assert told["step"] == 5 and told["files"] == ["config.json", "trainer_state.json"] and told["kind"] == "hf"
    assert "3 commits would be made" in chain("import", *steps(2, 1), "d", "--dry-run").out
    assert chain("import", "whole.pt", "--dry-run").code == 1


def test_a_metric_that_is_no_number_is_null_and_named(chain, empty):
    (hf(Path("d")) / "trainer_state.json").write_text('{"global_step": 3, "log_history": [{"step": 3, "loss": NaN}]}')
    dry = chain("import", "d", "--dry-run", "--json").json["imported"][0]
    assert dry["metrics"] == {"loss": None} and dry["nonfinite"] == {"loss": "nan"}
    commit = chain("import", "d", "--json").json["imported"][0]["commit"]
    assert commit["metrics"] == {"loss": None} and commit["nonfinite"] == {"loss": "nan"}


class Bomb:
    """Unpickling it makes a file."""

    def __reduce__(self):
        return open, ("exploded", "w")


def test_a_file_that_would_run_code_is_refused_and_runs_nothing(chain, empty):
    torch.save({"w": torch.ones(1), "x": Bomb()}, "bomb.pt")
    done = chain("import", "bomb.pt")
    assert done.code == 1 and "open" in done.err and "--as-file" in done.err
    Path("raw.pt").write_bytes(pickle.dumps(Bomb()))
    done = chain("import", "raw.pt")
    assert done.code == 1 and "pickle" in done.err and "--as-file" in done.err
    assert chain("import", "--as-file", "bomb.pt", "raw.pt").code == 0
    assert cs.open(".chain")["HEAD"].read_file("raw.pt") == Path("raw.pt").read_bytes()
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"<html>", "HTML"),
        (b'{"a": 1}', "JSON"),
        (b"\x08\x07\x12\x07", "ONNX"),
        (b"", "empty"),
    ],
)
def test_what_is_no_checkpoint_is_named_with_the_flag_that_takes_it(chain, empty, content, what):
    Path("x.pt").write_bytes(content)
    done = chain("import", "x.pt", "--json")
    error = done.json["error"]
    assert done.code == 1 and what in error["message"] and "chain import --as-file x.pt" in error["hint"]
    assert chain("import", "--as-file", "x.pt").code == 0


def test_a_wrong_kind_is_refused_by_what_the_path_looks_like(chain, empty):
    steps(1)
    done = chain("import", "step_1.pt", "--kind", "hf")
    assert done.code == 1 and "torch.save" in done.err
    assert chain("import", "step_1.pt", "--kind", "safetensors").code == 1
    assert chain("import", "step_1.pt", "--kind", "torch").code == 0
    done = chain("import", "torch", "step_1.pt")
    assert done.code == 1 and "--kind torch" in done.err
    assert chain("import", "step_1.pt", "--kind", "torch", "--as-file").code == 2


def test_a_failure_half_way_says_what_stays(chain, empty):
    names = steps(1, 2)
    torch.save({"x": Bomb()}, "bomb.pt")
    done = chain("import", *names, "bomb.pt")
    assert done.code == 1 and "2 checkpoints before it stay committed" in done.err and len(log(chain)) == 2


def test_an_interrupt_says_what_stays(chain, empty, monkeypatch):
    names = steps(1, 2)
    real, calls = import_module("chainstore.cli.import").load, iter([False, True])

    def interrupted(app, source):
        if next(calls):
            raise KeyboardInterrupt
        return real(app, source)

    monkeypatch.setattr("chainstore.cli.import.load", interrupted)
    done = chain("import", *names)
    assert done.code == 130 and "1 of 2 checkpoints" in done.err and len(log(chain)) == 1


def test_an_unknown_field_of_the_message_is_wrong_usage(chain, empty):
    done = chain("import", *steps(1), "-m", "{setp}")
    assert done.code == 2 and "{setp}" in done.err and "{step}" in done.err


def test_import_needs_a_repository(chain, place):
    assert chain("import", *steps(1)).code == 10
