"""`rollback`: a branch goes back to where it was good, and where it had got to keeps a name."""

import re
from datetime import UTC, datetime, timedelta

import pytest

import chainstore as cs
from chainstore.errors import InvalidInput, RefConflict, RevisionNotFound, SnapshotForgotten
from chainstore.model.change import Mark, Swept


def steps(chain, *words: str) -> list[int]:
    return [commit["step"] for commit in chain("log", *words, "--json").json["commits"]]


def test_the_branch_goes_back_and_the_tip_keeps_a_tag(chain, repo):
    tip = chain("log", "-n1", "--json").json["commits"][0]["id"]
    done = chain("rollback", "--to", "main~2", "--reason", "loss is NaN", "--json")
    assert done.code == 0 and done.json["was"] == tip and done.json["branch"] == "main"
    assert re.fullmatch(r"abandoned/main/\d{8}T\d{6}Z", done.json["tag"])
    assert steps(chain) == [20, 10, 0]
    assert steps(chain, done.json["tag"])[0] == 40
    move = chain("reflog", "--json").json["moves"][0]
    assert move["old"] == tip and move["reason"] == f"rollback: to {done.json['id'][:12]}: loss is NaN"
    assert chain("verify").code == 0


def test_two_rollbacks_within_a_second_have_two_tags(chain, repo):
    for _ in range(3):
        assert chain("rollback", "--to", "main~1", "--reason", "again").code == 0
    assert len([tag for tag in chain("tag", "--json").json["tags"] if tag["name"].startswith("abandoned/main/")]) == 3


def test_steps_are_optimizer_steps_and_at_least_so_many(chain, repo):
    assert chain("rollback", "--steps", "15", "--reason", "spike").code == 0
    assert steps(chain)[0] == 20
    assert chain("rollback", "--steps", "500", "--reason", "spike").code == 1
    assert steps(chain)[0] == 20


def test_before_a_time_is_the_newest_commit_before_it(repo):
    with cs.open(repo) as opened:
        commits = list(opened.log())
        done = opened.rollback("main", before=commits[1].time)
        assert done.new == commits[2].id and opened.head == commits[2]
        with pytest.raises(RevisionNotFound):
            opened.rollback("main", before=datetime.now(UTC) - timedelta(days=1))
        with pytest.raises(InvalidInput):
            opened.rollback("main", before=datetime.now())
    assert done.old == commits[0].id


def test_another_branch_can_be_rolled_back_and_head_stays(chain, repo):
    assert chain("rollback", "wider", "--steps", "1", "--reason", "bad data").code == 0
    assert steps(chain, "wider")[0] == 10 and steps(chain)[0] == 40


def test_a_rollback_only_goes_back(chain, repo):
    with cs.open(repo) as opened:
        opened.commit({"x": 1}, "aside", branch="wider")
    done = chain("rollback", "--to", "wider", "--reason", "x")
    assert done.code == 1 and "not in the past" in done.err and "chain reset" in done.err
    assert chain("rollback", "--to", "main", "--reason", "x").code == 1
    assert steps(chain)[0] == 40 and not [t for t in chain("tag", "--json").json["tags"] if "abandoned" in t["name"]]


@pytest.mark.parametrize(
    "words",
    [
        ["--reason", "x"],
        ["--to", "main~1"],
        ["--to", "main~1", "--steps", "1", "--reason", "x"],
        ["--steps", "0", "--reason", "x"],
    ],
)
def test_where_to_and_why_must_be_said(chain, repo, words):
    assert chain("rollback", *words).code == 2


def test_a_branch_that_is_not_there_and_a_detached_head_are_errors(chain, repo):
    assert "did you mean main" in chain("rollback", "mian", "--to", "main~1", "--reason", "x").err
    chain("checkout", "main~1")
    assert chain("rollback", "--to", "main~2", "--reason", "x").code == 2


def test_exactly_one_goal_is_taken(repo):
    with cs.open(repo) as opened:
        for goals in ({}, {"to": "main~1", "steps": 1}, {"steps": 0}):
            with pytest.raises(InvalidInput):
                opened.rollback("main", **goals)


def test_a_commit_without_a_step_has_nothing_to_count_back_from(repo):
    with cs.open(repo) as opened:
        opened.commit({"x": 1})
        with pytest.raises(InvalidInput, match="no step"):
            opened.rollback("main", steps=1)


def test_a_branch_with_a_long_name_can_be_rolled_back(repo):
    name = "ü" * 120 + "/x"
    with cs.open(repo) as opened:
        opened.branch(name)
        done = opened.rollback(name, to="main~1")
        assert done.tag in opened.tags() and len(done.tag.encode()) <= 255


def test_a_branch_that_moved_meanwhile_is_left_alone(repo, monkeypatch):
    from chainstore.repository import refs

    with cs.open(repo) as opened, cs.open(repo) as other:
        looked_up = refs.earlier_commit

        def and_somebody_commits(*args, **kwargs):
            found = looked_up(*args, **kwargs)
            other.commit({"x": 1}, "meanwhile")
            return found

        monkeypatch.setattr(refs, "earlier_commit", and_somebody_commits)
        with pytest.raises(RefConflict):
            opened.rollback("main", to="main~1")
        assert opened.head is not None and opened.head.message == "meanwhile" and len(opened.tags()) == 1


def test_a_snapshot_that_was_forgotten_is_passed_over(chain, repo):
    with cs.open(repo) as opened:
        gone = opened.resolve("main~1")
        opened._handle.db.publish(None, [Mark((gone,), "keep-last 1"), Swept((gone,))])
        with pytest.raises(SnapshotForgotten):
            opened.rollback("main", to="main~1")
        assert opened.rollback("main", steps=1).new == opened.resolve("step:20")


def test_what_was_forgotten_is_told_by_log_and_left_out_by_du(chain, repo):
    with cs.open(repo) as opened:
        opened._handle.db.publish(None, [Mark((opened.resolve("main~1"),), "keep-last 1")])
    assert "snapshot forgotten" in chain("log", "--stat").out
    assert [c["tensors"] for c in chain("log", "--stat", "--json").json["commits"]] == [1, None, 1, 1, 1]
    assert chain("du", "-n", "3", "--json").json["snapshots"] == 2
    main, wider = chain("du", "--branches", "--json").json["branches"]
    assert (main["commits"], wider["commits"]) == (4, 3)
