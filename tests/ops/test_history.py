"""History: revisions name what they say, and any text leads to a commit or to RevisionNotFound."""

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import ChainError, InvalidInput, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.change import SetRef
from chainstore.model.commit import Note, Stats
from chainstore.odb.local import LocalDatabase
from chainstore.odb.surroundings import Surroundings
from chainstore.ops.commit import write_commit
from chainstore.ops.history import (
    Names,
    ancestors,
    first_parents,
    head_of,
    in_range,
    merge_base,
    read_commit,
    resolve,
)
from tests.odb.stores import Store

HOUR = 3_600_000_000
TREE = ObjectId(bytes(32))


@dataclass
class History:
    """Commits made by hand: parents, times, steps and metrics as a test wants them."""

    db: LocalDatabase
    now: int = 1_700_000_000_000_000
    made: int = 0

    def commit(self, *parents: ObjectId, ref: str | None = None, at: int | None = None, **note: object) -> ObjectId:
        batch = self.db.batch("none")
        with self.db.view() as view:
            row = view.ref(ref) if ref else None
        self.made += 1
        id = write_commit(batch, TREE, parents, Note(**note), self.now + self.made if at is None else at, Stats())
        self.db.publish(batch, [SetRef(ref, row.target if row else None, id)] if ref else [])
        self.db.retire_batch(batch)
        return id

    def resolve(self, revision: str) -> ObjectId:
        return resolve(self.db, revision, Names("heads/main", lambda: self.now))


@pytest.fixture
def history(db) -> History:
    return History(db)


@pytest.fixture(scope="module")
def line(tmp_path_factory) -> Iterator[tuple[History, list[ObjectId]]]:
    """Ten commits on main, steps 0, 10, ..., a loss that falls and rises; a tag, a branch, a merge on top."""
    with closing(Store(tmp_path_factory.mktemp("line") / "store", encrypted=False).create()) as db:
        history, ids = History(db), []
        for number in range(10):
            loss = {"metrics": {"loss": abs(number - 6.4)}} if number else {}
            above = ids[-1:]
            ids.append(history.commit(*above, ref="heads/main", step=10 * number, message=f"m{number}", **loss))
        db.publish(None, [SetRef("tags/v1", None, ids[3]), SetRef("heads/side", None, ids[5])])
        ids.append(history.commit(ids[9], ids[5], ref="heads/main", step=100, metrics={"acc": 0.5}))
        yield history, ids


REVISIONS = {
    "main": 10, "HEAD": 10, "@": 10, "latest": 10, "heads/main": 10, "v1": 3, "tags/v1": 3, "side": 5,
    "main~1": 9, "main~": 9, "~": 9, "~3": 7, "HEAD~0": 10, "main^": 9, "main^1": 9, "main^2": 5, "main^0": 10,
    "main^2~2": 3, "main~2^": 7, "main^2^^": 3, "v1~3": 0,
    "step:50": 5, "step:0": 0, "min:loss": 6, "max:loss": 1, "min:loss~2": 4, "max:acc": 10,
    "main@{0}": 10, "main@{1}": 9, "@{2}": 8, "main@{1}~2": 7, "HEAD@{10}": 0,
}  # fmt: skip


@pytest.mark.parametrize(("revision", "number"), REVISIONS.items(), ids=REVISIONS)
def test_a_revision_names_the_commit_it_says(line, revision, number):
    history, ids = line
    assert history.resolve(revision) == ids[number]


def test_an_id_may_be_shortened_as_long_as_it_is_the_only_one(line):
    history, ids = line
    for digits in (7, 8, 12, 33, 64):
        assert history.resolve(str(ids[4])[:digits]) == ids[4]
    for wrong in (str(ids[4])[:6], "0" * 7, "f" * 64):
        with pytest.raises(RevisionNotFound):
            history.resolve(wrong)


UNKNOWN = [
    "", "mian", "main~11", "main^3", "main^2^9", "step:55", "step:x", "step:", "min:", "min:lost", "max:nothing",
    "main@{11}", "main@{-1}", "main@{later}", "main@{2h ago}~99", "main~1x", "main@{1}@{1}", "~~~~~~~~~~~~~~~~~~~~",
    "main~99999999999999999999", "main@{99999999999999999999}", "main@{²}", "step:" + "9" * 5000, "main~" + "9" * 5000,
    "main@{" + "9" * 400 + "h ago}", "@{}", "^", "a" * 64, "nothing@{0}",
]  # fmt: skip


@pytest.mark.parametrize("revision", UNKNOWN, ids=range(len(UNKNOWN)))
def test_a_revision_that_names_nothing_says_so(line, revision):
    history, ids = line
    if revision == "^":
        assert history.resolve(revision) == ids[9]
        return
    with pytest.raises(RevisionNotFound):
        history.resolve(revision)


@settings(deadline=None, max_examples=200)
@given(
    st.text(st.sampled_from("main@{}~^0123456789:step min.lossHEADv²abcdef/\ud800"), max_size=14) | st.text(max_size=8)
)
def test_any_text_names_a_commit_or_nothing(line, revision):
    history, ids = line
    with suppress(RevisionNotFound):
        assert history.resolve(revision) in ids


def test_the_nearest_names_are_offered(line):
    history, _ = line
    for wrong, near in {"mian": "main", "step:44": "step:40", "min:los": "min:loss"}.items():
        with pytest.raises(RevisionNotFound) as error:
            history.resolve(wrong)
        assert near in error.value.nearest


def test_a_time_names_where_a_ref_was_then(db):
    history = History(db)
    clock = iter(range(1, 100))
    db._publisher.around = Surroundings(lambda: next(clock) * HOUR, os.urandom, "h", "p")
    first = history.commit(ref="heads/main")  # published at hour 1
    second = history.commit(first, ref="heads/main")
    history.now = 10 * HOUR
    assert history.resolve("main@{8h ago}") == second
    assert history.resolve("main@{8.5 hours ago}") == first
    assert history.resolve("main@{1 minute}") == second
    with pytest.raises(RevisionNotFound):
        history.resolve("main@{1d}")


def test_without_commits_every_revision_says_so(db):
    for revision in ("HEAD", "main", "latest", "step:1", "min:loss", "HEAD@{0}"):
        with pytest.raises(RevisionNotFound):
            History(db).resolve(revision)
    assert head_of(db, Names(None, lambda: 0)) is None


# ---- orders ----


def test_ancestors_come_once_and_newest_first(line):
    history, ids = line
    found = [commit.id for commit in ancestors(history.db, ids[10])]
    assert found == ids[::-1]
    assert [commit.id for commit in first_parents(history.db, ids[10])] == ids[::-1]


def test_a_commit_never_comes_after_its_parent_whatever_its_clock_said(history):
    times = [5, 9, 1, 7, 3]
    ids: list[ObjectId] = []
    for time in times:
        ids.append(history.commit(*ids[-1:], at=time * HOUR))
    assert [commit.id for commit in ancestors(history.db, ids[-1])] == ids[::-1]


def test_the_merge_base_is_the_newest_that_both_descend_from(history):
    root = history.commit(at=1)
    fork = history.commit(root, at=2)
    left = history.commit(history.commit(fork, at=3), at=5)
    right = history.commit(fork, at=4)
    alone = history.commit(at=9)
    assert merge_base(history.db, left, right).id == fork
    assert merge_base(history.db, left, fork).id == fork
    assert merge_base(history.db, left, left).id == left
    assert merge_base(history.db, left, alone) is None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [((20, 40), 3), ((None, 40), 5), ((80, None), 3), ((None, None), 11), (None, 11), ((41, 49), 0)],
)
def test_commits_are_chosen_by_steps_both_ends_included(line, steps, expected):
    history, ids = line
    assert sum(map(in_range(steps, None), ancestors(history.db, ids[10]))) == expected


def test_commits_are_chosen_by_time_which_needs_a_zone(line):
    history, ids = line
    commit = read_commit(history.db, ids[0])
    assert in_range(None, commit.time)(commit)
    assert not in_range(None, datetime(2999, 1, 1, tzinfo=UTC))(commit)
    with pytest.raises(InvalidInput):
        in_range(None, datetime(2020, 1, 1))


def test_what_is_no_commit_cannot_be_read_as_one(line):
    history, _ = line
    with pytest.raises(ChainError):
        read_commit(history.db, TREE)
