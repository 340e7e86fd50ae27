"""What can be said with a commit, and the ways to name one afterwards."""

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainstore as cs
from chainstore.errors import (
    AlreadyExists,
    BranchDeleted,
    ChainError,
    ConfigError,
    InvalidInput,
    NothingToCommit,
    RefConflict,
    RevisionNotFound,
    SnapshotNotFound,
    UnsupportedState,
)
from chainstore.ids import ObjectId
from chainstore.ops import history
from chainstore.testing.same import assert_same
from tests.repository.conftest import noise


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        yield repo


def series(repo: cs.Repository, count: int = 4) -> list[cs.Commit]:
    losses = [3.0, math.nan, 1.0, 2.0]
    return [repo.commit({"n": n}, str(n), step=10 * n, metrics={"loss": losses[n % 4]}) for n in range(count)]


# ---- what comes back


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"a": {}, "b": []},
        [1, 2, {"x": torch.ones(2)}],
        (1, "two"),
        torch.arange(5.0),
        np.arange(3),
        5,
        None,
        "text",
        {"model": torch.nn.Linear(3, 2).state_dict(), "step": 7, "lr": 1e-3, "cfg": {"a": (1, None, True), 2: b"x"}},
        {0: torch.zeros(0), "0": torch.tensor(1.5), True: torch.ones(2, 3).t()},
    ],
    ids=lambda state: type(state).__name__,
)
def test_a_state_comes_back_as_it_was(repo: cs.Repository, state: object) -> None:
    repo.commit(state)
    assert_same(state, repo.checkout())


def test_a_commit_says_what_it_was_told(repo: cs.Repository) -> None:
    before = datetime.now(UTC)
    made = repo.commit(
        {"w": torch.ones(1000)},
        "a message, also ünïcode\nand two lines",
        step=7,
        epoch=2,
        metrics={"loss": 0.5},
        meta={"host": "a", "tags": ["x", None, 1.5, True], "deep": {"a": {"b": []}}},
        tags=["best", "v1"],
    )
    read = repo.get_commit("best")
    assert read == made
    assert repo.resolve("v1") == made.id
    assert (read.step, read.epoch, read.metrics) == (7, 2, {"loss": 0.5})
    assert read.message == "a message, also ünïcode\nand two lines"
    assert read.meta == {"host": "a", "tags": ["x", None, 1.5, True], "deep": {"a": {"b": []}}}
    assert before - timedelta(seconds=1) < read.time <= datetime.now(UTC) and read.time.tzinfo is not None
    assert read.author and read.parents == ()
    assert read.stats.raw_bytes == 4000 and made.stats.seconds is not None and made.stats.seconds > 0


def test_a_checkout_before_the_first_commit_says_so(repo: cs.Repository) -> None:
    with pytest.raises(SnapshotNotFound, match="nothing was committed") as caught:
        repo.checkout()
    assert isinstance(caught.value, FileNotFoundError)
    assert repo.head is None and list(repo.log()) == []
    with pytest.raises(RevisionNotFound):
        repo.checkout("latest")


def test_a_state_that_equals_the_tips_takes_almost_nothing(repo: cs.Repository) -> None:
    state = {"w": noise(1, 5_000_000)}
    first, second = repo.commit(state), repo.commit(state)
    assert first.stats.stored_bytes > 4_900_000
    assert second.stats.stored_bytes < 2_000 and second.stats.new_bytes == 0
    assert second.stats.reused_bytes == 5_000_000 and second.parents == (first.id,)


def test_an_unsupported_state_lists_every_path_and_writes_nothing(repo: cs.Repository) -> None:
    with pytest.raises(UnsupportedState) as caught:
        repo.commit({"ok": torch.ones(2), "f": lambda: 1, "deep": {"g": [object()]}, "w": noise(1, 100_000)})
    assert sorted(caught.value.paths) == ["deep/g/0", "f"]
    assert repo.head is None
    assert not [path for path in (repo.path / "packs").rglob("*") if path.is_file()]


# ---- arguments

HUGE = 10**5000  # more digits than Python writes
WRONG: list[dict[str, Any]] = [
    {"step": "7"},
    {"step": True},
    {"step": 1.5},
    {"epoch": "2"},
    {"message": 5},
    {"message": None},
    {"message": "bad \udcff bytes"},
    {"metrics": {"loss": "low"}},
    {"metrics": {"loss": torch.ones(2)}},
    {"metrics": {"loss": None}},
    {"metrics": {"loss": 1j}},
    {"metrics": {"loss": 10**400}},
    {"metrics": {5: 1.0}},
    {"metrics": {"a\udcff": 1.0}},
    {"meta": {"x": {1, 2}}},
    {"meta": {"x": (1,)}},
    {"meta": {5: 1}},
    {"meta": {"x": HUGE}},
    {"meta": {"x": "\udcff"}},
    {"tags": "best"},
    {"tags": [5]},
    {"tags": ["a b"]},
    {"branch": ""},
    {"branch": 5},
    {"parents": "main"},
    {"parents": [5]},
    {"codec": "zip"},
    {"files": {"../up": __file__}},
    {"files": {"/abs": __file__}},
    {"files": {"": __file__}},
    {"files": {"a//b": __file__}},
    {"files": {"a": "/nowhere/at/all"}},
    {"files": {"a": "/"}},
    {"files": {"a": __file__, "a/b": __file__}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=map(str, range(len(WRONG))))
def test_a_wrong_argument_is_refused_before_anything_is_written(repo: cs.Repository, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        repo.commit({"w": noise(1, 100_000)}, **wrong)
    assert repo.head is None
    assert repo.branches() == {} and repo.tags() == {}
    assert not [path for path in (repo.path / "packs").rglob("*") if path.is_file()]


def test_a_tag_that_exists_is_refused_before_anything_is_written(repo: cs.Repository) -> None:
    repo.commit({}, tags=["v1"])
    size = sum(path.stat().st_size for path in (repo.path / "packs").rglob("*"))
    with pytest.raises(AlreadyExists, match="v1"):
        repo.commit({"w": noise(1, 100_000)}, tags=["v2", "v1"])
    assert sum(path.stat().st_size for path in (repo.path / "packs").rglob("*")) == size
    assert list(repo.tags()) == ["v1"]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(2.5), 2.5),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([4.0]), 4.0),
        (torch.tensor(3, dtype=torch.int32), 3.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
    ids=repr,
)
def test_metrics_of_all_kinds_become_floats(repo: cs.Repository, value: object, stored: float) -> None:
    metrics = repo.get_commit(repo.commit({}, metrics={"m": value})).metrics
    assert metrics == {"m": stored} and type(metrics["m"]) is float


def test_a_metric_that_is_not_a_number_stays_so(repo: cs.Repository) -> None:
    repo.commit({}, metrics={"m": math.nan})
    head = repo.head
    assert head is not None and math.isnan(head.metrics["m"])


def test_parents_may_be_given(repo: cs.Repository) -> None:
    zero, one = series(repo, 2)
    merged = repo.commit({"n": 9}, "merge", parents=[one, zero.id])
    assert merged.parents == (one.id, zero.id)
    assert repo.resolve("main^2") == zero.id and repo.resolve("main^") == repo.resolve("main~1") == one.id
    assert [commit.message for commit in repo.log()] == ["merge", "1", "0"]
    alone = repo.commit({"n": 10}, "alone", parents=[])
    assert alone.parents == () and len(list(repo.log())) == 1
    with pytest.raises(RevisionNotFound):
        repo.commit({}, parents=["nowhere"])
    with pytest.raises(RevisionNotFound):
        repo.commit({}, parents=[ObjectId(bytes(32))])


def test_a_commit_to_another_branch_leaves_ours_alone(repo: cs.Repository) -> None:
    zero = repo.commit({"n": 0}, "0")
    side = repo.commit({"n": 1}, "side", branch="side")
    assert side.parents == (zero.id,)
    assert repo.branch_name == "main" and repo.head == zero
    again = repo.commit({"n": 2}, "side 2", branch="side")
    assert again.parents == (side.id,)
    assert repo.merge_base("main", "side") == zero
    assert repo.merge_base(repo.commit({}, parents=[], branch="orphan"), "main") is None


def test_expected_head_refuses_when_the_branch_is_elsewhere(repo: cs.Repository) -> None:
    zero, one = series(repo, 2)
    with pytest.raises(RefConflict) as caught:
        repo.commit({}, expected_head=zero)
    assert (caught.value.expected, caught.value.found) == (str(zero.id), str(one.id))
    assert repo.resolve("main") == one.id
    for expected in (one, one.id, str(one.id), one.short, "main"):
        repo.reset("main", one)
        assert repo.commit({}, expected_head=expected).parents == (one.id,)
    with pytest.raises(RefConflict):
        repo.commit({}, branch="new", expected_head=one)


def test_expected_head_on_a_detached_head_means_the_commit_it_is_on(repo: cs.Repository) -> None:
    zero, one = series(repo, 2)
    repo.detach(zero)
    with pytest.raises(RefConflict) as caught:
        repo.commit({}, expected_head=one)
    assert (caught.value.ref, caught.value.found) == ("HEAD", str(zero.id))
    assert list(repo.branches()) == ["main"] and repo.branch_name is None
    assert repo.commit({}, expected_head=zero).parents == (zero.id,)


@pytest.mark.parametrize("named", [False, True])
def test_a_commit_to_a_branch_that_was_deleted_elsewhere_is_refused(repo: cs.Repository, named: bool) -> None:
    series(repo, 2)
    with cs.open(repo.path) as other:
        other.switch("kept", create=True)
        tip = other.delete_ref("main")
    with pytest.raises(RefConflict, match="'main' was deleted") as caught:
        repo.commit({"n": 1}, branch="main" if named else None)
    assert isinstance(caught.value, BranchDeleted) and "switch" in caught.value.hint and "branch=" in caught.value.hint
    with pytest.raises(BranchDeleted), repo.writer() as writer:
        writer["n"] = 1
    assert list(repo.branches()) == ["kept"]
    assert repo.commit({"n": 2}, branch="kept").parents == (tip,)
    assert repo.commit({"n": 3}, parents=[tip]).parents == (tip,)
    assert set(repo.branches()) == {"kept", "main"}


def test_a_branch_that_was_never_there_is_begun_without_a_parent(repo: cs.Repository) -> None:
    with cs.open(repo.path) as other:
        other.commit({}, branch="aside")
        other.delete_ref("aside")
        other.switch("aside", create=True)
        assert other.commit({}).parents == ()
    assert repo.commit({}).parents == ()


def test_an_empty_commit_is_refused_where_it_is_not_wanted(repo: cs.Repository) -> None:
    first = repo.commit({"w": torch.ones(5)}, allow_empty=False)
    with pytest.raises(NothingToCommit) as caught:
        repo.commit({"w": torch.ones(5)}, "again", allow_empty=False)
    assert isinstance(caught.value, AlreadyExists)
    assert repo.head == first
    repo.commit({"w": torch.ones(5)}, allow_empty=False, files={"f": __file__})
    repo.commit({"w": torch.ones(6)}, allow_empty=False)
    assert len(list(repo.log())) == 3


def test_files_are_stored_beside_the_state(repo: cs.Repository, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(noise(1, 3_000_000).tobytes())
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    files: dict[str, Any] = {
        "conf/a.yaml": __file__,
        "empty": tmp_path / "empty",
        "l": tmp_path / "large",
        "r": tmp_path / "run.sh",
    }
    repo.commit({"w": 1}, files=files)
    snapshot = repo["main"]
    assert sorted(snapshot.files) == ["conf/a.yaml", "empty", "l", "r"]
    for name, path in files.items():
        assert snapshot.read_file(name) == Path(path).read_bytes()
    assert repo.checkout() == {"w": 1}
    with pytest.raises(ChainError, match="conf/b"):
        snapshot.read_file("conf/b.yaml")
    assert repo.verify("data").ok


@pytest.mark.parametrize("codec", ["auto", "none", "fast", "small"])
@pytest.mark.parametrize("threads", [1, 3])
def test_codec_and_threads_change_nothing_but_the_size(tmp_path: Path, codec: str, threads: int) -> None:
    state = {"w": torch.linspace(0, 1, 700_000), "n": noise(1, 1_500_000), "z": torch.zeros(300_000), "s": "x" * 5000}
    with cs.init(tmp_path / "r", codec=codec, threads=threads, max_memory="64MiB") as repo:
        repo.commit(state)
        assert_same(state, repo.checkout())
        repo.commit(state, codec="none")
        assert repo.verify("data").ok
    with pytest.raises(ConfigError):
        cs.open(tmp_path / "r").commit(state, codec="best")


# ---- writer


def test_a_writer_builds_a_commit_piece_by_piece(repo: cs.Repository) -> None:
    zero = repo.commit({}, "0")
    with repo.writer(message="pieces", step=7, epoch=1, metrics={"m": 1}, meta={"a": 1}, tags=["t"]) as writer:
        writer["model"] = {"w": torch.ones(10), "b": torch.zeros(2)}
        writer.add("optimizer/exp_avg", torch.full((3,), 2.0))
        writer.add("optimizer/deep/step", 5)
        writer.add_file("f.py", __file__)
        writer["plain"] = {"a": [1, 2]}
        writer["empty"] = {}
        assert repo.head == zero
    state: Any = repo.checkout("t")
    assert list(state) == ["model", "optimizer", "plain", "empty"]
    assert_same(state["model"], {"w": torch.ones(10), "b": torch.zeros(2)})
    assert state["optimizer"]["deep"] == {"step": 5} and state["plain"] == {"a": [1, 2]} and state["empty"] == {}
    head = repo.head
    assert head is not None and (head.step, head.epoch, head.metrics, head.meta) == (7, 1, {"m": 1.0}, {"a": 1})
    assert repo["main"].files == ["f.py"]


def test_a_writer_refuses_a_path_twice(repo: cs.Repository) -> None:
    with repo.writer() as writer:
        writer.add("a/b", 1)
        for again in ("a/b", "a", "a/b/c"):
            with pytest.raises(InvalidInput):
                writer.add(again, 2)
        with pytest.raises(InvalidInput):
            writer.add("", 2)
        with pytest.raises(UnsupportedState):
            writer["f"] = object()
        writer["c"] = 3
        writer.add_file("d/f.py", __file__)
        for name in ("d/f.py", "d", "d/f.py/g"):
            with pytest.raises(InvalidInput):
                writer.add_file(name, __file__)
    assert repo.checkout() == {"a": {"b": 1}, "c": 3}
    with pytest.raises(InvalidInput, match="finished"):
        writer["d"] = 4
    with pytest.raises(InvalidInput, match="finished"):
        writer.add_file("f", __file__)


WRONG_FOR_WRITER = [wrong for wrong in WRONG if not wrong.keys() & {"parents", "files"}]


@pytest.mark.parametrize("wrong", WRONG_FOR_WRITER, ids=map(str, range(len(WRONG_FOR_WRITER))))
def test_a_writer_refuses_wrong_arguments_at_once(repo: cs.Repository, wrong: dict[str, Any]) -> None:
    entered = False
    with pytest.raises(InvalidInput), repo.writer(**wrong):
        entered = True
    assert not entered
    repo.commit({})


def test_an_empty_writer_commits_an_empty_state(repo: cs.Repository) -> None:
    with repo.writer():
        pass
    assert repo.checkout() == {}


# ---- log


def test_the_log_can_be_cut(repo: cs.Repository) -> None:
    made = series(repo)
    assert [commit.message for commit in repo.log()] == ["3", "2", "1", "0"]
    assert [commit.message for commit in repo.log("main~2")] == ["1", "0"]
    assert [commit.message for commit in repo.log(made[1])] == ["1", "0"]
    assert [commit.message for commit in repo.log(max_count=2)] == ["3", "2"]
    assert list(repo.log(max_count=0)) == []
    assert [commit.step for commit in repo.log(steps=(10, 20))] == [20, 10]
    assert [commit.step for commit in repo.log(steps=(None, 10))] == [10, 0]
    assert [commit.step for commit in repo.log(steps=(20, None), max_count=1)] == [30]
    assert [commit.message for commit in repo.log(since=made[2].time)] == ["3", "2"]
    assert list(repo.log(since=datetime.now(UTC) + timedelta(hours=1))) == []
    with pytest.raises(InvalidInput, match="time zone"):
        list(repo.log(since=datetime.now()))
    with pytest.raises(RevisionNotFound):
        list(repo.log("nowhere"))


def test_a_commit_without_a_step_is_in_no_range_of_steps(repo: cs.Repository) -> None:
    repo.commit({}, "no step")
    repo.commit({}, "step", step=1)
    assert [commit.message for commit in repo.log(steps=(None, None))] == ["step"]


def test_all_refs_are_walked_each_commit_once(repo: cs.Repository) -> None:
    series(repo, 2)
    repo.commit({}, "side", branch="side")
    repo.commit({}, "tagged", branch="gone", tags=["t"])
    repo.delete_ref("gone")
    assert sorted(commit.message for commit in repo.log(all_refs=True)) == ["0", "1", "side", "tagged"]


# ---- revisions


def test_every_way_to_name_a_commit(repo: cs.Repository) -> None:
    zero, one, two, three = series(repo)
    repo.tag("good", one)
    repo.branch("b", two)
    names = {
        zero.id: ["main~3", "HEAD~3", "~3", "main~~~", "main~2~1", "main^^^", "step:0", "good~", "main@{3}"],
        one.id: ["good", "main~2", "step:10", "b~1", "@{2}", "HEAD@{2}", one.short, one.short[:7], str(one.id)],
        two.id: ["b", "main~1", "main~", "main^", "main^1", "min:loss", "main@{1}", "heads/b", f"{three.short}~"],
        three.id: [
            "main",
            "HEAD",
            "@",
            "latest",
            "main~0",
            "main^0",
            "step:30",
            "main@{0}",
            "main@{0s ago}",
            "latest~0",
        ],
    }
    for id, revisions in names.items():
        for revision in revisions:
            assert repo.resolve(revision) == id, revision
    assert repo.resolve("max:loss") == zero.id
    assert repo.resolve(two) == repo.resolve(two.id) == two.id


def test_a_step_that_was_committed_twice_is_the_one_nearest_to_the_tip(repo: cs.Repository) -> None:
    repo.commit({"n": 1}, step=5)
    late = repo.commit({"n": 2}, step=5)
    repo.commit({"n": 3}, step=6)
    assert repo.resolve("step:5") == late.id


def test_where_a_branch_was_some_time_ago(repo: cs.Repository) -> None:
    first = repo.commit({"n": 1})
    time.sleep(0.6)
    second = repo.commit({"n": 2})
    assert repo.resolve("main@{0.3s ago}") == first.id
    assert repo.resolve("main@{0.3 s}") == first.id
    assert repo.resolve("main@{0s ago}") == second.id
    for text in ("2h ago", "1 day ago", "3 weeks ago", "90m"):
        with pytest.raises(RevisionNotFound, match="younger"):
            repo.resolve(f"main@{{{text}}}")


UNKNOWN = [
    *(
        "mian",
        "main~9",
        "main^2",
        "main@{9}",
        "main@{yesterday}",
        "main@{}",
        "main@{1",
        "main~x",
        "main~1@{1}",
        "main junk",
    ),
    *(
        "step:5",
        "step:x",
        "step:",
        "min:lss",
        "max:",
        "min:",
        "0000000",
        "f" * 64,
        "heads/mian",
        "tags/x",
        "nul\0",
        "\udcff",
    ),
    *(
        "main@{²}",
        "main~²",
        "main@{" + "9" * 5000 + "}",
        "main~" + "9" * 5000,
        "main@{" + "9" * 400 + "h ago}",
        "step:" + "9" * 5000,
    ),
    *("", "main^" + "9" * 5000, "x" * 10_000, "main" + "~1" * 2000, "..", "main..main", "-", "/", "~", "^", "@{1}~9"),
]


@pytest.mark.parametrize("revision", UNKNOWN, ids=lambda text: repr(text)[:24])
def test_what_names_no_commit_is_an_unknown_revision(repo: cs.Repository, revision: str) -> None:
    repo.commit({}, step=1, metrics={"loss": 1.0})
    with pytest.raises(RevisionNotFound) as caught:
        repo.resolve(revision)
    assert caught.value.exit_code == 1 and caught.value.hint


def test_an_unknown_revision_says_what_comes_closest(repo: cs.Repository) -> None:
    series(repo)
    repo.branch("experiment/lr")
    repo.tag("best-so-far")
    for typed, meant in {
        "mian": "main",
        "experiment/ir": "experiment/lr",
        "best-sofar": "best-so-far",
        "step:11": "step:10",
        "min:los": "min:loss",
        "mian~1": "main",
    }.items():
        with pytest.raises(RevisionNotFound) as caught:
            repo.resolve(typed)
        assert meant in caught.value.nearest, typed
        assert meant in caught.value.hint


def test_a_name_that_is_no_text_is_unknown_where_names_are_sealed_too(tmp_path: Path) -> None:
    with cs.init(tmp_path / "sealed") as repo:
        repo.commit({})
        with pytest.raises(RevisionNotFound):
            repo.resolve("half a pair \udcff")


@pytest.mark.parametrize("revision", [5, None, 1.5, b"main", ["main"]])
def test_a_revision_is_text_an_id_or_a_commit(repo: cs.Repository, revision: Any) -> None:
    repo.commit({})
    with pytest.raises(InvalidInput, match="revision"):
        repo.resolve(revision)


def test_an_id_that_is_not_here_is_unknown_not_damaged(repo: cs.Repository) -> None:
    repo.commit({})
    for look in (repo.resolve, repo.snapshot, repo.checkout, repo.get_commit, lambda id: list(repo.log(id))):
        with pytest.raises(RevisionNotFound):
            look(ObjectId(bytes(range(32))))


def test_an_id_of_something_else_than_a_commit_is_refused(repo: cs.Repository) -> None:
    commit = repo.commit({"w": noise(1, 50_000)})
    chunk = next(extent.chunk for entry in repo["main"].manifest.entries for extent in entry.extents)
    for id in (chunk, commit.tree):
        with pytest.raises(RevisionNotFound):
            repo.resolve(str(id))
        with pytest.raises(ChainError):
            repo.checkout(id)


def colliding(repo: cs.Repository, alike: Callable[[ObjectId, ObjectId], bool]) -> tuple[ObjectId, ObjectId]:
    """Commit until two commits have ids that are `alike`."""
    seen: list[ObjectId] = []
    while True:
        id = repo.commit({}, str(len(seen)), parents=[]).id
        for other in seen:
            if alike(id, other):
                return id, other
        seen.append(id)


def test_an_ambiguous_prefix_is_refused_with_longer_ones(repo: cs.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_PREFIX", re.compile(r"[0-9a-f]{2,64}"))
    one, two = colliding(repo, lambda a, b: a[0] == b[0] and a[1] != b[1])
    with pytest.raises(RevisionNotFound, match="more than one") as caught:
        repo.resolve(one.hex()[:2])
    for id in (one, two):
        assert any(id.hex().startswith(near) for near in caught.value.nearest)
        assert repo.resolve(id.hex()[:8]) == id


def test_a_prefix_of_six_digits_is_too_short(repo: cs.Repository) -> None:
    commit = repo.commit({})
    assert repo.resolve(str(commit.id)[:7]) == commit.id
    with pytest.raises(RevisionNotFound):
        repo.resolve(str(commit.id)[:6])
