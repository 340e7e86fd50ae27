"""`chain estimate`: the numbers of a real chain, and nothing left behind."""

from pathlib import Path

import pytest
import torch


@pytest.fixture
def work(place, tmp_path, monkeypatch) -> Path:
    """Three checkpoints in the current folder, of which the last two are equal; returns a folder to work in."""
    frozen = torch.randn(20_000)
    for step, moving in ((2, 1.0), (10, 2.0), (20, 2.0)):
        torch.save({"frozen": frozen, "moving": torch.full((1000,), moving), "step": 7}, f"step_{step}.pt")
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


FILES = ("step_2.pt", "step_10.pt", "step_20.pt")


def test_an_estimate_is_what_the_commits_take(chain, place, work):
    done = chain("estimate", *FILES, "--tmp", work, "--json")
    assert done.code == 0 and done.json["schema"] == "chain.estimate/1"
    chain("init")
    commits = [each["commit"] for each in chain("import", *FILES, "--json").json["imported"]]
    rows = done.json["commits"]
    for row, commit in zip(rows[:2], commits, strict=False):
        assert row["raw_bytes"] == commit["raw_bytes"] and row["new_bytes"] == commit["new_bytes"]
        assert row["stored_bytes"] == pytest.approx(commit["stored_bytes"], rel=0.05)
    assert rows[1]["new_bytes"] <= 4100 and rows[2]["new_bytes"] == 0
    total = done.json["total"]
    for name in ("raw_bytes", "new_bytes", "stored_bytes"):
        assert total[name] == sum(row[name] for row in rows)
    assert total["ratio"] == pytest.approx(total["raw_bytes"] / total["stored_bytes"], rel=0.01)
    assert total["on_disk_bytes"] >= total["stored_bytes"] and total["seconds"] >= rows[0]["seconds"] > 0


def test_an_estimate_leaves_nothing_and_needs_no_repository(chain, place, work, own_settings):
    before, settings = sorted(place.rglob("*")), sorted(own_settings.rglob("*"))
    done = chain("estimate", *FILES, "--tmp", work)
    assert done.code == 0 and not list(work.iterdir())
    assert sorted(place.rglob("*")) == before and sorted(own_settings.rglob("*")) == settings
    assert str(work) in done.err and "free" in done.err
    for word in ("step_10.pt", "3 commits", "ratio", "on disk"):
        assert word in done.out


def test_an_estimate_that_fails_leaves_nothing(chain, place, work):
    torch.save(torch.nn.Linear(2, 2), "whole.pt")
    assert chain("estimate", "step_2.pt", "whole.pt", "--tmp", work).code == 1
    assert not list(work.iterdir())


def test_an_interrupt_leaves_nothing(chain, place, work, monkeypatch):
    def interrupt(app, source):
        raise KeyboardInterrupt

    monkeypatch.setattr("chainstore.cli.estimate.load", interrupt)
    assert chain("estimate", "step_2.pt", "--tmp", work).code == 130
    assert not list(work.iterdir())


def test_a_folder_without_room_is_refused_with_the_flag_that_names_another(chain, place, work):
    with Path("huge.bin").open("wb") as stream:
        stream.truncate(1 << 42)  # a hole, which takes no room
    done = chain("estimate", "--as-file", "huge.bin", "--tmp", work)
    assert done.code == 16 and "--tmp" in done.err and not list(work.iterdir())


def test_steps_order_an_estimate_too(chain, place, work):
    done = chain("estimate", *reversed(FILES), "--step-from-name", r"step_(\d+)", "--tmp", work, "--json")
    assert [row["step"] for row in done.json["commits"]] == [2, 10, 20]


def test_a_temporary_folder_that_is_none_is_wrong_usage(chain, place, work):
    assert chain("estimate", "step_2.pt", "--tmp", "none").code == 2
