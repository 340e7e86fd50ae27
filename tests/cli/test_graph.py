"""`log --graph`, `log --stat`, `merge-base`: how commits descend from each other."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainstore as cs
from chainstore.cli.graph import draw, in_order
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit, Stats


def commit(name: int, *parents: int) -> Commit:
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=name)
    ids = tuple(ObjectId(parent.to_bytes(32, "big")) for parent in parents)
    return Commit(
        ObjectId(name.to_bytes(32, "big")), ObjectId(bytes(32)), ids, None, None, time, "", str(name), {}, {}, Stats()
    )


def drawn(*commits: Commit) -> list[str]:
    lines = []
    for each, left in zip(commits, draw(commits), strict=True):
        lines += [f"{left.node} {each.message}", *left.links]
    return lines


def test_a_chain_is_a_line_of_stars():
    assert drawn(commit(3, 2), commit(2, 1), commit(1)) == ["* 3", "* 2", "* 1"]


def test_two_branches_part_where_they_have_a_parent_in_common():
    assert drawn(commit(3, 1), commit(2, 1), commit(1)) == ["* 3", "| * 2", "|/", "* 1"]


def test_a_merge_opens_a_column_and_its_fork_closes_it():
    assert drawn(commit(4, 3, 2), commit(3, 1), commit(2, 1), commit(1)) == [
        "* 4",
        "|\\",
        "* | 3",
        "| * 2",
        "|/",
        "* 1",
    ]


def test_a_column_far_away_goes_below_those_between():
    lines = drawn(commit(6, 1), commit(5, 2), commit(4, 3), commit(3, 1), commit(2, 1), commit(1))
    assert lines == ["* 6", "| * 5", "| | * 4", "| | * 3", "| |/", "|/|", "| * 2", "|/", "* 1"] or lines == [
        "* 6",
        "| * 5",
        "| | * 4",
        "| | * 3",
        "|_|/",
        "| * 2",
        "|/",
        "* 1",
    ]


def test_a_history_that_ends_gives_its_column_back():
    assert drawn(commit(4, 2), commit(3), commit(2, 1), commit(1)) == ["* 4", "| * 3", "* 2", "* 1"]
    assert drawn(commit(4), commit(3, 1), commit(1)) == ["* 4", "* 3", "* 1"]


@st.composite
def histories(draw_from):
    """Commits, numbered from old to new, each with parents among the older ones, in the order that a log gives them."""
    count = draw_from(st.integers(1, 12))
    made = [
        commit(n, *draw_from(st.lists(st.integers(1, n - 1), max_size=3, unique=True) if n > 1 else st.just([])))
        for n in range(1, count + 1)
    ]
    return draw_from(st.permutations(made))


@given(histories())
def test_no_commit_stands_before_its_child_and_every_line_ends(history):
    ordered = in_order(history)
    assert sorted(c.message for c in ordered) == sorted(c.message for c in history)
    place = {c.id: at for at, c in enumerate(ordered)}
    assert all(place[parent] > place[c.id] for c in ordered for parent in c.parents)
    lefts = list(draw(ordered))
    assert all(left.node.count("*") == 1 for left in lefts)
    assert lefts[-1].node == "*" and not lefts[-1].links  # nothing is awaited any more


@given(histories())
def test_a_commit_stands_in_the_column_that_its_child_left_for_it(history):
    for left in draw(in_order(history)):
        assert set(left.node) <= {"*", "|", " "}
        for link in left.links:
            assert set(link) <= set("|/\\_ ") and link == link.rstrip()


@pytest.fixture
def merged(place):
    with cs.init(place / ".chain") as repo:
        repo.commit({"w": np.zeros(3), "v": np.zeros(2)}, "first", step=1)
        repo.branch("side")
        repo.commit({"w": np.ones(3)}, "side", branch="side")
        repo.commit({"w": np.full(3, 2.0)}, "main")
        repo.commit({"w": np.full(3, 2.0)}, "both", parents=["main", "side"])
    return place / ".chain"


def test_log_draws_the_graph_with_and_without_stat(chain, merged):
    lines = chain("log", "--graph", "--oneline").out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["*", "|\\", "*", "|", "|/", "*"]
    lines = chain("log", "--graph", "--stat").out.splitlines()
    assert lines[-2].startswith("* ") and lines[-1].startswith("    2 tensors, 40 B new")
    assert lines[1].startswith("|   1 tensor, 0 B new, 24 B reused")


def test_stat_counts_the_tensors_of_every_commit(chain, merged):
    counted = {c["message"]: c["tensors"] for c in chain("log", "--all", "--stat", "--json").json["commits"]}
    assert counted == {"first": 2, "side": 1, "main": 1, "both": 1}
    assert "tensors" not in chain("log", "--json").json["commits"][0]


def test_merge_base_is_where_two_branches_part(chain, merged):
    first = chain("log", "step:1", "--json").json["commits"][0]["id"]
    assert chain("merge-base", "main~1", "side", "--json").json["commit"]["id"] == first
    assert first[:12] in chain("merge-base", "main~1", "side").out
    side = chain("log", "side", "--json").json["commits"][0]["id"]
    assert chain("merge-base", "side", "main", "--json").json["commit"]["id"] == side


def test_commits_that_share_nothing_have_no_merge_base(chain, merged):
    with cs.open(merged) as repo:
        repo.commit({"x": 1}, "alone", branch="alone", parents=[])
    done = chain("merge-base", "main", "alone")
    assert done.code == 1 and "no commit in common" in done.err and not done.out
