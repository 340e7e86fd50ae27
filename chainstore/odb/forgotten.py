"""Forgotten: what everybody says of a commit whose snapshot was dropped, in the same words."""

from datetime import UTC, datetime, timedelta

from chainstore.errors import SnapshotForgotten
from chainstore.ids import ObjectId
from chainstore.model.change import MarkLine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GONE = "its bytes are gone; `chain log` shows which commits still have theirs"


def forgotten(mark: MarkLine, nearest: str = "") -> SnapshotForgotten:
    """Return the error for somebody who asks for the snapshot of a marked commit.

    Args:
        nearest: for one that gc has taken, what to look at instead; a sentence.
    """
    if mark.swept and not mark.policy:
        return gone(mark.commit)
    undo = f"`chain forget --undo {mark.commit.short}` brings it back until `chain gc` runs"
    return SnapshotForgotten(
        f"the snapshot of {mark.commit.short} was forgotten {when_and_why(mark)}",
        hint=(nearest or _GONE) if mark.swept else undo,
    )


def gone(commit: ObjectId) -> SnapshotForgotten:
    """Return the error for somebody who asks for a commit that gc has begun to take whole."""
    return SnapshotForgotten(
        f"{commit.short} is gone: no branch, tag or reflog led to it any more, so gc took it",
        hint="`chain log --all` shows every commit there is",
    )


def when_and_why(mark: MarkLine) -> str:
    """Return `on 2026-11-30 by keep-last 5`; the day is that of UTC."""
    day = _EPOCH + timedelta(microseconds=mark.time_us)
    return f"on {day:%Y-%m-%d} by {mark.policy or 'a policy that is not known'}"
