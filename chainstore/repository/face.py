"""The face: `Repository`, with every method a user can call and what it promises.

Each method says here what it does, for whom it fails, and hands the work to the room that does it.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from chainstore import access
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import SnapshotNotFound
from chainstore.ids import ObjectId
from chainstore.lazy import Globs, Reading, Snapshot
from chainstore.model.change import MarkLine, ReflogLine, SetConfig
from chainstore.model.commit import Commit
from chainstore.observe import silent
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.ops.commit import FileContent, file_leaves
from chainstore.ops.differences import Diff
from chainstore.ops.forget_plan import ForgetPlan
from chainstore.ops.gc_report import GcReport
from chainstore.ops.history import ancestors, head_of, in_range, merge_base, read_commit
from chainstore.ops.repack import RepackReport
from chainstore.ops.rollback import Rollback
from chainstore.ops.usage import Usage
from chainstore.ops.verify_report import Level, VerifyReport
from chainstore.policies.retention import Retention
from chainstore.policies.texts import format_retention
from chainstore.refs import HEAD, HEADS, TAGS, branch_ref, short_name, tag_ref
from chainstore.repository import collecting, forgetting, refs
from chainstore.repository.comparing import compare
from chainstore.repository.handles import Core, Handle, Revision, release, share
from chainstore.repository.holding import BranchHold, hold
from chainstore.repository.overview import overview
from chainstore.repository.proving import newest_good, prove
from chainstore.repository.recording import Request, make_note, new_tags, record
from chainstore.repository.rekeying import RekeyReport, rekey
from chainstore.repository.settings import Settings
from chainstore.repository.slots import KeySlot, add_slot, keyring_of, list_slots, remove_slot, rotate_slot
from chainstore.repository.upkeep import RepositoryStats, Status, look, measure, rebuild_open, weigh, weigh_branches
from chainstore.repository.writer import Writer, writing
from chainstore.settings import as_stored
from chainstore.state.leaf import Leaf


def open_with(settings: Settings) -> "Repository":
    """Open a repository as the settings say; a pickled handle comes back through here."""
    core = share(settings)
    try:
        return Repository(settings, core)
    except BaseException:
        release(core)
        raise


class Repository:
    """One repository; see `open` and `init`.  Threads may share it; a forked child opens it anew by itself.

    Attributes:
        path: its directory.
    """

    def __init__(self, settings: Settings, core: Core) -> None:
        self._handle = Handle(settings, core)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._handle.settings.root

    @property
    def key_origin(self) -> str:
        """Where the key that opened it was found, for people to read; "" where it is not encrypted."""
        return self._handle.core.key_origin

    @property
    def encrypted(self) -> bool:
        """Whether everything in it is sealed with a key."""
        return self._db.sealer.encrypted

    @property
    def id(self) -> str:
        """The repository's own id, 32 hex digits; clones share it."""
        return self._db.sealer.repo_id.hex()

    def __repr__(self) -> str:
        branch = self.branch_name or "detached"
        return f"<Repository {str(self.path)!r} on {branch}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return overview(self._handle)

    def __enter__(self) -> Self:
        """Return the handle itself; it is closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, tuple[Settings]]:
        return open_with, (replace(self._handle.settings, observer=silent),)

    def close(self) -> None:
        """Give this handle up; the last one of a process closes the store.  Again is fine."""
        self._handle.close()

    # -- recording

    def commit(
        self,
        state: object,
        message: str = "",
        *,
        branch: str | None = None,
        step: int | None = None,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        meta: Mapping[str, object] | None = None,
        tags: Sequence[str] = (),
        files: Mapping[str, str | os.PathLike[str]] | None = None,
        parents: Sequence[Revision] | None = None,
        expected_head: Revision | None = None,
        allow_empty: bool = True,
        codec: str | None = None,
    ) -> Commit:
        """Store a state as the new tip of a branch; durable when it returns.

        Args:
            state: nested dicts, lists and tuples of tensors, arrays and plain values.  It must not change meanwhile.
            branch: made if it does not exist; by default the one this handle was opened on.
            step: completed optimizer steps.  epoch: any integer.
            metrics: name to number (0-dim tensors and NumPy scalars too).  meta: any JSON.
            tags: names for this commit.
            files: name in the snapshot to path on disk, stored beside the state.
            parents: instead of the branch's tip; the first one counts as the chain.
            expected_head: refuse unless the branch is there.
            allow_empty: False refuses a state that equals the tip's.
            codec: "auto", "none", "fast" or "small".

        Raises:
            UnsupportedState: lists every path that cannot be stored; nothing was written.
            RefConflict: the branch moved meanwhile; nothing was published.
            BranchDeleted: somebody deleted the branch this handle is on; nothing was published.
            NothingToCommit: `allow_empty` is False and nothing changed.
        """
        return self.commit_leaves(
            self._handle.core.walks.leaves(state),
            message,
            branch=branch,
            step=step,
            epoch=epoch,
            metrics=metrics,
            meta=meta,
            tags=tags,
            files=files,
            parents=parents,
            expected_head=expected_head,
            allow_empty=allow_empty,
            codec=codec,
        )

    def commit_leaves(
        self,
        leaves: Sequence[Leaf],
        message: str = "",
        *,
        branch: str | None = None,
        step: int | None = None,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        meta: Mapping[str, object] | None = None,
        tags: Sequence[str] = (),
        files: Mapping[str, str | os.PathLike[str] | FileContent] | None = None,
        parents: Sequence[Revision] | None = None,
        expected_head: Revision | None = None,
        allow_empty: bool = True,
        codec: str | None = None,
    ) -> Commit:
        """Store a state that was flattened before, its bytes wherever they are by now, as `commit` stores one.

        Args:
            leaves: in the order of `flatten`, no path twice.
            files: name in the snapshot to path on disk, or to what was read of a file before.

        Raises:
            What `commit` raises, `UnsupportedState` apart.
        """
        note = make_note(message, step, epoch, metrics, meta)
        found = {name: each if isinstance(each, FileContent) else Path(each) for name, each in (files or {}).items()}
        request = Request(branch, note, new_tags(self._handle, tags), parents, expected_head, allow_empty)
        return record(self._handle, request, leaves, file_leaves(found), self._handle.codec(codec), time.perf_counter())

    def writer(
        self,
        branch: str | None = None,
        message: str = "",
        *,
        step: int | None = None,
        epoch: int | None = None,
        metrics: Mapping[str, object] | None = None,
        meta: Mapping[str, object] | None = None,
        tags: Sequence[str] = (),
        codec: str | None = None,
    ) -> AbstractContextManager[Writer]:
        """Build a commit piece by piece: each is stored when it is assigned, all become visible on a clean exit.

        An exception inside the block aborts: nothing is visible, what was written is garbage.  The arguments are those
        of `commit`, and so are the errors, raised where a piece is assigned or at the end of the block.

            with repo.writer(step=7) as w:
                w["model"] = model.state_dict()
                w.add("optimizer/exp_avg", tensor)
                w.add_file("tokenizer.json", path)
        """
        note = make_note(message, step, epoch, metrics, meta)
        return writing(self._handle, Request(branch, note, new_tags(self._handle, tags)), codec)

    # -- looking

    @property
    def head(self) -> Commit | None:
        """The tip of this handle's branch, or None where nothing was committed yet."""
        id = head_of(self._db, self._handle.names())
        return read_commit(self._db, id) if id is not None else None

    @property
    def branch_name(self) -> str | None:
        """The branch this handle commits to; None where HEAD is detached."""
        return short_name(self._handle.branch) if self._handle.branch else None

    def resolve(self, revision: Revision) -> ObjectId:
        """Return the id of the commit that a revision names.

        Raises:
            RevisionNotFound: there is none; says what comes closest.
        """
        return self._handle.resolve(revision)

    def log(
        self,
        rev: Revision | None = None,
        *,
        max_count: int | None = None,
        since: datetime | None = None,
        steps: tuple[int | None, int | None] | None = None,
        all_refs: bool = False,
    ) -> Iterator[Commit]:
        """Yield commits, newest first, from a revision (by default HEAD) back to the first.

        Args:
            max_count: at most so many.  since: not older than this.  steps: (first, last), both included, None open.
            all_refs: from every branch and tag instead.

        Raises:
            RevisionNotFound: `rev` names no commit; raised with the first commit that is asked for.

        Cost: one read for each commit that is passed, so that `max_count=10` is quick in any chain.
        """
        if all_refs:
            starts = list(dict.fromkeys(row.target for row in self._db.refs() if isinstance(row.target, ObjectId)))
        elif rev is None:
            head = head_of(self._db, self._handle.names())
            starts = [head] if head is not None else []
        else:
            starts = [self.resolve(rev)]
        test = in_range(steps, since)
        count = 0
        for commit in ancestors(self._db, *starts):
            if max_count is not None and count >= max_count:
                return
            if test(commit):
                count += 1
                yield commit

    def get_commit(self, rev: Revision) -> Commit:
        """Return the commit that a revision names.

        Raises:
            RevisionNotFound: there is none; says what comes closest.
        """
        return read_commit(self._db, self.resolve(rev))

    def snapshot(self, rev: Revision = HEAD) -> Snapshot:
        """Return the snapshot of a commit; it reads nothing before it is asked.

        Raises:
            RevisionNotFound: there is no such commit; says what comes closest.
        """
        settings = self._handle.settings
        reading = Reading(lambda: self._db, settings.threads, settings.max_memory_bytes, settings.observer)
        commit = self.get_commit(rev)
        return Snapshot(commit, reading, manifest=self._handle.manifest_of(commit.id))

    def __getitem__(self, rev: Revision) -> Snapshot:
        """Return the snapshot of a commit: `repo["main~2"]`, `repo["step:1200"]`, `repo["min:loss"]`."""
        return self.snapshot(rev)

    def checkout(
        self,
        rev: Revision = HEAD,
        *,
        select: Globs = None,
        exclude: Globs = None,
        map_location: str | None = None,
    ) -> Any:
        """Return the state of a commit, or the selected part of it, as it was saved; needs no template.

        Args:
            select, exclude: globs over paths, such as "model/**"; a path is loaded if some `select` matches and no
                `exclude` does.
            map_location: device for tensors, such as "cuda:0"; the host by default.

        Raises:
            PathNotFound: nothing is selected.  SnapshotForgotten: the commit is there, its snapshot was dropped.
            RevisionNotFound, SnapshotNotFound: there is no such commit, or none at all yet.
            IdMismatch: something in it is damaged; names tensor, commit and the nearest good ancestor.
        """
        if rev == HEAD and self.head is None:
            raise SnapshotNotFound(f"nothing was committed to {self.path} yet", hint="repo.commit(state) does")
        return self.snapshot(rev).load(select, exclude, map_location=map_location)

    def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the newest commit that both descend from, or None.

        Raises:
            RevisionNotFound: a or b names no commit.
        """
        return merge_base(self._db, self.resolve(a), self.resolve(b))

    def diff(
        self,
        a: Revision,
        b: Revision = HEAD,
        *,
        select: Globs = None,
        norms: bool = True,
        unchanged: bool = False,
    ) -> Diff:
        """Return what differs between two commits: arrays, plain values, files, metrics and meta.

        Only what changed is read, chunk by chunk, in the memory of the pipeline.

        Args:
            a, b: the old side and the new one.
            select: globs over paths; then only what one of them matches is compared, and no files.
            norms: also by how much arrays changed; False says that they did, and reads next to nothing.
            unchanged: measure arrays that are equal, too.

        Raises:
            RevisionNotFound: a or b names no commit.  SnapshotForgotten: its snapshot was dropped.
            IdMismatch: something that had to be read is damaged; says where.
        """
        return compare(self._handle, self.snapshot(a), self.snapshot(b), select, norms, unchanged)

    def stats(self, *, reclaimable: bool = False) -> RepositoryStats:
        """Return how much the repository holds, and how much it would be without it.

        Args:
            reclaimable: also what `gc` would give back, for which every commit and every name is read.
        """
        return measure(self._handle, self.log(all_refs=True), reclaimable)

    def status(self) -> Status:
        """Return where the repository stands, as far as that is known at once."""
        return look(self._handle)

    def usage(
        self, rev: Revision | None = None, *, max_count: int = 1, branches: bool = False, reclaimable: bool = False
    ) -> Usage:
        """Return where the bytes are: by kind of object, and by top-level path or by branch.

        Args:
            rev, max_count: the newest so many snapshots from there, by default the one of HEAD.
            branches: by branch, over all snapshots of every branch, instead of by path.
            reclaimable: also what `gc` would give back, for which every commit and every name is read.
        """
        if branches:
            return weigh_branches(self._handle, reclaimable)
        return weigh(self._handle, list(self.log(rev, max_count=max_count)), reclaimable)

    # -- refs

    def branches(self) -> dict[str, ObjectId]:
        """Return the branches and their tips."""
        return refs.refs_below(self._handle, HEADS)

    def tags(self) -> dict[str, ObjectId]:
        """Return the tags and the commits they name."""
        return refs.refs_below(self._handle, TAGS)

    def branch(self, name: str, start: Revision = HEAD) -> ObjectId:
        """Make a branch at a revision and return its tip.

        Raises:
            InvalidRefName: the name breaks the rules, which are git's.  AlreadyExists: the branch is there.
            RevisionNotFound: `start` names no commit.  SnapshotForgotten: gc has taken its snapshot; one that was only
                forgotten comes back with the name.
        """
        return refs.make_ref(self._handle, branch_ref(name), start, f"branch: from {start}")

    def tag(self, name: str, rev: Revision = HEAD) -> ObjectId:
        """Give a commit a name that never moves, and return its id.

        Raises:
            InvalidRefName: the name breaks the rules, which are git's.  AlreadyExists: the tag is there.
            RevisionNotFound: `rev` names no commit.  SnapshotForgotten: as for `branch`.
        """
        return refs.make_ref(self._handle, tag_ref(name), rev, f"tag: {rev}")

    def delete_ref(self, name: str, *, kind: Literal["branch", "tag"] | None = None) -> ObjectId:
        """Delete a branch or tag and return where it was; its reflog is kept.

        Args:
            kind: which of the two; by default a branch, and a tag where there is no branch of that name.

        Raises:
            RevisionNotFound: there is none.  InvalidInput: HEAD is on it.
        """
        return refs.delete_ref(self._handle, name, kind)

    def switch(self, branch: str, *, create: bool = False) -> None:
        """Make `branch` the one that HEAD and this handle are on; other running writers stay where they are.

        Raises:
            RevisionNotFound: there is no such branch, and `create` is False.
        """
        refs.switch(self._handle, branch, create=create)

    def detach(self, rev: Revision) -> ObjectId:
        """Put HEAD on a commit itself, and return it; the next commit from here opens a new branch.

        Raises:
            RevisionNotFound: there is no such commit.  SnapshotForgotten: as for `branch`.
        """
        return refs.detach(self._handle, rev)

    def reset(self, branch: str, rev: Revision, *, expected_head: Revision | None = None) -> ObjectId:
        """Move a branch to a revision and return where it was; the reflog keeps that.

        Raises:
            RefConflict: `expected_head` is given and the branch is elsewhere.  SnapshotForgotten: as for `branch`.
        """
        return refs.reset(self._handle, branch, rev, expected_head)

    def rollback(
        self,
        branch: str,
        *,
        to: Revision | None = None,
        steps: int | None = None,
        before: datetime | None = None,
        reason: str = "",
    ) -> Rollback:
        """Put a branch back to an earlier commit of its own; its tip keeps a tag, abandoned/<branch>/<time>.

        Args:
            to: that commit.
            steps: the newest at least so many optimizer steps below the tip.
            before: the newest made before this time.
            reason: kept in the reflog.

        Raises:
            InvalidInput: not exactly one of the three is given, or `to` is not in the branch's past.
            RevisionNotFound: nothing that old is left.  SnapshotForgotten: gc has taken the snapshot of `to`.
        """
        return refs.rollback(self._handle, branch, to, steps, before, reason)

    def hold_branch(self, name: str, *, wait_seconds: float = 0.0) -> BranchHold:
        """Be the only run whose snapshots go to a branch, until the hold is given back or this process ends.

        Plain commits ask nobody.  The branch need not exist.

        Args:
            wait_seconds: how long to wait for another one, which may be making its last snapshot durable.

        Raises:
            Locked: another one held it all the time; says who and since when.
            InvalidRefName: the name breaks the rules.  ReadOnly: the repository was opened for reading.
        """
        return hold(self._handle, name, wait_seconds)

    def reflog(self, ref: str = HEAD) -> list[ReflogLine]:
        """Return the moves of a ref, newest first; HEAD means the current branch's.

        Raises:
            RevisionNotFound: there never was such a ref.
        """
        return refs.reflog(self._handle, ref)

    # -- upkeep

    def forget(
        self,
        retention: Retention | None = None,
        *,
        commits: Sequence[Revision] | None = None,
        dry_run: bool = False,
        allow_remove_all: bool = False,
    ) -> ForgetPlan:
        """Drop the snapshots that a policy does not keep, or just those of some commits, and return what was done.

        The commits stay in the log, with a mark; `unforget` takes the marks back until `gc` has run.  What has a name
        always stays: tips of branches, tagged commits, the commit HEAD is on.  Commits that no branch leads to are
        dropped only by name.

        Args:
            retention: by default the repository's own policy.
            commits: instead of a policy; an empty list drops nothing.
            dry_run: change nothing; the plan is the one that would be applied.
            allow_remove_all: let the rules keep nothing of a branch but what has a name.

        Raises:
            InvalidInput: there is no policy; no commit has its metric; its rules keep nothing of a branch; or one of
                `commits` has a name.  Nothing was changed.
            RefConflict: refs moved to what was to be dropped, three times in a row; nothing was changed.
        """
        return forgetting.forget(self._handle, retention, commits, dry_run, allow_remove_all)

    def unforget(self, commits: Sequence[Revision] | None = None) -> tuple[ObjectId, ...]:
        """Bring forgotten snapshots back, by default all of them, and return the ids of their commits.

        Raises:
            SnapshotForgotten: gc has taken some of `commits`, or everything that was forgotten; nothing was changed.
        """
        return forgetting.unforget(self._handle, commits)

    def marks(self, commits: Iterable[Revision] | None = None) -> dict[ObjectId, MarkLine]:
        """Return of these commits, by default of all, those that were forgotten: when, by which policy, and whether
        gc has taken them.
        """
        return forgetting.marks(self._handle, commits)

    def gc(self, *, dry_run: bool = False, forget: bool = True) -> GcReport:
        """Take away what nothing leads to, and give its bytes back to the file system.

        Others may read and commit meanwhile.  Killed at any moment, the next one goes on.  Works on a full disk.

        Args:
            dry_run: change nothing, and say what would go.
            forget: first drop what the repository's own policy drops, if it has one.

        Raises:
            Locked: another gc is at work; says who and since when.
            Damaged: something that must be walked cannot be read, so that nothing below it is proven to be garbage.
        """
        return collecting.gc(self._handle, dry_run, forget)

    def repack(self, *, dry_run: bool = False) -> RepackReport:
        """Choose anew how all history is stored, with more effort than a commit has time for, and free what that saves.

        Each chunk of each snapshot is coded as a difference to the one before it, or whole, and stored so where that is
        smaller than what is there.  No byte of any snapshot changes.  Takes about as long as reading and committing
        everything; others may go on meanwhile.  Killed at any moment, what was done stays done.

        Args:
            dry_run: change nothing; find out what it would give, which takes as long.

        Raises:
            Locked: gc is at work; says who and since when.
            Damaged: a commit, or a page of names, cannot be read.
            StoreFull: what was done by then stays done; the new records need space before the old ones give any.
        """
        return collecting.repack(self._handle, dry_run)

    def rekey(self, *, reencrypt: bool = False, drop_other_keys: bool = False, dry_run: bool = False) -> RekeyReport:
        """Make new keys for the data; everything written from here on is sealed with them.

        Other processes go on: they take up the new keys by themselves, if the key that opened the repository for them
        still does.

        Args:
            reencrypt: also rewrite what older keys sealed, and throw those away.  Needs free space for one pack; what
                was rewritten when it is interrupted stays so, and the next call goes on.
            drop_other_keys: close the slots of all other keys, which cannot be given the new ones.
            dry_run: change nothing, and say what would be rewritten.

        Raises:
            NotEncrypted: there are no keys.
            InvalidInput: other keys open the repository too, and `drop_other_keys` is not given.
            Locked: gc is at work.
        """
        return rekey(self._handle, reencrypt, drop_other_keys, dry_run)

    @property
    def retention(self) -> Retention | None:
        """The policy that the repository keeps for `forget` and `gc`; None where it has none."""
        return forgetting.stored_retention(self._handle)

    def set_retention(self, retention: Retention | None) -> None:
        """Give the repository a policy of its own, for `forget` and `gc`; None takes it away."""
        self.set_setting("retention", None if retention is None else format_retention(retention))

    def verify(
        self,
        level: Level = "links",
        *,
        sample: str | None = None,
        seed: int | None = None,
        no_key: bool = False,
        repair_from: "str | os.PathLike[str] | Repository | None" = None,
        dry_run: bool = False,
    ) -> VerifyReport:
        """Prove what is stored; the report's `damaged` lists what is not as it was.

        Args:
            level: "quick" looks at log, index, small files and refs; "links" also at every commit and name, and
                whether each object has its place; "data" reads every byte.
            sample: of the chunks, at level "data": a share of them ("5%"), the first of seven parts ("1/7": seven
                nights read everything), or an amount ("10G").
            seed: what a share or an amount is drawn by; told in the report.
            no_key: only what a machine without the key can check: checksums of records, index, order of the log.
            repair_from: another copy of this repository; what is damaged here and reads well there is stored anew, and
                what stood in its place is set aside in `quarantine/`.  At level "links" or "data".
            dry_run: with `repair_from`: change nothing, say what would be taken.

        Raises:
            InvalidInput: there is no such level or sample, or options contradict each other.
            WrongRepository: `repair_from` is a copy of another repository.  ReadOnly: this was opened for reading.
            Damage is reported, never raised.
        """
        copy = repair_from._handle if isinstance(repair_from, Repository) else repair_from
        return prove(self._handle, level, sample, seed, no_key, copy, dry_run)

    def latest_good(self, branch: str | None = None) -> Commit:
        """Return the newest commit of a branch whose snapshot is whole, every byte of it read.

        Args:
            branch: by default the one of this handle.

        Raises:
            RevisionNotFound: there is no such branch.  SnapshotNotFound: none of its commits is whole.

        Cost: a read of the tip where that is whole; each ancestor costs what differs from its descendants.
        """
        return newest_good(self._handle, branch)

    def rebuild_index(self) -> RebuildReport:
        """Make the index anew from log and packs, and heal the log from the index.

        Raises:
            ReadOnly: the repository was opened for reading.  Damaged: neither log nor index can be read.
        """
        return rebuild_open(self._handle)

    def add_key(self, provider: KeyProvider, *, label: str = "") -> str:
        """Let another key open this repository, and return the id of its slot.

        Raises:
            NotEncrypted: the repository has no keys.  KeyRequired, WrongKey: the key at hand opens no slot.
        """
        return add_slot(self._db, self._handle.settings, provider, label)

    def rotate_key(self, provider: KeyProvider, *, label: str = "") -> str:
        """Let `provider` open this repository instead of the key that this handle uses; returns the id of its slot."""
        id = rotate_slot(self._db, self._handle.settings, provider, label)
        self._handle.settings = replace(self._handle.settings, key=provider)
        return id

    def remove_key(self, slot_id: str) -> None:
        """Close a key slot; who knew its key and copied the data before can still read that copy.

        Raises:
            NotEncrypted: the repository has no keys.  NotFound: no slot has that id.
        """
        remove_slot(self._db, slot_id)

    def key_slots(self) -> list[str]:
        """Return what opens this repository, for people to read."""
        return [slot.describe() for slot in keyring_of(self._db).slots]

    def list_keys(self) -> tuple[KeySlot, ...]:
        """Return the slots that open this repository, and which of them did."""
        return list_slots(self._db, self._handle.settings)

    def key_in_use(self) -> KeyProvider:
        """Return the key that opens this repository for this handle.

        Raises:
            NotEncrypted: it needs none.
        """
        return access.unlock(self.path, keyring_of(self._db), self._handle.settings.key)[1].provider

    def settings(self) -> dict[str, str]:
        """Return the repository's own settings, which travel with it."""
        return self._handle.own_settings()

    def set_setting(self, name: str, value: str | int | None) -> None:
        """Give the repository a setting of its own; None takes it away.

        Handles that are open keep the threads and the memory they have.

        Raises:
            ConfigError: there is no such setting, or the value makes no sense.
        """
        self._db.publish(None, [SetConfig(name, as_stored(name, value))])

    # -- inside

    @property
    def _db(self) -> LocalDatabase:
        return self._handle.db
