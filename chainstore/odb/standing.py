"""Standing: what the log says stands now, read from the log itself.

Garbage collection starts here and not at the index, in which a damaged page can hide a ref without an error: what is
deleted for want of a row does not come back.
"""

from collections.abc import Sequence
from dataclasses import replace

from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.model.change import (
    Change,
    Checkpoint,
    Expired,
    Mark,
    MarkLine,
    PackGrown,
    ReflogLine,
    Retired,
    SetRef,
    Swept,
    Target,
    Unmark,
    decode_changes,
)
from chainstore.odb.record import Sealer
from chainstore.storage.log import BEGINNING, Log, Position


class Standing:
    """Refs, reflogs and marks as the log tells them, up to a line that was acknowledged.

    Attributes:
        position: the last line that was read.
        refs: full name -> where it is; deleted ones are absent.
        marks: forgotten commits.
        packs: name -> committed length; 0 for one that is retired.
    """

    def __init__(self, log: Log, sealer: Sealer) -> None:
        self._log, self._sealer = log, sealer
        self.position = BEGINNING
        self.refs: dict[str, Target] = {}
        self.marks: dict[ObjectId, MarkLine] = {}
        self.packs: dict[bytes, int] = {}
        self._reflog: list[tuple[int, int, str, Target, Target]] = []  # seq, time, name, old, new

    def advance(self, to: Position) -> list[Change]:
        """Read on to a line that the index knows, and return the changes on the way there.

        Lines after it are left alone: they may be undone.

        Raises:
            Damaged: the log does not lead there.
        """
        if to.seq == self.position.seq and to.hash == self.position.hash:
            return []
        try:
            return self._read_on(to)
        except Damaged:
            if self.position == BEGINNING:
                raise
            # a segment that we were in was dropped meanwhile; the next one sums it up
            self.position, self.refs, self.marks, self.packs, self._reflog = BEGINNING, {}, {}, {}, []
            return self._read_on(to)

    def _read_on(self, to: Position) -> list[Change]:
        seen: list[Change] = []
        for at, line in self._log.after(self.position):
            if at.seq > to.seq:
                break
            time_us, changes = decode_changes(self._sealer.open_line(line))
            self._apply(changes, at.seq, time_us)
            seen += changes
            self.position = at
        if (self.position.seq, self.position.hash) != (to.seq, to.hash):
            raise Damaged("the log does not lead to where the index stands")
        return seen

    def targets(self) -> dict[ObjectId, str]:
        """Return the commits that refs are at, each with the first of these by name; branches come before tags."""
        found: dict[ObjectId, str] = {}
        for name, target in sorted(self.refs.items()):
            if isinstance(target, ObjectId):
                found.setdefault(target, name)
        return found

    def past(self) -> dict[ObjectId, str]:
        """Return the commits that reflogs name, each with the ref whose reflog does."""
        found: dict[ObjectId, str] = {}
        for _, _, name, old, new in self._reflog:
            for target in (old, new):
                if isinstance(target, ObjectId):
                    found.setdefault(target, name)
        return found

    def first_line_since(self, time_us: int, now_us: int) -> int:
        """Return the number of the oldest log line of a reflog that is not older than `time_us`; all after it stay.

        Lines from the future say nothing: somebody's clock was wrong.  Nor does one from the past behind younger ones.
        """
        since = [seq for seq, time, *_ in self._reflog if time_us <= time <= now_us]
        older = [seq for seq, time, *_ in self._reflog if time < time_us]
        return min(since) if since else max(older, default=-1) + 1

    def expire(self, before: int) -> int:
        """Drop lines of reflogs older than log line `before`, as `Expired` does, and return how many."""
        newest = {name: seq for seq, _, name, *_ in self._reflog if name in self.refs}
        left = [entry for entry in self._reflog if entry[0] >= before or newest.get(entry[2]) == entry[0]]
        dropped = len(self._reflog) - len(left)
        self._reflog = left
        return dropped

    def oldest_us(self) -> int | None:
        """Return when the oldest line of a reflog was written that may expire."""
        newest = {name: seq for seq, _, name, *_ in self._reflog if name in self.refs}
        return min((time for seq, time, name, *_ in self._reflog if newest.get(name) != seq), default=None)

    def _apply(self, changes: Sequence[Change], seq: int, time_us: int) -> None:
        for change in changes:
            match change:
                case SetRef(name, old, new, _):
                    if new is None:
                        self.refs.pop(name, None)
                    else:
                        self.refs[name] = new
                    self._reflog.append((seq, time_us, name, old, new))
                case Mark(commits, policy):
                    for commit in commits:
                        before = self.marks.get(commit)
                        self.marks[commit] = MarkLine(commit, time_us, policy, before is not None and before.swept)
                case Unmark(commits):
                    for commit in commits:
                        self.marks.pop(commit, None)
                case Swept(commits):
                    for commit in commits:
                        mark = self.marks.get(commit) or MarkLine(commit, time_us, "", False)
                        self.marks[commit] = replace(mark, swept=True)
                case PackGrown(pack, _, stop):
                    self.packs[pack] = stop
                case Retired(pack):
                    self.packs[pack] = 0
                case Expired(before_seq):
                    self.expire(before_seq)
                case Checkpoint():
                    self._restore(change)

    def _restore(self, point: Checkpoint) -> None:
        self.refs = {name: target for name, target in point.refs if target is not None}
        self.marks = {mark.commit: mark for mark in point.marks}
        self.packs = {pack.pack: 0 if pack.retired else pack.length for pack in point.packs}
        self._reflog = [_entry(line) for line in sorted(point.reflog, key=lambda line: (line.seq, line.ordinal))]


def _entry(line: ReflogLine) -> tuple[int, int, str, Target, Target]:
    return line.seq, line.time_us, line.name, line.old, line.new
