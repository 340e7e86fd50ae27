"""Branches, tags, HEAD and reflogs."""

from pathlib import Path
from typing import Any

import pytest

import chainstore as cs
from chainstore.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidRefName,
    NotFound,
    RefConflict,
    RevisionNotFound,
)
from chainstore.model.commit import Commit
from chainstore.storage import log


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        yield repo


def commits(repo: cs.Repository, count: int, **how: Any) -> list[Commit]:
    return [repo.commit({"n": n}, str(n), **how) for n in range(count)]


# ---- names

GOOD = [
    "a",
    "feature/x",
    "v1.0",
    "a-b_c",
    "ünïcode",
    "実験",
    "a.b/c.d",
    "x@y",
    "@x",
    "deadbee",
    "heads",
    "main2",
    "lock",
    "a{b}",
]
BAD = [
    *("", "@", "HEAD", "latest", "a b", "a~b", "a^b", "a:b", "a?b", "a*b", "a[b", "a\\b", "a..b", "a@{b", "a//b"),
    *(
        "/a",
        "a/",
        "-a",
        "a.",
        ".a",
        "a/.b",
        "a.lock",
        "a.lock/b",
        "a\nb",
        "a\tb",
        "a\x00b",
        "a\x7fb",
        "x" * 256,
        "ü" * 128,
    ),
    *("deadbeef", "DEADBEEF", "0123456", "f" * 64, "step:5", "min:loss", "main~1", "main@{1}"),
    "bad\udcffbytes",
]


@pytest.mark.parametrize("name", [name for name in GOOD if name != "deadbee"])
def test_a_good_name_names_branches_and_tags(repo: cs.Repository, name: str) -> None:
    commit = repo.commit({})
    assert repo.branch(name) == commit.id
    assert repo.tag(name) == commit.id
    assert repo.resolve(name) == commit.id
    assert name in repo.branches() and name in repo.tags()
    repo.commit({"n": 1}, branch=name)
    assert len(repo.reflog(name)) == 2
    repo.switch(name)
    assert repo.branch_name == name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_with_the_rule_it_breaks(repo: cs.Repository, name: str) -> None:
    repo.commit({})
    for make in (
        lambda: repo.branch(name),
        lambda: repo.tag(name),
        lambda: repo.switch(name, create=True),
        lambda: repo.commit({"n": 1}, branch=name),
        lambda: repo.commit({"n": 1}, tags=[name]),
    ):
        with pytest.raises(InvalidRefName) as caught:
            make()
        assert "cannot name a" in str(caught.value)
    assert len(list(repo.log())) == 1
    assert repo.tags() == {}


def test_seven_hexadecimal_digits_are_an_id_and_six_are_a_name(repo: cs.Repository) -> None:
    repo.commit({})
    with pytest.raises(InvalidRefName, match="id"):
        repo.branch("abcdef0")
    repo.branch("abcdef")


@pytest.mark.parametrize("name", [5, None, b"main", ["main"]])
def test_a_name_is_text(repo: cs.Repository, name: Any) -> None:
    repo.commit({})
    with pytest.raises(InvalidInput):
        repo.branch(name)
    with pytest.raises(InvalidInput):
        repo.tag(name)


@pytest.mark.parametrize("name", ["tags/x", "heads/x", "heads/tags/x"])
def test_a_branch_whose_name_looks_like_a_full_one_keeps_it(repo: cs.Repository, name: str) -> None:
    commit = repo.commit({})
    repo.branch(name)
    assert repo.branches() == {"main": commit.id, name: commit.id}
    repo.tag("x")
    assert repo.tags() == {"x": commit.id}
    repo.switch(name)
    assert repo.branch_name == name


# ---- branches and tags


def test_a_branch_starts_where_it_is_told(repo: cs.Repository) -> None:
    zero, one, two = commits(repo, 3)
    assert repo.branch("here") == two.id
    assert repo.branch("there", "main~2") == zero.id
    assert repo.branch("by-commit", one) == one.id
    assert repo.branch("by-id", one.id) == one.id
    with pytest.raises(AlreadyExists, match="here"):
        repo.branch("here")
    with pytest.raises(RevisionNotFound):
        repo.branch("nowhere", "main~9")
    assert sorted(repo.branches()) == ["by-commit", "by-id", "here", "main", "there"]


def test_a_tag_never_moves(repo: cs.Repository) -> None:
    zero, one = commits(repo, 2)
    repo.tag("v1", zero)
    for again in (zero, one):
        with pytest.raises(AlreadyExists, match="v1"):
            repo.tag("v1", again)
    with pytest.raises(AlreadyExists, match="v1"):
        repo.commit({"n": 9}, tags=["v1"])
    assert repo.tags() == {"v1": zero.id}
    assert repo.resolve("main") == one.id


def test_a_branch_and_a_tag_may_share_a_name_and_the_branch_comes_first(repo: cs.Repository) -> None:
    zero, one = commits(repo, 2)
    repo.tag("x", zero)
    repo.branch("x", one)
    assert repo.resolve("x") == one.id
    assert repo.resolve("tags/x") == zero.id
    assert repo.resolve("heads/x") == one.id


def test_nothing_can_be_named_before_the_first_commit(repo: cs.Repository) -> None:
    for make in (lambda: repo.branch("b"), lambda: repo.tag("t"), lambda: repo.detach("HEAD")):
        with pytest.raises(RevisionNotFound, match="nothing was committed"):
            make()


def test_a_commit_of_another_repository_cannot_be_named(repo: cs.Repository, tmp_path: Path) -> None:
    commits(repo, 1)
    with cs.init(tmp_path / "other", encrypt=False) as other:
        stranger = other.commit({"x": 1}, "elsewhere")
    for make in (
        lambda: repo.branch("b", stranger),
        lambda: repo.tag("t", stranger.id),
        lambda: repo.reset("main", stranger),
        lambda: repo.detach(stranger.id),
        lambda: repo.commit({}, parents=[stranger]),
        lambda: repo.snapshot(stranger.id),
    ):
        with pytest.raises(RevisionNotFound):
            make()


# ---- delete


def test_a_deleted_ref_is_gone_and_its_reflog_is_kept(repo: cs.Repository) -> None:
    zero, one = commits(repo, 2)
    repo.branch("b", zero)
    repo.tag("t", one)
    assert repo.delete_ref("b") == zero.id
    assert repo.delete_ref("t") == one.id
    assert repo.branches() == {"main": one.id} and repo.tags() == {}
    with pytest.raises(RevisionNotFound):
        repo.resolve("b")
    assert [line.new for line in repo.reflog("b")] == [None, zero.id]
    repo.branch("b", one)
    assert [line.new for line in repo.reflog("b")] == [one.id, None, zero.id]


def test_the_current_branch_cannot_be_deleted(repo: cs.Repository) -> None:
    commits(repo, 1)
    with pytest.raises(InvalidInput, match="current"):
        repo.delete_ref("main")
    with pytest.raises(NotFound) as caught:
        repo.delete_ref("mian")
    assert "main" in caught.value.hint


@pytest.mark.parametrize("detached", [False, True])
def test_head_cannot_be_deleted(repo: cs.Repository, detached: bool) -> None:
    commits(repo, 1)
    if detached:
        repo.detach("main")
    with pytest.raises((NotFound, InvalidInput)):
        repo.delete_ref("HEAD")
    assert repo.head is not None


# ---- switch, detach, reset


def test_switch_moves_head_for_the_next_process_and_not_for_other_handles(repo: cs.Repository) -> None:
    commits(repo, 2)
    running = cs.open(repo.path)
    repo.branch("b", "main~1")
    repo.switch("b")
    assert repo.branch_name == "b"
    running.commit({"by": "the running writer"}, "running")
    assert running.branch_name == "main"
    repo.commit({"by": "b"}, "on b")
    with cs.open(repo.path) as fresh:
        assert fresh.branch_name == "b"
        assert [commit.message for commit in fresh.log()] == ["on b", "0"]
    assert [commit.message for commit in running.log()] == ["running", "1", "0"]
    running.close()


def test_switch_to_what_is_not_there_says_what_is(repo: cs.Repository) -> None:
    commits(repo, 1)
    repo.tag("v1")
    with pytest.raises(RevisionNotFound) as caught:
        repo.switch("mian")
    assert caught.value.nearest == ("main",)
    with pytest.raises(RevisionNotFound):
        repo.switch("v1")
    repo.switch("new", create=True)
    assert repo.branch_name == "new" and sorted(repo.branches()) == ["main", "new"]
    repo.switch("main", create=True)
    assert repo.branch_name == "main"


def test_switch_in_an_empty_repository_names_the_first_branch(repo: cs.Repository) -> None:
    repo.switch("trunk", create=True)
    commit = repo.commit({})
    assert repo.branches() == {"trunk": commit.id}


def test_a_commit_from_a_detached_head_opens_a_branch_and_says_so(repo: cs.Repository) -> None:
    zero, _ = commits(repo, 2)
    repo.detach(zero)
    assert repo.branch_name is None
    assert repo.head == zero and "detached" in repr(repo)
    heard: list[Any] = []
    with cs.open(repo.path, observer=heard.append) as run:
        assert run.head == zero
        first = run.commit({"n": 9}, "from there")
        second = run.commit({"n": 10}, "and on")
        name = run.branch_name
        assert name is not None and zero.short in name
    assert [event.code for event in heard if hasattr(event, "code")] == ["new-branch"]
    assert (first.parents, second.parents) == ((zero.id,), (first.id,))
    assert repo.branches()[name] == second.id
    assert len(repo.branches()) == 2
    with cs.open(repo.path) as fresh:
        assert fresh.branch_name == name


def test_two_runs_from_one_detached_head_go_on_apart(repo: cs.Repository) -> None:
    zero, _ = commits(repo, 2)
    repo.detach(zero)
    with cs.open(repo.path) as one, cs.open(repo.path) as two:
        one.commit({"n": 1})
        try:
            two.commit({"n": 2})
        except RefConflict:
            two.commit({"n": 2})
        assert one.branch_name != two.branch_name
        assert len(repo.branches()) == 3


def test_reset_moves_a_branch_and_the_reflog_keeps_where_it_was(repo: cs.Repository) -> None:
    zero, one, two = commits(repo, 3)
    assert repo.reset("main", "main~2") == two.id
    assert repo.head == zero
    assert repo.resolve("main@{1}") == two.id
    assert repo.reflog("main")[0].reason == "reset: to main~2"
    assert repo.reset("main", two, expected_head=zero) == zero.id
    with pytest.raises(RefConflict) as caught:
        repo.reset("main", one, expected_head=zero)
    assert (caught.value.expected, caught.value.found) == (str(zero.id), str(two.id))
    with pytest.raises(RevisionNotFound) as missing:
        repo.reset("mian", one)
    assert missing.value.nearest == ("main",)
    assert repo.head == two


# ---- reflog


def test_every_move_is_in_the_reflog_newest_first(repo: cs.Repository) -> None:
    zero, one = commits(repo, 2)
    lines = repo.reflog()
    assert [(line.old, line.new) for line in lines] == [(zero.id, one.id), (None, zero.id)]
    assert [line.reason for line in lines] == ["commit: 1", "commit: 0"]
    assert [line.ordinal for line in lines] == [2, 1]
    assert lines[0].time_us >= lines[1].time_us
    assert repo.reflog("main") == lines
    repo.branch("b")
    repo.switch("b")
    assert [line.reason for line in repo.reflog()] == ["branch: from HEAD"]
    with pytest.raises(RevisionNotFound) as caught:
        repo.reflog("mian")
    assert caught.value.nearest == ("main",)


def test_a_tag_given_twice_with_a_commit_is_one_tag(repo: cs.Repository) -> None:
    commit = repo.commit({}, tags=["best", "best"])
    assert repo.tags() == {"best": commit.id}
    assert [line.new for line in repo.reflog("best")] == [commit.id]
    assert repo.verify().ok


def test_reflogs_survive_a_rebuild_and_a_new_segment(repo: cs.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    commits(repo, 3)
    repo.tag("t")
    repo.delete_ref("t")
    before = {name: repo.reflog(name) for name in ("main", "t")}
    repo.rebuild_index()
    assert {name: repo.reflog(name) for name in ("main", "t")} == before
    monkeypatch.setattr(log, "SEGMENT_BYTES", 0)
    repo.branch("b")
    repo.rebuild_index()
    assert {name: repo.reflog(name) for name in ("main", "t")} == before
    assert sorted(repo.branches()) == ["b", "main"]
