"""Forget: the mark that drops snapshots, and taking it back.

    forget          make a plan and publish it as one mark; made anew where a ref moved in between
    unforget        take marks back, as long as gc has not begun with them
    nearest_kept    what to look at instead of a snapshot that is gone

A commit itself is never dropped: it stays in the chain, and everybody who asks for its snapshot is told when it was
forgotten, and by which policy.  `forget_plan` says what is dropped.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

from chainstore.display import count, some
from chainstore.errors import Damaged, RefConflict, SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.model.change import Mark, MarkLine, Unmark
from chainstore.model.commit import Commit
from chainstore.odb.local import LocalDatabase
from chainstore.ops.forget_plan import ForgetPlan
from chainstore.ops.history import ancestors, first_parents

_TRIES = 3


def forget(db: LocalDatabase, plan: Callable[[], ForgetPlan]) -> ForgetPlan:
    """Make a plan, apply it in one step, and return it; a plan that a moving ref overtook is made anew.

    Raises:
        RefConflict: refs moved to what was to be dropped, three times in a row; nothing was changed.
    """
    for _ in range(_TRIES - 1):
        with suppress(RefConflict):
            return apply(db, plan())
    return apply(db, plan())


def apply(db: LocalDatabase, plan: ForgetPlan) -> ForgetPlan:
    """Mark what a plan drops, all of it in one step, and return the plan.

    Raises:
        RefConflict: a ref is at one of them by now; nothing was changed.
    """
    if plan.dropped:
        db.publish(None, [Mark(plan.dropped, plan.policy)])
    return plan


def unforget(db: LocalDatabase, commits: Collection[ObjectId] | None = None) -> tuple[ObjectId, ...]:
    """Take back the marks of these commits, or of all, and return those that were taken back.

    Args:
        commits: those that were not forgotten are passed over; None takes back every mark that gc has not begun with.

    Raises:
        SnapshotForgotten: gc has taken some of `commits`, or all there were; names them; nothing was changed.
    """
    for _ in range(_TRIES - 1):
        with suppress(SnapshotForgotten):  # gc may just have begun with one of them
            return _take_back(db, commits)
    return _take_back(db, commits)


def nearest_kept(db: LocalDatabase, start: Commit, most: int = 1000) -> str:
    """Return a sentence that names the nearest commit which still has its snapshot; "" where none is near.

    Args:
        most: how many commits are read at most.
    """
    with db.view() as view:
        marked = {mark.commit for mark in view.marks()}
        tips = list(dict.fromkeys(row.target for row in view.refs() if isinstance(row.target, ObjectId)))
    with suppress(Damaged):  # a broken chain has no nearest commit
        left = most
        for commit in ancestors(db, start.id):
            left -= 1
            if commit.id not in marked:
                return _pointer("before", commit)
            if left <= 0:
                return ""
        for tip in tips:
            after: Commit | None = None
            for commit in first_parents(db, tip):
                left -= 1
                if commit.id == start.id and after is not None:
                    return _pointer("after", after)
                if left <= 0:
                    return ""
                after = commit if commit.id not in marked else after
    return ""


def _take_back(db: LocalDatabase, commits: Collection[ObjectId] | None) -> tuple[ObjectId, ...]:
    with db.view() as view:
        marks = {mark.commit: mark for mark in view.marks()}
    wanted: list[MarkLine] = [marks[id] for id in (marks if commits is None else commits) if id in marks]
    gone = [mark.commit.short for mark in wanted if mark.swept]
    if gone and (commits is not None or len(gone) == len(wanted)):
        raise SnapshotForgotten(
            f"gc has taken {count(len(gone), 'snapshot')} for good: {some(gone, 20)}",
            hint="`chain log` shows which commits still have their snapshot",
        )
    back = tuple(sorted({mark.commit for mark in wanted if not mark.swept}))
    if back:
        db.publish(None, [Unmark(back)])
    return back


def _pointer(where: str, commit: Commit) -> str:
    step = f" (step {commit.step})" if commit.step is not None else ""
    return f"the nearest {where} it that is kept is {commit.short}{step}: `chain checkout {commit.short}`"
