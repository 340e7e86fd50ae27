"""Forgetting: what a plan drops and protects, that it is applied whole or not at all, and that it can be undone."""

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainstore.errors import IdMismatch, InvalidInput, RefConflict, SnapshotForgotten
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Mark, SetRef, Swept
from chainstore.model.commit import Note, Stats
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Entry, Extent
from chainstore.odb.local import LocalDatabase
from chainstore.ops.commit import write_commit, write_trees
from chainstore.ops.forget import apply, forget, nearest_kept, unforget
from chainstore.ops.forget_plan import ForgetPlan, plan_forget, plan_named
from chainstore.ops.history import ancestors, read_commit
from chainstore.policies import Best, Retention
from tests.odb.stores import MAIN, Store, logical, tip

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
OTHER = "heads/other"


@dataclass
class Run:
    """A run that commits once an hour: each state differs, step and metrics are as a test wants them."""

    db: LocalDatabase
    numbers = count(1)

    def commit(self, *, ref: str = MAIN, base: ObjectId | None = None, step: int | None = None, **metrics: float):
        number = next(self.numbers)
        batch = self.db.batch("none")
        chunk = batch.append(Kind.CHUNK, b"%d" % number).id
        entry = Entry(("k",), ["x"], None, (Extent(chunk, 0, len(b"%d" % number)),))
        root, _ = write_trees(batch, Manifest([entry]), Manifest())
        old = tip(self.db, ref)
        parents = tuple(parent for parent in (old or base,) if parent is not None)
        made = NOW - timedelta(days=365) + number * timedelta(hours=1)
        note = Note(f"commit {number}", step=step, metrics=metrics)
        id = write_commit(batch, root, parents, note, int(made.timestamp() * 1e6), Stats())
        self.db.publish(batch, [SetRef(ref, old, id)], parents=parents)
        self.db.retire_batch(batch)
        return id

    def line(self, length: int, **more) -> list[ObjectId]:
        return [self.commit(step=step, **more) for step in range(length)]

    def plan(self, **rules) -> ForgetPlan:
        return plan_forget(self.db, Retention(**rules), NOW)

    def marked(self) -> set[ObjectId]:
        with self.db.view() as view:
            return {mark.commit for mark in view.marks()}


@pytest.fixture
def run(db) -> Run:
    return Run(db)


def reasons(plan: ForgetPlan) -> dict[ObjectId, tuple[str, ...]]:
    return {line.commit: line.reasons for line in plan.lines}


# ---- plans


def test_a_plan_has_one_line_for_each_snapshot_newest_first_with_what_keeps_it(run):
    made = run.line(6)
    plan = run.plan(last=2, every_steps=3)
    assert [line.commit for line in plan.lines] == made[::-1]
    assert [line.step for line in plan.lines if line.kept] == [5, 4, 3, 0]
    assert plan.dropped == (made[2], made[1]) and plan.kept == (made[5], made[4], made[3], made[0])
    assert reasons(plan) == {
        made[5]: ("tip of main", "last of main"),
        made[4]: ("last of main",),
        made[3]: ("every 3 steps of main",),
        made[2]: (),
        made[1]: (),
        made[0]: ("every 3 steps of main",),
    }
    assert plan.policy == "keep-last 2, keep-every-steps 3"
    assert all(line.branches == ("main",) and line.time.tzinfo for line in plan.lines)


def test_a_plan_changes_nothing(run):
    run.line(4)
    before = logical(run.db)
    assert run.plan(last=1) == run.plan(last=1)
    assert logical(run.db) == before


def test_what_has_a_name_stays_whatever_the_rules_say(run):
    made = run.line(8)
    names = {OTHER: made[1], "tags/good": made[2], "HEAD": made[3]}
    run.db.publish(None, [SetRef(name, MAIN if name == "HEAD" else None, target) for name, target in names.items()])
    plan = run.plan(last=1, group_by="none")
    assert reasons(plan) == {
        made[7]: ("tip of main", "last"),
        made[3]: ("HEAD",),
        made[2]: ("tag good",),
        made[1]: ("tip of other",),
        **dict.fromkeys((made[0], made[4], made[5], made[6]), ()),
    }


def test_a_tag_that_a_rule_and_the_protection_name_is_one_reason(run):
    made = run.line(3)
    run.db.publish(None, [SetRef("tags/v1", None, made[1])])
    assert reasons(run.plan(tags=("v*",)))[made[1]] == ("tag v1",)


def test_rules_go_by_branch_and_a_snapshot_stays_if_any_branch_keeps_it(run):
    made = run.line(4)
    other = [run.commit(ref=OTHER, base=made[1], step=10), run.commit(ref=OTHER, step=11)]
    plan = run.plan(last=3)
    assert set(plan.kept) == {*made[1:], *other} and plan.dropped == (made[0],)
    assert {line.commit: line.branches for line in plan.lines}[made[1]] == ("main", "other")
    assert reasons(plan)[made[1]] == ("last of main", "last of other")
    together = run.plan(last=3, group_by="none")
    assert set(together.dropped) == set(made[:3])


def test_only_snapshots_that_are_there_count(run):
    made = run.line(6)
    apply(run.db, run.plan(last=3))
    assert run.marked() == set(made[:3])
    plan = run.plan(every_steps=1)
    assert set(plan.kept) == set(made[3:]) and not plan.dropped
    assert {line.commit for line in run.plan(last=2).lines} == set(made[3:])


def test_the_newest_complete_snapshot_stays_where_the_tip_has_lost_its_own(run):
    made = run.line(5)
    with run.db._index.write() as rows:
        for id in made[3:]:
            rows.delete("objects", read_commit(run.db, id).tree)
    plan = run.plan(every_steps=4)
    assert reasons(plan)[made[2]] == ("newest complete of main",)
    assert set(plan.kept) == {made[4], made[2], made[0]}


def test_what_no_branch_leads_to_is_no_candidate(run):
    made = run.line(3)
    run.db.publish(None, [SetRef("tags/abandoned", None, made[2]), SetRef(MAIN, made[2], made[0])])
    assert [line.commit for line in run.plan(last=1).lines] == [made[0]]


def test_of_two_parents_both_lines_are_candidates(run):
    left, right = run.commit(step=1), run.commit(ref=OTHER, step=2)
    batch = run.db.batch("none")
    root = read_commit(run.db, left).tree
    merge = write_commit(batch, root, (left, right), Note("merge"), int(NOW.timestamp() * 1e6), Stats())
    run.db.publish(batch, [SetRef(MAIN, left, merge), SetRef(OTHER, right, None)])
    run.db.retire_batch(batch)
    assert set(run.plan(last=1).dropped) == {left, right}


# ---- refusals


def test_an_unknown_metric_is_refused_and_the_nearest_named(run):
    for loss in (3.0, 2.0, 1.0):
        run.commit(loss=loss)
    with pytest.raises(InvalidInput, match="no snapshot has a metric 'los'") as raised:
        run.plan(last=1, best=Best("los"))
    assert raised.value.hint == "did you mean loss?"
    with pytest.raises(InvalidInput) as raised:
        run.plan(last=1, best=Best("accuracy"))
    assert "loss" in raised.value.hint
    assert len(run.plan(best=Best("loss")).dropped) == 2


def test_rules_that_keep_nothing_of_a_branch_are_refused_unless_that_is_allowed(run):
    made = [run.commit(step=step) for step in (1, 2, 3)]
    other = [run.commit(ref=OTHER, step=step) for step in (10, 11)]
    with pytest.raises(InvalidInput, match="keep-every-steps 10 keeps no snapshot of main but"):
        run.plan(every_steps=10)
    with pytest.raises(InvalidInput, match="of main, other but"):
        run.plan(tags=("no-such-tag",))
    with pytest.raises(InvalidInput, match="keeps no snapshot but"):
        run.plan(tags=("no-such-tag",), group_by="none")
    assert set(run.plan(every_steps=10, group_by="none").kept) == {made[2], *other}
    plan = plan_forget(run.db, Retention(every_steps=10), NOW, allow_remove_all=True)
    assert set(plan.kept) == {made[2], other[0], other[1]}  # the tips stay in any case


def test_rules_that_keep_nothing_of_a_branch_with_nothing_to_drop_are_no_slip(run):
    run.line(4)
    only = run.commit(ref=OTHER, step=5)
    plan = run.plan(every_steps=2)
    assert reasons(plan)[only] == ("tip of other",) and len(plan.dropped) == 1


def test_an_empty_repository_has_an_empty_plan(run):
    assert run.plan(last=1, best=Best("loss")).lines == ()


def test_a_damaged_commit_stops_a_plan(run):
    made = run.line(3)
    with run.db._index.write() as rows:
        rows.delete("objects", made[1])
        rows.delete("inline", made[1])
    with pytest.raises(IdMismatch):
        run.plan(last=1)


# ---- by name


def test_commits_are_forgotten_by_name(run):
    made = run.line(4)
    plan = forget(run.db, lambda: plan_named(run.db, [made[0], made[2], made[0]]))
    assert plan.dropped == (made[2], made[0]) and run.marked() == {made[0], made[2]}
    assert plan_named(run.db, [made[0], made[1]]).dropped == (made[1],)  # the first is forgotten already


@pytest.mark.parametrize(
    ("ref", "why"), [(None, "tip of main"), (OTHER, "tip of other"), ("tags/v1", "tag v1"), ("HEAD", "HEAD")]
)
def test_a_commit_with_a_name_is_refused_by_name_and_nothing_is_forgotten(run, ref, why):
    made = run.line(3)
    named = made[2] if ref is None else made[1]
    if ref is not None:
        run.db.publish(None, [SetRef(ref, MAIN if ref == "HEAD" else None, named)])
    with pytest.raises(InvalidInput, match=f"{named.short} cannot be forgotten: it is {why}") as raised:
        forget(run.db, lambda: plan_named(run.db, [made[0], named]))
    assert "chain tag -d" in raised.value.hint and not run.marked()


def test_what_no_branch_leads_to_can_be_forgotten_by_name(run):
    made = run.line(3)
    run.db.publish(None, [SetRef("tags/abandoned", None, made[2]), SetRef(MAIN, made[2], made[0])])
    assert forget(run.db, lambda: plan_named(run.db, [made[1]])).dropped == (made[1],)


# ---- in one step, or not at all


def test_a_plan_is_one_line_of_the_log(run):
    run.line(6)
    before = run.db.position().seq
    forget(run.db, lambda: run.plan(last=1))
    assert run.db.position().seq == before + 1
    forget(run.db, lambda: run.plan(last=1))  # nothing is left to drop, so nothing is written
    assert run.db.position().seq == before + 1


@pytest.mark.parametrize("name", [OTHER, "tags/late", "HEAD"])
def test_a_name_that_came_in_between_is_seen(run, name):
    made = run.line(4)
    plan = run.plan(last=1)
    run.db.publish(None, [SetRef(name, MAIN if name == "HEAD" else None, made[1])])
    with pytest.raises(RefConflict, match=name):
        apply(run.db, plan)
    assert not run.marked()
    assert forget(run.db, lambda: run.plan(last=1, group_by="none")).dropped == (made[2], made[0])


def test_a_plan_that_was_overtaken_is_made_anew_three_times_at_most(run):
    made, tries = run.line(6), []

    def overtaken(times: int):
        def plan() -> ForgetPlan:
            found = run.plan(last=1, group_by="none")
            tries.append(found)
            if len(tries) <= times:
                run.db.publish(None, [SetRef(f"tags/late-{len(tries)}", None, made[len(tries)])])
            return found

        return plan

    plan = forget(run.db, overtaken(2))
    assert len(tries) == 3 and set(plan.dropped) == {made[0], made[3], made[4]} == run.marked()
    unforget(run.db)
    tries.clear()
    run.db.publish(None, [SetRef(f"tags/late-{n}", made[n], None) for n in (1, 2)])
    with pytest.raises(RefConflict):
        forget(run.db, overtaken(3))
    assert len(tries) == 3 and not run.marked()


# ---- taking it back


def test_undo_restores_everything(run):
    run.line(6)
    before = logical(run.db)
    plan = forget(run.db, lambda: run.plan(last=1))
    seq = run.db.position().seq
    assert set(unforget(run.db)) == set(plan.dropped)
    assert run.db.position().seq == seq + 1
    after = logical(run.db)
    for what in ("objects", "refs", "reflog", "marks", "config", "packs"):
        assert after[what] == before[what]
    assert unforget(run.db) == ()


def test_some_are_taken_back(run):
    made = run.line(5)
    apply(run.db, run.plan(last=1))
    assert unforget(run.db, [made[1], made[4]]) == (made[1],)  # the last one never was forgotten
    assert run.marked() == {made[0], made[2], made[3]}


def test_what_gc_took_stays_gone_and_is_named(run):
    made = run.line(5)
    apply(run.db, run.plan(last=1))
    run.db.publish(None, [Swept((made[0], made[1]))])
    with pytest.raises(SnapshotForgotten, match=f"2 snapshots for good: .*{made[1].short}"):
        unforget(run.db, made[:3])
    assert run.marked() == set(made[:4])
    assert set(unforget(run.db)) == {made[2], made[3]}
    with pytest.raises(SnapshotForgotten, match=made[0].short):
        unforget(run.db)
    with pytest.raises(SnapshotForgotten, match=r"forgotten on .* by keep-last 1"):
        run.db.publish(None, [SetRef("tags/late", None, made[0])])


def test_a_name_takes_the_mark_back_in_the_same_step(run):
    made = run.line(5)
    apply(run.db, run.plan(last=1))
    for name, target in ((OTHER, made[0]), ("tags/v1", made[1]), ("HEAD", made[2])):
        seq = run.db.position().seq
        run.db.publish(None, [SetRef(name, MAIN if name == "HEAD" else None, target)])
        assert run.db.position().seq == seq + 1 and target not in run.marked()
    assert run.marked() == {made[3]}


def test_a_child_does_not_bring_its_parent_back(run):
    made = run.line(3)
    apply(run.db, run.plan(last=1))
    run.commit(ref=OTHER, base=made[0])
    assert run.marked() == set(made[:2])


# ---- what is told


def test_the_nearest_that_is_kept_is_the_one_before_else_the_one_after(run):
    made = run.line(6)
    for id in (made[1], made[2], made[3]):
        run.db.publish(None, [Mark((id,), "by hand"), Swept((id,))])
    told = nearest_kept(run.db, read_commit(run.db, made[3]))
    assert f"before it that is kept is {made[0].short} (step 0)" in told
    run.db.publish(None, [Mark((made[0],), "hand")])
    told = nearest_kept(run.db, read_commit(run.db, made[2]))
    assert f"after it that is kept is {made[4].short} (step 4)" in told
    assert nearest_kept(run.db, read_commit(run.db, made[2]), most=2) == ""


# ---- whatever the rules


SHAPES = st.lists(st.tuples(st.sampled_from(["main", "other"]), st.integers(0, 9)), min_size=1, max_size=12)
RULES = st.builds(
    Retention,
    last=st.none() | st.integers(1, 4),
    every_steps=st.none() | st.integers(1, 4),
    daily=st.none() | st.integers(1, 3),
    first=st.just(True),
    group_by=st.sampled_from(["branch", "none"]),
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHAPES, RULES, st.data())
def test_forgetting_keeps_what_has_a_name_and_undo_brings_back_the_rest(tmp_path_factory, shape, rule, data):
    with closing(Store(tmp_path_factory.mktemp("s") / "store", encrypted=False).create()) as db:
        run = Run(db)
        made = []
        for branch, step in shape:
            base = data.draw(st.sampled_from(made)) if made else None
            made.append(run.commit(ref=f"heads/{branch}", base=base, step=step))
        tagged = data.draw(st.sampled_from(made))
        db.publish(None, [SetRef("tags/kept", None, tagged)])
        tips = {row.target for row in db.refs() if isinstance(row.target, ObjectId)}
        everything = {commit.id for commit in ancestors(db, *tips)}
        plan = forget(db, lambda: plan_forget(db, rule, NOW))
        assert set(plan.kept) | set(plan.dropped) == everything and not set(plan.kept) & set(plan.dropped)
        assert tips <= set(plan.kept) and run.marked() == set(plan.dropped)
        assert not plan_forget(db, rule, NOW).dropped  # a chain that obeys a policy is not thinned further by it
        assert set(unforget(db)) == set(plan.dropped) and not run.marked()
        assert plan_forget(db, rule, NOW).lines == plan.lines
