"""`forget`: one plan, printed and applied; what cannot be meant is refused and named."""

import re

import pytest

import chainstore as cs
from chainstore.cli.main import main
from chainstore.model.change import Swept

RULES = ("--keep-last", "1", "--keep-every-steps", "20")


def steps(plan: dict, *, kept: bool) -> list[int]:
    return [commit["step"] for commit in plan["commits"] if commit["kept"] is kept]


def marked(chain) -> list[int]:
    return [commit["step"] for commit in chain("log", "--json").json["commits"] if "forgotten" in commit]


def sweep(repo, revision: str) -> None:
    """Stand for a gc that took a snapshot."""
    with cs.open(repo) as opened:
        opened._handle.db.publish(None, [Swept((opened.resolve(revision),))])


def test_the_dry_run_and_the_run_print_the_same_plan(chain, repo):
    dry = chain("forget", *RULES, "--dry-run", "--json")
    assert dry.code == 0 and marked(chain) == []
    done = chain("forget", *RULES, "--json")
    assert done.code == 0 and marked(chain) == [30, 10]
    assert done.json == {**dry.json, "dry_run": False}
    assert (done.json["kept"], done.json["dropped"], done.json["policy"]) == (3, 2, "keep-last 1, keep-every-steps 20")
    assert steps(done.json, kept=True) == [40, 20, 0] and steps(done.json, kept=False) == [30, 10]
    (tip, *_) = done.json["commits"]
    assert tip["reasons"] == ["tip of main", "last of main", "every 20 steps of main"] and tip["branches"] == ["main"]


def test_people_read_a_table_with_the_reasons(chain, repo):
    done = chain("forget", *RULES)
    lines = done.out.splitlines()
    assert lines[0].split() == ["COMMIT", "STEP", "TIME", "BRANCHES", "REASONS"]
    assert re.fullmatch(r"[0-9a-f]{12} +40 +\S+ \S+ UTC +main +keep +tip of main, last of main, every 20.*", lines[1])
    assert re.fullmatch(r"[0-9a-f]{12} +30 +\S+ \S+ UTC +main +drop", lines[2])
    assert "main, wider" in lines[3] and "tag best" in lines[3]
    assert lines[-1] == "dropped 2 of 5 snapshots by keep-last 1, keep-every-steps 20"
    assert "chain forget --undo" in done.err
    again = chain("forget", *RULES)
    assert again.out.splitlines()[-1].startswith("dropped 0 of 3 snapshots") and "undo" not in again.err


def test_log_and_show_tell_what_was_forgotten(chain, repo):
    chain("forget", "--keep-last", "1")
    lines = chain("log").out.splitlines()
    assert [("forgotten" in line) for line in lines] == [False, True, False, True, True]
    assert [("forgotten" in line) for line in chain("log", "--oneline").out.splitlines()] == [
        "forgotten" in line for line in lines
    ]
    shown = chain("show", "main~1")
    assert shown.code == 0
    assert re.search(r"^forgotten +on \d{4}-\d\d-\d\d by keep-last 1; `chain forget --undo \w+`", shown.out, re.M)
    found = chain("show", "main~1", "--json").json
    assert found["entries"] == [] and found["commit"]["forgotten"]["policy"] == "keep-last 1"
    assert found["commit"]["forgotten"]["swept"] is False
    assert chain("show", "main~1", "w").code == 1
    sweep(repo, "main~1")
    assert "gc has taken it" in chain("show", "main~1").out
    assert chain("log", "--json").json["commits"][1]["forgotten"]["swept"] is True


def test_a_checkout_of_a_forgotten_one_says_when_and_by_which_policy(chain, repo):
    chain("forget", "--keep-last", "1")
    for words in (["checkout", "main~1", "-o", "out"], ["cat", "main~1", "w"], ["ls", "main~1"], ["diff", "main~1"]):
        done = chain(*words)
        assert done.code == 1 and re.search(r"was forgotten on \d{4}-\d\d-\d\d by keep-last 1\n", done.err)
        assert "hint: `chain forget --undo" in done.err


def test_undo_brings_back_all_or_some_until_gc(chain, repo):
    chain("forget", *RULES)
    some = chain("forget", "--undo", "step:10", "--json")
    assert some.code == 0 and len(some.json["restored"]) == 1 and marked(chain) == [30]
    every = chain("forget", "--undo")
    assert every.out.splitlines()[-1] == "1 snapshot brought back" and marked(chain) == []
    assert chain("forget", "--undo").out == "nothing there is forgotten\n"
    chain("forget", *RULES)
    sweep(repo, "step:10")
    gone = chain("log", "--step", "10", "--json").json["commits"][0]["id"][:12]
    done = chain("forget", "--undo", "step:10", "step:30")
    assert done.code == 1 and gone in done.err and marked(chain) == [30, 10]
    assert chain("forget", "--undo").code == 0 and marked(chain) == [10]
    done = chain("forget", "--undo")
    assert done.code == 1 and f"1 snapshot for good: {gone}" in done.err


def test_commits_are_forgotten_by_name_and_what_has_a_name_is_refused(chain, repo):
    done = chain("forget", "main~1", "step:0", "--json")
    assert done.code == 0 and steps(done.json, kept=False) == [30, 0] and done.json["policy"] == "hand"
    for revision, why in (("main", "tip of main"), ("best", "tip of wider, tag best")):
        done = chain("forget", "step:10", revision)
        assert done.code == 1 and why in done.err and "chain tag -d" in done.err
    chain("checkout", "step:10")
    assert "HEAD" in chain("forget", "step:10").err
    assert marked(chain) == [0]  # of the detached HEAD's own history


def test_a_stored_policy_is_used_where_no_rule_is_given(chain, repo):
    done = chain("forget")
    assert done.code == 2 and "no rule is given" in done.err and "--store" in done.err
    stored = chain("forget", "--keep-last", "2", "--keep-best", "1", "--metric", "loss", "--store", "--json")
    assert stored.code == 0 and stored.json["stored"] is True
    assert chain("config", "get", "retention", "--show-origin").out == "last=2 best=loss:min:1  (the repository)\n"
    chain("forget", "--undo")
    alone = chain("forget", "--json")
    assert {**alone.json, "stored": True} == stored.json
    assert chain("config", "set", "retention", "every_steps=40 first").code == 0
    chain("forget", "--undo")
    assert chain("forget", "--dry-run", "--json").json["policy"] == "keep-every-steps 40, keep-first"
    assert chain("config", "unset", "retention").code == 0
    assert chain("forget").code == 2
    for wrong in ("last=0", "often"):
        done = chain("config", "set", "retention", wrong)
        assert done.code == 1 and "retention:" in done.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--keep-last", "0"], "'--keep-last': '0'"),
        (["--keep-daily", "-2"], "'--keep-daily': '-2'"),
        (["--keep-weekly", "x"], "'--keep-weekly': 'x'"),
        (["--keep-last", "1.5"], "'--keep-last': '1.5'"),
        (["--keep-every-steps", "0"], "--keep-every-steps"),
        (["--keep-within", "soon"], "'--keep-within': 'soon'"),
        (["--keep-within", "0s"], "'--keep-within': '0s'"),
        (["--keep-best", "0", "--metric", "loss"], "'--keep-best': '0'"),
        (["--keep-best", "1"], "--metric"),
        (["--metric", "loss"], "--keep-best"),
        (["--keep-last", "1", "--mode", "max"], "--mode"),
        (["--keep-best", "1", "--metric", "los"], "'los': did you mean loss?"),
        (["--keep-best", "1", "--metric", "loss", "--mode", "least"], "--mode"),
        (["--keep-tag", "none"], "keeps no snapshot of main, wider"),
        (["--keep-tag", "none", "--group-by", "none"], "--unsafe-allow-remove-all"),
        (["--group-by", "none"], "--group-by"),
        (["--group-by", "host", "--keep-last", "1"], "host"),
        (["--store"], "--store"),
        (["--store", "--dry-run", "--keep-last", "1"], "exclude"),
        (["--undo", "--dry-run"], "exclude"),
        (["--undo", "--keep-last", "1"], "exclude"),
        (["--undo", "--unsafe-allow-remove-all"], "exclude"),
        (["main~1", "--keep-last", "1"], "exclude"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_wrong_usage_that_names_it(chain, repo, words, named):
    done = chain("forget", *words)
    assert done.code == 2 and named in done.err, done.err
    assert marked(chain) == []


def test_every_rule_of_the_command_line_reaches_the_policy(chain, repo):
    words = ["--keep-last", "all", "--keep-hourly", "1", "--keep-daily", "2", "--keep-weekly", "3"]
    words += ["--keep-monthly", "4", "--keep-yearly", "5", "--keep-within", "1d 12h", "--keep-tag", "v*"]
    words += ["--keep-tag", "w", "--keep-every-steps", "6", "--keep-best", "7", "--metric", "loss", "--mode", "max"]
    done = chain("forget", *words, "--keep-first", "--group-by", "none", "--store")
    assert done.code == 0
    assert chain("config", "get", "retention").out.strip() == (
        "last=all hourly=1 daily=2 weekly=3 monthly=4 yearly=5 within=1d12h 'tag=v*' tag=w every_steps=6 "
        "best=loss:max:7 first group_by=none"
    )


def test_all_but_what_has_a_name_is_dropped_where_that_is_allowed(chain, repo):
    done = chain("forget", "--keep-tag", "none", "--unsafe-allow-remove-all", "--json")
    assert done.code == 0 and steps(done.json, kept=True) == [40, 20]


def test_a_branch_at_a_forgotten_commit_brings_it_back(chain, repo):
    chain("forget", "--keep-last", "1")
    assert marked(chain) == [30, 10, 0]
    assert chain("branch", "again", "step:30").code == 0 and marked(chain) == [10, 0]
    assert chain("checkout", "again", "-o", "out", "--format", "dir").code == 0


def test_forget_needs_no_torch_and_no_repository_is_an_error(place):
    assert main(["forget", "--keep-last", "1"]) == 10
