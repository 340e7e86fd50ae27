"""Rollback: put a branch back to where it was good, and keep a name for where it had got to."""

from dataclasses import dataclass
from datetime import UTC, datetime

from chainstore.errors import InvalidInput, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.change import SetRef
from chainstore.odb.forgotten import forgotten
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import ancestors, first_parents, read_commit
from chainstore.refs import short_name, tag_ref

_MAX_STEM_BYTES = 200  # of a name of 255: room for the time and a number


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did.

    Attributes:
        branch: its short name.  old, new: its tip before and after.
        tag: the name under which the abandoned tip is kept.
    """

    branch: str
    old: ObjectId
    new: ObjectId
    tag: str


def earlier_commit(
    db: LocalDatabase, tip: ObjectId, *, to: ObjectId | None, steps: int | None, before: datetime | None
) -> ObjectId:
    """Return the commit in the past of `tip` that exactly one of the three names.

    Args:
        to: this one; one that was forgotten is so no longer, once the branch is there.
        steps: the newest whose step is at least so many optimizer steps below the tip's.
        before: the newest made before this time.

    Raises:
        InvalidInput: none or several are given, or `to` is not in the past of `tip`.
        RevisionNotFound: there is no such commit.  SnapshotForgotten: gc has taken the snapshot of `to`.
    """
    if sum(choice is not None for choice in (to, steps, before)) != 1:
        raise InvalidInput("a rollback goes to one commit: name it with one of to, steps and before")
    if to is not None:
        return _known_ancestor(db, tip, to)
    if steps is not None:
        return _by_steps(db, tip, steps)
    assert before is not None
    return _by_time(db, tip, before)


def abandon(db: LocalDatabase, ref: str, tip: ObjectId, target: ObjectId, why: str, now_us: int) -> Rollback:
    """Move `ref` from `tip` to `target` and tag `tip`, in one step.

    Raises:
        RefConflict: the branch moved meanwhile; nothing was changed.
    """
    branch = short_name(ref)
    tag = _free_tag(db, branch, now_us)
    reason = f"rollback: to {target.short}" + (f": {why}" if why else "")
    db.publish(None, [SetRef(ref, tip, target, reason), SetRef(tag_ref(tag), None, tip, reason)])
    return Rollback(branch, tip, target, tag)


def _known_ancestor(db: LocalDatabase, tip: ObjectId, target: ObjectId) -> ObjectId:
    if target == tip:
        raise InvalidInput(f"the branch is at {tip.short} already", hint="`main~1` is the commit before it")
    if all(commit.id != target for commit in ancestors(db, tip)):
        raise InvalidInput(
            f"{target.short} is not in the past of {tip.short}", hint="`chain reset` moves a branch anywhere"
        )
    with db.view() as view:
        mark = view.mark(target)
    if mark is not None and mark.swept:
        raise forgotten(mark)
    return target


def _by_steps(db: LocalDatabase, tip: ObjectId, steps: int) -> ObjectId:
    if steps < 1:
        raise InvalidInput(f"a rollback goes back at least one step, not {steps}")
    reached = read_commit(db, tip).step
    if reached is None:
        raise InvalidInput(f"{tip.short} has no step to count back from", hint="name a revision, such as `main~1`")
    for commit in first_parents(db, tip):
        if commit.step is not None and commit.step <= reached - steps and _is_kept(db, commit.id):
            return commit.id
    raise RevisionNotFound(f"step:{reached - steps}", why=f"nothing that old is left before {tip.short}")


def _by_time(db: LocalDatabase, tip: ObjectId, before: datetime) -> ObjectId:
    if before.tzinfo is None:
        raise InvalidInput("before needs a time zone, such as datetime.now(UTC) - timedelta(hours=2)")
    for commit in first_parents(db, tip):
        if commit.id != tip and commit.time < before and _is_kept(db, commit.id):
            return commit.id
    raise RevisionNotFound(before.isoformat(), why=f"nothing that old is left before {tip.short}")


def _is_kept(db: LocalDatabase, id: ObjectId) -> bool:
    with db.view() as view:
        return view.mark(id) is None


def _free_tag(db: LocalDatabase, branch: str, now_us: int) -> str:
    stem = branch.encode()[:_MAX_STEM_BYTES].decode(errors="ignore").rstrip("/.")
    name = f"abandoned/{stem}/{datetime.fromtimestamp(now_us / 1e6, UTC):%Y%m%dT%H%M%SZ}"
    with db.view() as view:
        taken = (row.name for row in view.refs())
        known = {short_name(full) for full in taken if full.startswith(tag_ref("abandoned"))}
    return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 10_000))) if each not in known)
