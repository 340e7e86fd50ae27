"""`log`, `show`, `branch`, `tag`, `switch`, `reset`, `reflog`, `stats`, `doctor`: what they print, and their JSON."""

import re

import numpy as np
import pytest

import chainstore as cs
from chainstore.cli.wording import age, duration, size, table
from chainstore.config import now


def messages(done) -> list[str]:
    return [commit["message"].partition("\n")[0] for commit in done.json["commits"]]


def test_log_lists_commits_newest_first(chain, repo):
    lines = chain("log").out.splitlines()
    assert [line.split()[-1] for line in lines] == ["4", "3", "2", "1", "0"]
    assert "(HEAD -> main)" in lines[0] and "step 40" in lines[0] and "loss 0.2" in lines[0]
    assert "(wider, tag: best)" in lines[2]
    assert "more" not in "".join(lines)


def test_log_in_json_follows_its_schema(chain, repo):
    done = chain("log", "--json")
    assert done.json["schema"] == "chain.log/1"
    newest = done.json["commits"][0]
    assert re.fullmatch("[0-9a-f]{64}", newest["id"])
    assert newest["parents"] == [done.json["commits"][1]["id"]]
    assert newest["refs"] == ["HEAD -> main"] and newest["metrics"] == {"loss": 0.2} and newest["step"] == 40
    assert newest["message"] == "commit 4\nmore" and newest["time"].endswith("+00:00")
    assert newest["raw_bytes"] >= newest["new_bytes"] > 0


def test_log_can_be_narrowed(chain, repo):
    assert messages(chain("log", "-n", "2", "--json")) == ["commit 4", "commit 3"]
    assert messages(chain("log", "--step", "10:20", "--json")) == ["commit 2", "commit 1"]
    assert messages(chain("log", "--step", "30:", "--json")) == ["commit 4", "commit 3"]
    assert messages(chain("log", "--step", ":0", "--json")) == ["commit 0"]
    assert messages(chain("log", "wider", "--json")) == ["commit 2", "commit 1", "commit 0"]
    assert len(messages(chain("log", "--since", "1h", "--json"))) == 5
    assert messages(chain("log", "--since", "2200-01-01", "--json")) == []
    assert chain("log", "--since", "yesterday").code == 1


def test_log_of_all_branches_lists_each_commit_once(chain, repo):
    with cs.open(repo) as opened:
        opened.commit({"x": 1}, "aside", branch="wider")
    assert "aside" not in messages(chain("log", "--json"))
    everything = messages(chain("log", "--all", "--json"))
    assert len(everything) == len(set(everything)) == 6


def test_log_oneline_is_id_names_message(chain, repo):
    line = chain("log", "--oneline").out.splitlines()[0]
    assert re.fullmatch(r"[0-9a-f]{12}  \(HEAD -> main\)  commit 4", line)


def test_log_of_nothing_is_empty_and_says_so(chain, place):
    chain("init")
    done = chain("log")
    assert done.code == 0 and not done.out and "nothing was committed yet" in done.err
    assert chain("log", "--json").json["commits"] == []


def test_numbers_that_json_lacks_are_null_and_named(chain, place):
    with cs.init(place / ".chain") as repo:
        repo.commit(
            {"x": 1}, metrics={"loss": float("nan"), "top": float("inf"), "ok": 1.5}, meta={"a": [float("nan")]}
        )
    commit = chain("log", "--json").json["commits"][0]
    assert commit["metrics"] == {"loss": None, "top": None, "ok": 1.5}
    assert commit["nonfinite"] == {"loss": "nan", "top": "inf"} and commit["meta"] == {"a": ["nan"]}


def test_a_message_cannot_move_the_cursor(chain, place):
    with cs.init(place / ".chain") as repo:
        repo.commit({"x": 1}, "red \x1b[31m alert")
    for words in (["log"], ["show"], ["log", "--oneline"], ["branch"], ["reflog"]):
        assert "\x1b" not in chain(*words).out


def test_show_lists_what_a_snapshot_holds(chain, repo):
    done = chain("show", "best")
    assert "tag: best" in done.out and "commit 2" in done.out and "    more" in done.out
    assert re.search(r"w +float32 +2 x 3 +24 B", done.out) and re.search(r"cfg +value", done.out)
    entries = chain("show", "best", "--json").json["entries"]
    assert entries[0] == {"path": "w", "dtype": "float32", "shape": [2, 3], "nbytes": 24}
    assert entries[1]["path"] == "cfg" and entries[1]["dtype"] is None


def test_show_of_a_path_shows_the_tensor_or_the_value(chain, repo):
    facts = chain("show", "HEAD", "w", "--json").json["array"]
    assert facts["min"] == 4 and facts["max"] == 9 and facts["mean"] == 6.5 and facts["nan"] == 0
    assert facts["first"] == [4, 5, 6, 7, 8, 9]
    assert re.search("shape +2 x 3", chain("show", "HEAD", "w").out)
    assert chain("show", "HEAD", "cfg", "--json").json["value"] == {"lr": 0.1, "n": 4}
    assert chain("show", "HEAD", "cfg/lr").out == "0.1\n"


def test_show_of_a_part_lists_what_is_below(chain, place):
    with cs.init(place / ".chain") as repo:
        repo.commit({"a": {"x": np.zeros(2), "y": np.zeros(3)}, "b": np.zeros(4)})
    assert [entry["path"] for entry in chain("show", "HEAD", "a", "--json").json["entries"]] == ["a/x", "a/y"]


def test_show_of_a_wrong_path_names_the_nearest(chain, repo):
    done = chain("show", "HEAD", "cgf")
    assert done.code == 1 and "cfg" in done.err
    assert chain("show", "HEAD", "cfg/lx").code == 1


def test_branches_are_listed_made_and_deleted(chain, repo):
    assert chain("branch").out.splitlines()[0].split()[:2] == ["*", "main"]
    assert chain("branch", "late", "main~1").code == 0
    listed = chain("branch", "--json").json
    assert listed["current"] == "main" and [b["name"] for b in listed["branches"]] == ["late", "main", "wider"]
    assert chain("branch", "-d", "late").code == 0
    assert chain("branch", "-d", "late").code == 1
    assert chain("branch", "-d", "main").code == 1


def test_tags_are_listed_made_and_deleted_and_branches_of_the_name_stay(chain, repo):
    assert chain("tag", "wider", "main").code == 0
    assert [tag["name"] for tag in chain("tag", "--json").json["tags"]] == ["best", "wider"]
    assert chain("tag", "-d", "wider").code == 0
    assert "wider" in chain("branch").out
    done = chain("tag", "-d", "wider")
    assert done.code == 1 and "no tag of that name" in done.err


def test_switch_and_checkout_move_head(chain, repo):
    assert chain("switch", "wider").code == 0 and chain("branch", "--json").json["current"] == "wider"
    assert chain("checkout", "main").code == 0 and chain("branch", "--json").json["current"] == "main"
    assert chain("checkout", "HEAD").code == 0 and chain("branch", "--json").json["current"] == "main"
    done = chain("checkout", "step:10", "--json")
    assert done.code == 0 and done.json["branch"] is None
    assert "(HEAD)" in chain("log").out and "not on a branch" in chain("branch").err
    assert chain("switch", "widre").code == 1
    assert chain("switch", "-c", "new").code == 0
    assert messages(chain("log", "--json"))[0] == "commit 1"


def test_reset_moves_a_branch_and_the_reflog_takes_it_back(chain, repo):
    tip = chain("log", "-n1", "--json").json["commits"][0]["id"]
    assert chain("reset", "main~3").code == 0
    assert messages(chain("log", "--json"))[0] == "commit 1"
    moves = chain("reflog", "--json").json["moves"]
    assert moves[0]["old"] == tip and moves[0]["reason"] == "reset: to main~3"
    assert chain("reflog", "-n", "1").out.startswith("HEAD@{0}")
    assert chain("reset", "main@{1}").code == 0
    assert chain("log", "-n1", "--json").json["commits"][0]["id"] == tip
    assert chain("reset", "best", "--expect", "main~1").code == 13


def test_stats_and_doctor_have_json(chain, repo):
    assert chain("stats", "--json").json["commits"] == 5
    done = chain("doctor", "--json")
    assert done.code == 0 and done.json["ok"]
    states = {finding["what"]: finding["state"] for finding in done.json["findings"]}
    assert (
        states["commits"] in ("ok", "warn") and states["repository"] == "ok" and "torch" in states and "key" in states
    )
    assert [path.name for path in repo.parent.iterdir()] == [".chain"]
    assert "fail" not in chain("doctor").out


def test_doctor_reports_a_repository_that_does_not_open(chain, repo, own_settings):
    (own_settings / "user.key").unlink(missing_ok=True)
    for key in repo.glob("user.key"):
        key.unlink()
    done = chain("doctor")
    assert done.code == 12 and re.search("fail +repository", done.out) and "CHAIN_KEY_FILE" in done.out


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (9_980_000, "9.98 MB"), (999_999, "1 MB"), (2.5e12, "2.5 TB")],
)
def test_sizes_are_written_in_three_digits(nbytes, text):
    assert size(nbytes) == text


def test_times_are_written_for_people():
    moment = now()
    assert age(moment, moment) == "0 s ago"
    assert duration(0.0042) == "4.2 ms" and duration(75) == "1 min 15 s" and duration(59.99) == "60 s"


def test_columns_line_up_whatever_their_colour():
    assert list(table([("\x1b[33ma\x1b[0m", "b"), ("long", "c")])) == ["\x1b[33ma\x1b[0m     b", "long  c"]
