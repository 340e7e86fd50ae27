"""`chain diff`: what it prints, its JSON, its exit codes, and what it does not load."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs


def layers(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {f"layer{n}": random.standard_normal((40, 50)).astype(np.float32) for n in range(4)}


@pytest.fixture
def run(place: Path) -> Path:
    """A run of three commits: in the second every layer moves by other amounts, in the third one value is NaN."""
    with cs.init(place / ".chain") as repo:
        state = {"model": layers(0), "opt": {"lr": 0.1}}
        repo.commit(state, "one", step=1, metrics={"loss": 2.0}, meta={"cfg": {"wd": 0.1}})
        for n, layer in enumerate(state["model"].values()):
            layer *= 1 + 0.1 * (n + 1)
        state["opt"]["lr"] = 0.05
        repo.commit(state, "two", step=2, metrics={"loss": 1.0}, meta={"cfg": {"wd": 0.2}})
        state["model"]["layer1"][7, 7] = np.nan
        repo.commit(state, "three", step=3, tags=["bad"])
    return place / ".chain"


def tensors(done) -> list[str]:
    return [tensor["path"] for tensor in done.json["tensors"]]


def test_each_changed_tensor_has_a_line_the_largest_change_first(chain, run):
    lines = chain("diff", "main~2", "main~1").out.splitlines()
    assert lines[0].startswith("a  ") and "step 1" in lines[0] and lines[1].startswith("b  ") and "two" in lines[1]
    assert lines[2] == "tensors: 4 changed; 1 value differs"
    rows = [line.split() for line in lines if line.startswith("  model/")]
    assert [row[:3] for row in rows] == [[f"model/layer{n}", "changed", f"0.{n + 1}"] for n in (3, 2, 1, 0)]
    assert "float32 40 x 50" in lines[5]


def test_values_metrics_and_meta_are_told(chain, run):
    out = chain("diff", "main~2", "main~1").out
    for line in ("opt/lr  0.1 -> 0.05", "loss  2.0 -> 1.0", "cfg/wd  0.1 -> 0.2"):
        assert f"  {line}\n" in out


def test_the_new_side_is_head_where_none_is_named(chain, run):
    assert chain("diff", "main~1", "--json").json["b"]["message"] == "three"


def test_two_dots_are_two_commits(chain, run):
    spaced, dotted = chain("diff", "main~2", "main~1"), chain("diff", "main~2..main~1")
    assert spaced.out == dotted.out and spaced.code == 0
    assert chain("diff", "main~1..", "--json").json["b"]["message"] == "three"


def test_one_nan_in_one_tensor_is_found_and_ends_with_5(chain, run):
    done = chain("diff", "main~1", "main", "--fail-on", "nan,inf")
    assert done.code == 5 and "nan: model/layer1: 1 of 2,000 are NaN, 0 before" in done.err
    assert chain("diff", "main~2", "main~1", "--fail-on", "nan,inf,explode").code == 0
    assert chain("diff", "main~1", "main", "--fail-on", "inf,explode").code == 0


def test_a_nan_outside_of_select_does_not_count(chain, run):
    assert chain("diff", "main~1", "main", "--fail-on", "nan", "--select", "model/layer2").code == 0


def test_an_explosion_ends_with_5(chain, run):
    with cs.open(run) as repo:
        state = repo.checkout("main~1")
        state["model"]["layer0"] *= 1000
        repo.commit(state)
    done = chain("diff", "main~2", "main", "--fail-on", "explode")
    assert done.code == 5 and "explode: model/layer0: relative change" in done.err


def test_a_nan_that_was_there_before_is_found_where_all_is_measured(chain, run):
    with cs.open(run) as repo:
        repo.commit(repo.checkout("main") | {"more": 1})
    assert chain("diff", "main~1", "--fail-on", "nan").code == 0
    done = chain("diff", "main~1", "--fail-on", "nan", "--unchanged")
    assert done.code == 5 and "1 before" in done.err and "model/layer3" in done.out


def test_json_follows_its_schema(chain, run):
    found = chain("diff", "main~1", "bad", "--json", "--fail-on", "nan")
    assert found.code == 5 and found.json["schema"] == "chain.diff/1"
    assert found.json["counts"] == {"changed": 1, "equal": 3} and found.json["same"] is False
    (tensor,) = found.json["tensors"]
    assert tensor["path"] == "model/layer1" and tensor["status"] == "changed" and tensor["nan_b"] == 1
    assert tensor["old"] == tensor["new"] == {"dtype": "float32", "shape": [40, 50]}
    assert tensor["norm_diff"] == 0 and tensor["norm_a"] > 0 and tensor["aliases"] == []
    assert found.json["anomalies"][0] == {
        "kind": "nan",
        "path": "model/layer1",
        "why": "1 of 2,000 are NaN, 0 before",
        "fails": True,
    }
    assert found.json["metrics"] == [
        {"path": "loss", "status": "removed", "old": 1.0, "new": None, "text": "removed: 1.0"}
    ]


def test_numbers_that_json_lacks_are_null_and_named(chain, place):
    with cs.init(place / ".chain") as repo:
        repo.commit({"w": np.zeros(9), "v": 1.0})
        repo.commit({"w": np.ones(9), "v": float("nan")})
    found = chain("diff", "main~1", "--json")
    (tensor,) = found.json["tensors"]
    assert tensor["relative"] is None and tensor["nonfinite"] == {"relative": "inf"}
    assert found.json["values"][0]["new"] == {"repr": "nan"}
    json.loads(found.out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("name", ["layer0", "layer1"]), ("rel", ["layer3", "layer2"]), ("norm", ["layer3", "layer2"])],
)
def test_the_first_tensors_of_an_order_are_shown(chain, run, order, expected):
    done = chain("diff", "main~2", "main~1", "--sort", order, "--top", "2", "--json")
    assert tensors(done) == [f"model/{name}" for name in expected]
    assert "... 2 more" in chain("diff", "main~2", "main~1", "--top", "2").out


def test_nothing_but_names_is_read_without_norms(chain, run):
    found = chain("diff", "main~1", "--no-norms", "--json").json
    assert found["tensors"][0]["norm_a"] is None and found["anomalies"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-on", "spikes"],
        ["--sort", "size"],
        ["--no-norms", "--fail-on", "nan"],
        ["--no-norms", "--unchanged"],
        [],
    ],
)
def test_wrong_usage_is_2(chain, run, words):
    assert chain("diff", *(["main~1"] if words else []), *words).code == 2


def test_an_unknown_commit_is_1_and_says_what_is_near(chain, run):
    done = chain("diff", "mian", "main")
    assert done.code == 1 and "main" in done.err


def test_equal_commits_have_no_differences(chain, run):
    done = chain("diff", "main", "bad")
    assert done.code == 0 and done.out.splitlines()[2] == "tensors: 4 equal"
    assert chain("diff", "main", "bad", "--json").json["same"] is True


def test_names_and_values_cannot_move_the_cursor(chain, place):
    with cs.init(place / ".chain") as repo:
        for n in (1, 2):
            repo.commit({"a\x1b[31m": np.full(3, n), "v": f"\x1b[31m{n}"})
    assert "\x1b" not in chain("diff", "main~1").out


def test_a_diff_loads_no_torch_and_without_norms_no_numpy(run):
    program = (
        "import sys; from chainstore.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'torch', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )

    def loaded(*words: str) -> str:
        command = [sys.executable, "-c", program, "-C", str(run), "diff", *words]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ.copy()).stderr.strip()

    assert loaded("main~2", "main~1") == "0 ['numpy']"
    assert loaded("main", "main") == "0 []"
