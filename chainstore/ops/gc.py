"""gc: take away what nothing leads to, and give its bytes back to the file system.

    mark       outside any lock: what refs, unexpired reflogs and readers lead to
    sweep      forgotten commits become final: no ref can lead to them from here on
    recode     what is kept and builds on what is not, so that nothing stays for its sake alone
    remove     rows, in batches: each under the publish lock, looked at again against everything published since
    reclaim    bytes: whole packs are unlinked, long runs punched, what is scattered is moved together

Whatever goes first leads to what goes later (commits before names before chunks, differences before what they are
differences to), a line of the log precedes the first byte, and every step may be the last one of a process: the next
run finds out anew what there is to do.

Who is at work is respected: a pack is touched only under its flock, which a writer holds until it has published, and
which is asked for a few times and never waited for; a reader's lease makes what it reads reachable.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from chainstore.errors import Damaged, StoreFull
from chainstore.ids import ObjectId
from chainstore.leases import collector_lock, leased_snapshots
from chainstore.model.change import Change, Dead, Expired, Retired, Swept, Unmark, encode_changes
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.odb.reserve import is_scarce, reserve_given_up
from chainstore.odb.rows import Ranges, merged
from chainstore.odb.standing import Standing
from chainstore.odb.turn import RebuiltMeanwhile
from chainstore.ops.clean import NEVER_US, is_clean, leave_clean
from chainstore.ops.following import Follower
from chainstore.ops.garbage import Inventory, PackContent, pieces, take_inventory, without
from chainstore.ops.gc_report import GcReport, Kept
from chainstore.ops.leftovers import find_leftovers, foreign_files, remove_leftovers
from chainstore.ops.moving import Mover, Target
from chainstore.ops.rebasing import rebase
from chainstore.ops.reclaim import Batch, HeldPack, hold, reclaim
from chainstore.storage.index import Index

REFLOG_US = 14 * 86_400 * 1_000_000
_ROWS = 250  # that one publication removes: 2 ms under the lock
_ROWS_WHEN_FULL = 100
_PACKS = 64  # that are held at once
_MOST_MARKS = 10_000  # in one line of the log
_BREATH_SECONDS = 0.025  # between two publications: longer than the longest pause of whoever polls for the lock
_ASKS = 8  # for a pack that somebody writes to: between two commits it is free for a moment
_MOST_ASKS = 40  # for all of them
_WORTH_ASKING = 4 << 20  # useless bytes in it: fewer may wait for the next run
_LOG_BYTES = 1 << 20  # a log shorter than this is not worth it
_LOG_TIMES = 4  # as long as what it says
_REBUILD = "`chain rebuild-index` makes it anew"


def collect(
    db: LocalDatabase, *, dry_run: bool, since: str, observer: Observer, sleep: Callable[[float], None] = time.sleep
) -> GcReport:
    """Take away what nothing leads to.

    Args:
        dry_run: only find out what there is.
        since: the time now, for whoever finds us at work.

    Raises:
        Locked: another gc is at work; says who and since when.
        Damaged: something that must be walked cannot be read, so that nothing is proven unreachable; names it.
            Nothing was removed, or only what was proven to be before.
        StorageError: what was done by then is done, and the next run goes on.
    """
    report = GcReport(dry_run=dry_run)
    now_us = db.around.now_us()
    if dry_run:
        _Collection(db, report, observer, sleep, now_us).look()
        report.useless_bytes += sum(leftover.nbytes for leftover in find_leftovers(db))
        report.foreign = foreign_files(db)
        return report
    with collector_lock(db.layout.leases, db.around.who, since), reserve_given_up(db.layout):
        db.settle()
        report.foreign = foreign_files(db)
        if is_clean(db.layout, db.position(), now_us) and not find_leftovers(db):
            report.nothing_to_do = True
            return report
        db.drop_dead_readers()
        report.freed_bytes, report.packs_removed = remove_leftovers(db, Standing(db.log, db.sealer))
        collection = _run(db, report, observer, sleep, now_us)
        if collection.complete and db.position() == collection.standing.position and not find_leftovers(db):
            oldest = collection.standing.oldest_us()
            leave_clean(db.layout, collection.standing.position, NEVER_US if oldest is None else oldest + REFLOG_US)
    return report


def _run(
    db: LocalDatabase, report: GcReport, observer: Observer, sleep: Callable[[float], None], now_us: int
) -> "_Collection":
    """Collect, and begin anew where another index was put in force: what was found may lie elsewhere in it."""
    while True:
        collection = _Collection(db, report, observer, sleep, now_us)
        try:
            collection.run()
        except RebuiltMeanwhile:
            continue
        return collection


class _Collection(Follower):
    """One garbage collection at work."""

    def __init__(
        self, db: LocalDatabase, report: GcReport, observer: Observer, sleep: Callable[[float], None], now_us: int
    ) -> None:
        super().__init__(db, observer)
        self._report, self._observer, self._sleep, self._now_us = report, observer, sleep, now_us
        self._target = Target(db, self._turn)
        self._done = self._asked = 0

    def look(self) -> Inventory:
        """Mark, and return what there is to remove; nothing is changed."""
        report = self._report
        self.standing.advance(self._db.position())
        self.complete = True
        report.reflog_lines += self.standing.expire(self._first_line_kept())
        self._reach.mark()
        if not self._db.readonly:  # looking for leases removes those of the dead
            self._reach.add_snapshots(leased_snapshots(self._db.layout.leases))
        self._reach.add_all_bases()
        inventory = self._take_inventory()
        report.left += self._reach.problems
        report.useless_bytes += sum(pack.useless_bytes() - pack.dead_bytes for pack in inventory.packs.values())
        report.commits, report.objects = len(inventory.commits), inventory.doomed[0]
        self._tell_kept(inventory)
        return inventory

    def run(self) -> None:
        """Do all of it."""
        self.standing.advance(self._db.position())  # where we begin; what comes after is followed
        self._expire()
        inventory = self.look()
        self._check_index()
        self._sweep(inventory.commits)
        if inventory.commits:
            with self._db.view() as view:
                commits = take_inventory(view, self._reach, commits_only=True)
            self._remove(commits, retire=False)
        # whoever took a lease before a commit was swept or removed found it there, so we find the lease
        self._reach.add_snapshots(leased_snapshots(self._db.layout.leases))
        try:
            self._recode()
            self._remove_all()
            self._drop_old_marks()
            self._move(self._take_inventory())
        finally:
            self._target.close()
            self._report.freed_bytes -= self._target.taken_bytes
        self._shorten_log()

    def _tell_kept(self, inventory: Inventory) -> None:
        others = [each for each in self._report.kept if not each.objects]
        self._report.kept = [*(Kept(why, *sums) for why, sums in inventory.kept.items()), *others]

    def _take_inventory(self) -> Inventory:
        self._follow(self._db.position())
        with self._db.view() as view:
            inventory = take_inventory(view, self._reach)
        self.complete &= "reader" not in inventory.kept  # who will be done some time
        return inventory

    # -- before anything goes

    def _first_line_kept(self) -> int:
        return self.standing.first_line_since(self._now_us - REFLOG_US, self._now_us)

    def _check_index(self) -> None:
        """Tell a commit that was lost from one that a damaged page of the index hides."""
        if self._reach.problems:
            with self._turn():
                wrong = Index.verify_file(self._db.index_path)
            if wrong:
                raise Damaged(f"{self._reach.problems[0]}, and the index is damaged: {wrong[0]}", hint=_REBUILD)

    def _expire(self) -> None:
        with self._turn() as turn:
            before = self._first_line_kept()
            lines = self.standing.expire(before)
            if lines:
                turn.publish([Expired(before)])
        self._report.reflog_lines = lines

    def _sweep(self, doomed: Sequence[ObjectId]) -> None:
        """Make the marks final of all commits that are forgotten and that no ref is at; others that go get one.

        Nothing can lead to them from here on.  So no row goes before all of them are swept: whoever leads to a commit
        that is not, leads to all that is below it.
        """
        while True:
            with self._turn() as turn:
                tips, marks = self.standing.targets(), self.standing.marks
                forgotten = [id for id, mark in marks.items() if not mark.swept and id not in tips][:_MOST_MARKS]
                others = [id for id in doomed if id not in self._reach and id not in marks]
                commits = [*forgotten, *others][:_MOST_MARKS]
                if not commits:
                    return
                turn.publish([Swept(tuple(commits))])
                self._report.swept += len(forgotten)
            self._sleep(_BREATH_SECONDS)

    # -- what is kept and builds on what is not

    def _recode(self) -> None:
        """Code anew what is kept on top of what is not, where that gives bytes back; see `ops.rebasing`."""
        if is_scarce(self._db.layout):
            self.complete &= not self._reach.only_bases
            return
        recoded = rebase(self._db, self._turn, self._reach, self._target, self._observer)
        self._report.recoded_bytes += recoded.nbytes
        self._report.left += recoded.problems
        if recoded.nbytes:  # what was needed for the sake of these alone is not any more
            self._reach.look_for_bases_anew()
        self.complete &= not (recoded.full and self._reach.only_bases)

    # -- rows

    def _remove_all(self) -> None:
        """Remove everything that is doomed, differences from the deepest down before the rest.

        So a row is never there without those of its bases: whoever builds on an object that is stored, or finds one
        and need not store it again, can read it, and what we then see published keeps all of that.
        """
        inventory = self._take_inventory()
        if inventory.differences:
            self._remove_differences(inventory)
            inventory = self._take_inventory()
        if self._report.recoded_bytes:
            self._tell_kept(inventory)
        self._remove(inventory, retire=True)

    def _remove_differences(self, inventory: Inventory) -> None:
        batch = Batch()
        with ExitStack() as held:
            packs: dict[int, HeldPack | None] = {}
            for depth in sorted(inventory.differences, reverse=True):
                stays: list[bytes] = []
                for number, doomed in inventory.differences[depth]:
                    if len(packs) >= _PACKS and number not in packs:
                        batch = self._publish(batch, retire=False)
                        held.pop_all().close()
                        packs.clear()
                    if number not in packs:
                        packs[number] = found = self._hold(inventory.packs[number])
                        if found is not None:
                            held.callback(found.close)
                    pack = packs[number]
                    if pack is None:
                        stays.append(doomed.id)
                        continue
                    batch.add(pack, ((doomed.start, doomed.stop),), [doomed])
                    if batch.rows >= self._limit():
                        batch = self._publish(batch, retire=False)
                self._reach.keep_bases_of(stays)
            self._publish(batch, retire=False)

    def _remove(self, inventory: Inventory, *, retire: bool) -> None:
        """Remove the rows of what is doomed, and give back whole packs and long runs.

        Args:
            retire: packs in which nothing is kept go.
        """
        batch = Batch()
        with ExitStack() as held:
            for content in sorted(inventory.packs.values(), key=lambda pack: (not pack.empty, -pack.doomed_bytes)):
                if not (content.doomed_bytes or (retire and content.useless_bytes())):
                    continue
                pack = self._hold(content)
                if pack is None:
                    self._pass_over(content)
                    continue
                held.callback(pack.close)
                for ranges, doomed in pieces(content, self._limit()):
                    batch.add(pack, ranges, doomed)
                    if batch.rows >= self._limit():
                        batch = self._publish(batch, retire)
                batch.done.append(pack)
                if len(batch.done) >= _PACKS:
                    batch = self._publish(batch, retire)
                    held.pop_all().close()
            self._publish(batch, retire)

    def _publish(self, batch: Batch, retire: bool) -> Batch:
        """Publish that ranges are dead, less what turned out to be needed; then give back what can be."""
        with self._turn() as turn:
            dead: dict[bytes, Ranges] = {}
            ids: dict[bytes, list[ObjectId]] = {}
            for name, (_, ranges, doomed) in batch.ranges.items():
                needed = merged((each.start, each.stop) for each in doomed if each.id in self._reach)
                dead[name] = without(ranges, needed)
                ids[name] = [ObjectId(each.id) for each in doomed if each.id not in self._reach]
            with turn.view() as view:
                gone = [p for p in batch.done if retire and p.may_retire(view, dead.get(p.name, ()))]
            changes: list[Change] = [Dead(name, ranges) for name, ranges in dead.items() if ranges]
            changes += [Retired(pack.name) for pack in gone]
            if changes:
                turn.publish(changes, lost=lambda change: ids[change.pack])
        for name, (pack, *_) in batch.ranges.items():
            pack.bury(dead[name])  # the log says so now
        for pack in gone:
            pack.retired = True
        for pack in batch.done:
            self.complete &= pack.retired or not (retire and pack.is_useless_with(()))  # somebody wrote to it
            self._report.packs_removed += pack.retired
            self._report.freed_bytes += reclaim(pack, self._db.packs)
            self._done += pack.content.useless_bytes() if retire else 0
        self._observer(Progress("gc", min(self._done, self._report.useless_bytes), self._report.useless_bytes))
        if changes:
            self._sleep(_BREATH_SECONDS)
        return Batch()

    def _drop_old_marks(self) -> None:
        """Take the marks off commits that are not there themselves any more."""
        with self._db.view() as view:
            gone = [id for id in self.standing.marks if id not in self._reach and view.place(id) is None]
        for at in range(0, len(gone), _MOST_MARKS):
            with self._turn() as turn:
                turn.publish([Unmark(tuple(gone[at : at + _MOST_MARKS]))])

    # -- bytes

    def _move(self, inventory: Inventory) -> None:
        """Copy together what is kept of packs whose useless bytes are scattered, so that those packs can go."""
        mover, report = Mover(self._db, self._turn, target=self._target), self._report
        packs = sorted(inventory.packs.values(), key=lambda pack: pack.kept_bytes)
        scattered = 0
        try:
            for content in packs:
                if content.line.dead:
                    pack = self._hold(content)
                    if pack is None:
                        self._pass_over(content)
                        continue
                    left = mover.move_if_worth(pack, scarce=is_scarce(self._db.layout))
                    scattered += left
                    if not left:
                        self._sleep(_BREATH_SECONDS)
        except StoreFull:
            self.complete = False
            report.left.append("with some free space to move records in, more could be freed")
        finally:
            report.moved_bytes += mover.moved_bytes
            report.freed_bytes += mover.freed_bytes
            report.packs_removed += mover.removed
            report.left += mover.problems
        if scattered:
            report.kept.append(Kept("scattered", 0, scattered))

    # -- the log

    def _shorten_log(self) -> None:
        """Begin a new segment where the lines of this one are far more than a checkpoint that sums them up."""
        with self._turn() as turn:
            if turn.position.end > _LOG_BYTES:
                with turn.view() as view:
                    needed = len(encode_changes(0, [view.checkpoint()]))
                if turn.position.end > _LOG_TIMES * needed:
                    turn.start_segment()

    def _limit(self) -> int:
        return _ROWS_WHEN_FULL if is_scarce(self._db.layout) else _ROWS

    def _hold(self, content: PackContent) -> HeldPack | None:
        """Return a pack, held; None where somebody goes on writing to it."""
        asks = _ASKS if content.useless_bytes() >= _WORTH_ASKING else 1
        while True:
            pack = hold(self._db.packs, content)
            asks -= 1
            if pack is not None or not asks or self._asked >= _MOST_ASKS:
                return pack
            self._asked += 1
            self._sleep(_BREATH_SECONDS)

    def _pass_over(self, content: PackContent) -> None:
        """Leave a pack that somebody writes to; a later run comes back to it."""
        self.complete = False
        self._report.kept.append(Kept("writer", 0, content.useless_bytes() - content.dead_bytes))
