"""Forgetting as users see it: by policy or by name, what is told of a snapshot that is gone, and how it comes back."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.errors import ConfigError, InvalidInput, ReadOnly, RefConflict, RevisionNotFound, SnapshotForgotten
from chainstore.model.change import Swept
from chainstore.policies import Best, Retention
from chainstore.repository import rebuild


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[cs.Repository]:
    """Eight commits on main, the third tagged."""
    with cs.init(tmp_path / "repo") as repo:
        for n in range(8):
            repo.commit({"w": np.arange(6) + n}, f"commit {n}", step=10 * n, metrics={"loss": 1 / (n + 1)})
        repo.tag("good", "step:20")
        yield repo


def steps(plan_or_ids, repo: cs.Repository) -> list[int | None]:
    return [repo.get_commit(id).step for id in plan_or_ids]


def there(repo: cs.Repository) -> list[int | None]:
    """Return the steps of the snapshots that can be checked out."""
    found = []
    for commit in repo.log():
        try:
            state = repo.checkout(commit)
        except SnapshotForgotten:
            continue
        assert commit.step is not None and np.array_equal(state["w"], np.arange(6) + commit.step // 10)
        found.append(commit.step)
    return found


def sweep(repo: cs.Repository, *revisions: str) -> None:
    """Stand for a gc that took these snapshots."""
    repo._handle.db.publish(None, [Swept(tuple(repo.resolve(rev) for rev in revisions))])


def test_a_policy_drops_snapshots_and_leaves_the_commits(repo):
    plan = repo.forget(Retention(last=2, every_steps=40))
    assert steps(plan.kept, repo) == [70, 60, 40, 20, 0] and steps(plan.dropped, repo) == [50, 30, 10]
    assert there(repo) == [70, 60, 40, 20, 0]
    assert [commit.step for commit in repo.log()] == [70, 60, 50, 40, 30, 20, 10, 0]
    assert set(repo.marks()) == set(plan.dropped)
    assert repo.verify("data").ok


def test_a_dry_run_is_the_plan_that_is_applied_and_changes_nothing(repo, tmp_path):
    before = {path: path.read_bytes() for path in (tmp_path / "repo" / "log").iterdir()}
    with cs.open(tmp_path / "repo", readonly=True) as reader:
        plan = reader.forget(Retention(last=3), dry_run=True)
        with pytest.raises(ReadOnly):
            reader.forget(Retention(last=3))
    assert {path: path.read_bytes() for path in (tmp_path / "repo" / "log").iterdir()} == before
    assert there(repo) == [70, 60, 50, 40, 30, 20, 10, 0]
    assert repo.forget(Retention(last=3)) == plan


def test_who_asks_for_a_forgotten_snapshot_is_told_when_why_and_what_helps(repo):
    repo.forget(Retention(last=2))
    commit = repo.get_commit("step:10")
    today = datetime.now(UTC)
    for ask in (repo.checkout, lambda rev: repo[rev].keys(), lambda rev: repo.diff(rev, "main")):
        with pytest.raises(SnapshotForgotten) as raised:
            ask("step:10")
        said = re.fullmatch(rf"the snapshot of {commit.short} was forgotten on (\S+) by keep-last 2", str(raised.value))
        assert said and abs((datetime.fromisoformat(said[1] + "T00:00Z") - today).days) <= 1
        assert raised.value.hint == f"`chain forget --undo {commit.short}` brings it back until `chain gc` runs"
    mark = repo.marks(["step:10", "main"])[commit.id]
    assert (mark.policy, mark.swept, len(repo.marks(["main"]))) == ("keep-last 2", False, 0)


def test_of_a_snapshot_that_gc_took_the_nearest_that_is_left_is_named(repo):
    repo.forget(Retention(last=2))
    sweep(repo, "step:10", "step:50")
    with pytest.raises(SnapshotForgotten) as raised:
        repo.checkout("step:50")
    assert f"{repo.get_commit('step:20').short} (step 20)" in raised.value.hint
    with pytest.raises(SnapshotForgotten) as raised:
        repo.checkout("step:10")
    assert f"{repo.get_commit('step:20').short} (step 20)" in raised.value.hint  # nothing older is left


def test_a_snapshot_that_was_made_in_this_process_is_forgotten_too(repo):
    """What a commit left in memory must not answer for what was dropped."""
    kept = repo.commit({"w": np.arange(3)}, "next to last")
    repo.commit({"w": np.arange(4)}, "last")
    repo.forget(commits=[kept])
    with pytest.raises(SnapshotForgotten, match="by hand"):
        repo[kept].keys()


def test_undo_brings_everything_back_bit_for_bit(repo):
    plan = repo.forget(Retention(last=1))
    assert set(repo.unforget()) == set(plan.dropped)
    assert there(repo) == [70, 60, 50, 40, 30, 20, 10, 0] and repo.marks() == {}
    assert repo.unforget() == ()


def test_single_commits_are_forgotten_and_brought_back_by_any_revision(repo):
    plan = repo.forget(commits=["main~1", "step:10", repo.get_commit("step:30")])
    assert steps(plan.dropped, repo) == [60, 30, 10] and plan.policy == "hand"
    assert there(repo) == [70, 50, 40, 20, 0]
    assert repo.forget(commits=[]).lines == () and repo.unforget([]) == ()  # an empty list means nothing
    assert steps(repo.unforget(["step:10", "main"]), repo) == [10]
    assert there(repo) == [70, 50, 40, 20, 10, 0]


@pytest.mark.parametrize(("revision", "why"), [("main", "tip of main"), ("good", "tag good")])
def test_what_has_a_name_is_refused_with_what_to_do(repo, revision, why):
    with pytest.raises(InvalidInput, match=why) as raised:
        repo.forget(commits=["main~1", revision])
    assert "chain tag -d" in raised.value.hint and repo.marks() == {}


def test_a_detached_head_is_not_forgotten(repo):
    repo.detach("step:30")
    assert 30 in steps(repo.forget(Retention(last=1)).kept, repo)
    with pytest.raises(InvalidInput, match="HEAD"):
        repo.forget(commits=["step:30"])


def test_what_makes_no_sense_is_refused(repo):
    for call in (
        lambda: repo.forget(),
        lambda: repo.forget(Retention(last=1), commits=["main~1"]),
        lambda: repo.forget(commits="main~1"),
        lambda: repo.unforget("main~1"),
        lambda: repo.forget(Retention(best=Best("accuracy"))),
        lambda: repo.forget(Retention(tags=("none",))),
    ):
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(RevisionNotFound):
        repo.forget(commits=["step:11"])
    assert repo.marks() == {}


def test_only_the_named_ones_stay_where_rules_keep_nothing_and_that_is_allowed(repo):
    plan = repo.forget(Retention(tags=("none",)), allow_remove_all=True)
    assert steps(plan.kept, repo) == [70, 20]


# ---- names bring back


@pytest.mark.parametrize(
    "name",
    [
        lambda repo: repo.branch("again", "step:30"),
        lambda repo: repo.tag("again", "step:30"),
        lambda repo: repo.reset("main", "step:30"),
        lambda repo: repo.rollback("main", to="step:30"),
        lambda repo: repo.detach("step:30"),
    ],
    ids=["branch", "tag", "reset", "rollback", "detach"],
)
def test_whatever_gets_a_name_is_forgotten_no_longer(repo, name):
    repo.forget(Retention(last=2))
    id = repo.resolve("step:30")
    assert id in repo.marks()
    name(repo)
    assert id not in repo.marks() and len(repo.marks()) == 4
    assert np.array_equal(repo.checkout(id)["w"], np.arange(6) + 3)


@pytest.mark.parametrize(
    "name",
    [
        lambda repo: repo.branch("again", "step:30"),
        lambda repo: repo.tag("again", "step:30"),
        lambda repo: repo.reset("main", "step:30"),
        lambda repo: repo.rollback("main", to="step:30"),
        lambda repo: repo.detach("step:30"),
        lambda repo: repo.commit({"w": 1}, parents=["step:30"]),
        lambda repo: repo.unforget(["step:30"]),
    ],
    ids=["branch", "tag", "reset", "rollback", "detach", "parent", "undo"],
)
def test_what_gc_took_gets_no_name_any_more(repo, name):
    repo.forget(Retention(last=2))
    sweep(repo, "step:30")
    before = repo.branches(), repo.tags(), repo.head, repo.marks()
    with pytest.raises(SnapshotForgotten):
        name(repo)
    assert (repo.branches(), repo.tags(), repo.head, repo.marks()) == before


# ---- a policy of the repository's own


def test_the_repository_keeps_a_policy_and_forget_uses_it(repo, tmp_path):
    assert repo.retention is None
    with pytest.raises(InvalidInput, match="no policy") as raised:
        repo.forget()
    assert "--keep-last" in raised.value.hint
    policy = Retention(last=3, best=Best("loss", 2), within=None, tags=("v*",))
    repo.set_retention(policy)
    assert repo.settings()["retention"] == "last=3 'tag=v*' best=loss:min:2"
    with cs.open(tmp_path / "repo") as other:
        assert other.retention == policy
        assert steps(other.forget().kept, repo) == [70, 60, 50, 20]
    repo.set_retention(None)
    assert repo.retention is None and "retention" not in repo.settings()


def test_only_the_repository_says_what_it_forgets(repo, own_settings, monkeypatch):
    (own_settings / "config.toml").write_text('retention = "last=1"\n')
    monkeypatch.setenv("CHAIN_RETENTION", "last=1")
    assert repo.retention is None


def test_a_policy_that_makes_no_sense_is_not_stored(repo):
    for wrong in ("last=0", "group_by=none", "sometimes"):
        with pytest.raises(ConfigError, match="retention"):
            repo.set_setting("retention", wrong)
    assert repo.retention is None


# ---- what lasts


def test_marks_policy_and_undo_survive_a_rebuild_of_the_index(repo, tmp_path):
    repo.set_retention(Retention(last=2))
    plan = repo.forget()
    sweep(repo, "step:10")
    marks = repo.marks()
    repo.close()
    for file in (tmp_path / "repo" / "index").rglob("data.mdb"):
        file.unlink()
    rebuild(tmp_path / "repo")
    with cs.open(tmp_path / "repo") as again:
        assert again.marks() == marks and set(marks) == set(plan.dropped)
        assert again.retention == Retention(last=2)
        assert len(again.unforget()) == len(plan.dropped) - 1
        assert there(again) == [70, 60, 50, 40, 30, 20, 0]


def test_a_plan_shows_itself(repo):
    plan = repo.forget(Retention(last=1), dry_run=True)
    assert repr(plan) == "<ForgetPlan keep-last 1: 2 kept, 6 dropped>"
    html = plan._repr_html_()
    assert html.count("<tr>") == 1 + len(plan.lines) and "tip of main, last of main" in html and "6 dropped" in html


def test_whoever_is_first_no_commit_ever_has_both_a_name_and_a_mark(repo, tmp_path):
    """A tag and a policy race for each snapshot: the tag brings it back, or the policy sees the tag."""
    commits, both = list(repo.log())[1:], set()

    def name_and_unname() -> None:
        with cs.open(tmp_path / "repo") as other:
            for turn in range(20):
                other.tag(f"t{turn}", commits[turn % len(commits)])
                other.delete_ref(f"t{turn}", kind="tag")

    def forget_and_undo() -> None:
        while not naming.done():
            with suppress(RefConflict):  # overtaken three times in a row
                repo.forget(Retention(last=1))
            repo.unforget()

    with ThreadPoolExecutor(2) as pool:
        naming = pool.submit(name_and_unname)
        forgetting = pool.submit(forget_and_undo)
        while not naming.done():
            with repo._handle.db.view() as view:
                both |= {mark.commit for mark in view.marks()} & {row.target for row in view.refs()}
        naming.result(), forgetting.result()
    assert not both


def test_a_child_that_forgets_meanwhile_does_not_disturb_a_writer(repo, child, tmp_path):
    child("with cs.open(root) as r: r.forget(cs.Retention(last=1))", tmp_path / "repo")
    repo.commit({"w": np.arange(6) + 8}, step=80)
    assert there(repo) == [80, 70, 20]
