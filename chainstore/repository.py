"""The face: one repository, as its users see it.

repo = open("runs/gpt", create=True)
commit = repo.commit(state, "message", step=1200, metrics={"loss": 1.84})      # durable when it returns
state = repo.checkout("main~2")                                                # bit for bit
for commit in repo.log(): ...
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from chainstore import access, config
from chainstore.crypto.bundle import new_bundle
from chainstore.crypto.keyring import Keyring
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import (
    AlreadyExists,
    ConfigError,
    ForkedHandle,
    InvalidInput,
    NotEncrypted,
    NotFound,
    NothingToCommit,
    ReadOnly,
    RefConflict,
    RepositoryNotFound,
    RevisionNotFound,
    SnapshotNotFound,
    WrongRepository,
)
from chainstore.ids import ObjectId
from chainstore.lazy import Globs, Reading, Snapshot
from chainstore.leases import publish_lock
from chainstore.model.change import Change, ReflogLine, SetRef, Target
from chainstore.model.commit import Commit, Note, Stats, encode_commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path as PathKeys
from chainstore.model.paths import parse_path
from chainstore.model.tree import Entry
from chainstore.observe import Notice, Observer, silent
from chainstore.odb.batch import LocalBatch
from chainstore.odb.layout import Format, Layout
from chainstore.odb.local import GoneMeanwhile, LocalDatabase, Surroundings, create_local, open_local
from chainstore.odb.rebuild import RebuildReport, rebuild_index
from chainstore.odb.record import SUITE_NONE, SUITE_V1, Sealer
from chainstore.ops.commit import file_leaves, write, write_commit, write_trees
from chainstore.ops.history import Names, ancestors, head_of, in_range, merge_base, read_commit, resolve
from chainstore.ops.verify import Level, VerifyReport, verify
from chainstore.refs import DEFAULT_BRANCH, HEAD, HEADS, TAGS, branch_ref, nearest_names, short_name, tag_ref
from chainstore.state import flatten, nodes
from chainstore.storage import fs

Revision = str | ObjectId | Commit
CODECS = ("auto", "none", "fast", "small")
CHAIN_DIR = ".chain"
_WRITE_TRIES = 3


@dataclass(frozen=True, slots=True)
class RepositoryStats:
    """How much a repository holds.

    Attributes:
        commits, objects, packs: how many.
        logical_bytes: all snapshots as they were in memory.
        stored_bytes: what the directory takes on disk: packs, log, index and all.
    """

    commits: int
    objects: int
    packs: int
    logical_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How a repository was opened; what a forked child or a pickled handle opens it with again."""

    root: Path
    key: KeyProvider | None = None
    readonly: bool = False
    threads: int = 2
    max_memory_bytes: int = 256 << 20
    index_dir: Path | None = None
    codec: str | None = None
    observer: Observer = silent


class _Core:
    """What all handles of one repository in one process share: the database, and the last manifests."""

    shared: ClassVar[dict[tuple[str, bool], "_Core"]] = {}
    lock = threading.RLock()

    def __init__(self, settings: Settings, db: LocalDatabase, key_origin: str) -> None:
        self.settings, self.db, self.key_origin = settings, db, key_origin
        self.pid = os.getpid()
        self.users = 0
        self.committing = threading.RLock()
        self.tips: dict[ObjectId, Manifest] = {}

    def remember(self, commit: ObjectId, manifest: Manifest) -> None:
        """Keep the manifest of a tip: the next commit on it need not look its chunks up."""
        self.tips.pop(commit, None)
        self.tips[commit] = manifest
        while len(self.tips) > 2:
            self.tips.pop(next(iter(self.tips)))

    @classmethod
    def after_fork(cls) -> None:
        """In a forked child: take a new lock, since the old one may be held by a thread that is not there."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Core.after_fork)


class Repository:
    """One repository; see `open` and `init`.  Threads may share it; a forked child opens it anew by itself.

    Attributes:
        path: its directory.
    """

    def __init__(self, settings: Settings, core: _Core) -> None:
        self._settings, self._core = settings, core
        self._closed = False
        self._branch: str | None = None
        self._pid = os.getpid()
        self._bind()

    @property
    def path(self) -> Path:
        return self._settings.root

    @property
    def key_origin(self) -> str:
        """Where the key that opened it was found, for people to read; "" where it is not encrypted."""
        return self._core.key_origin

    @property
    def encrypted(self) -> bool:
        return self._db.sealer.encrypted

    @property
    def id(self) -> str:
        """The repository's own id, 32 hex digits; clones share it."""
        return self._db.sealer.repo_id.hex()

    def __repr__(self) -> str:
        branch = short_name(self._branch) if self._branch else "detached"
        return f"<Repository {str(self.path)!r} on {branch}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, tuple[Settings]]:
        return _open_settings, (replace(self._settings, observer=silent),)

    def close(self) -> None:
        """Give this handle up; the last one of a process closes the store.  Again is fine."""
        if not self._closed:
            self._closed = True
            _release(self._core)

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
            NothingToCommit: `allow_empty` is False and nothing changed.
        """
        leaves = flatten(state)
        note = _note(message, step, epoch, metrics, meta)
        extra = file_leaves({name: Path(path) for name, path in (files or {}).items()})
        codec = self._codec(codec)
        plan = _Plan(branch, note, self._new_tags(tags), parents, expected_head, allow_empty)
        started = time.perf_counter()
        with self._turn():
            for attempt in range(_WRITE_TRIES):
                batch = self._db.batch(codec)
                try:
                    target = self._target(plan)
                    batch.trust(self._trusted(target))
                    pipeline = {
                        "threads": self._settings.threads,
                        "max_memory_bytes": self._settings.max_memory_bytes,
                        "observer": self._settings.observer,
                    }
                    manifest, stats = write(batch, leaves, **pipeline)  # type: ignore[arg-type]
                    beside, more = write(batch, extra, **pipeline) if extra else (Manifest(), Stats())  # type: ignore[arg-type]
                    return self._finish(batch, plan, target, manifest, beside, stats + more, started)
                except GoneMeanwhile:
                    if attempt == _WRITE_TRIES - 1:
                        raise
                finally:
                    self._db.retire_batch(batch)
        raise AssertionError("unreachable")

    @contextmanager
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
    ) -> Iterator["Writer"]:
        """Build a commit piece by piece: each is stored when it is assigned, all become visible on a clean exit.

        An exception inside the block aborts: nothing is visible, what was written is garbage.

            with repo.writer(step=7) as w:
                w["model"] = model.state_dict()
                w.add("optimizer/exp_avg", tensor)
                w.add_file("tokenizer.json", path)
        """
        plan = _Plan(branch, _note(message, step, epoch, metrics, meta), self._new_tags(tags), None, None, True)
        started = time.perf_counter()
        with self._turn():
            target = self._target(plan)
            batch = self._db.batch(self._codec(codec))
            writer = Writer(batch, self._settings)
            try:
                batch.trust(self._trusted(target))
                try:
                    yield writer
                finally:
                    writer._closed = True
                manifest, files = writer._manifests()
                self._finish(batch, plan, target, manifest, files, writer._stats, started)
            finally:
                self._db.retire_batch(batch)

    # -- looking

    @property
    def head(self) -> Commit | None:
        """The tip of this handle's branch, or None where nothing was committed yet."""
        id = head_of(self._db, self._names())
        return read_commit(self._db, id) if id is not None else None

    @property
    def branch_name(self) -> str | None:
        """The branch this handle commits to; None where HEAD is detached."""
        return short_name(self._branch) if self._branch else None

    def resolve(self, revision: Revision) -> ObjectId:
        """Return the id of the commit that a revision names.

        Raises:
            RevisionNotFound: there is none; says what comes closest.
        """
        if isinstance(revision, Commit | ObjectId):
            id = revision.id if isinstance(revision, Commit) else revision
            if self._db.length(id) < 0:
                raise RevisionNotFound(id.hex(), why="it is not in this repository")
            return id
        if not isinstance(revision, str):
            raise InvalidInput(f"a revision is text, an id or a commit, not {type(revision).__name__}")
        return resolve(self._db, revision, self._names())

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
        """
        if all_refs:
            starts = list(dict.fromkeys(row.target for row in self._db.refs() if isinstance(row.target, ObjectId)))
        elif rev is None:
            head = head_of(self._db, self._names())
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
        """Return the commit that a revision names."""
        return read_commit(self._db, self.resolve(rev))

    def snapshot(self, rev: Revision = HEAD) -> Snapshot:
        """Return the snapshot of a commit; it reads nothing before it is asked."""
        reading = Reading(
            lambda: self._db, self._settings.threads, self._settings.max_memory_bytes, self._settings.observer
        )
        commit = self.get_commit(rev)
        return Snapshot(commit, reading, manifest=self._core.tips.get(commit.id))

    def __getitem__(self, rev: Revision) -> Snapshot:
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

        Raises:
            RevisionNotFound, SnapshotNotFound: there is no such commit, or none at all yet.
            IdMismatch: something in it is damaged; names tensor, commit and the nearest good ancestor.
        """
        if rev == HEAD and self.head is None:
            raise SnapshotNotFound(f"nothing was committed to {self.path} yet", hint="repo.commit(state) does")
        return self.snapshot(rev).load(select, exclude, map_location=map_location)

    def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the newest commit that both descend from, or None."""
        return merge_base(self._db, self.resolve(a), self.resolve(b))

    def stats(self) -> RepositoryStats:
        """Return how much the repository holds, and how much it would be without it."""
        commits = list(self.log(all_refs=True))
        with self._db.view() as view:
            objects = view.object_count()
            packs = sum(1 for _ in view.packs())
        stored = sum(file.stat().st_blocks * 512 for file in self.path.rglob("*") if file.is_file())
        return RepositoryStats(len(commits), objects, packs, sum(c.stats.raw_bytes for c in commits), stored)

    # -- refs

    def branches(self) -> dict[str, ObjectId]:
        """Return the branches and their tips."""
        return self._refs_below(HEADS)

    def tags(self) -> dict[str, ObjectId]:
        """Return the tags and the commits they name."""
        return self._refs_below(TAGS)

    def branch(self, name: str, start: Revision = HEAD) -> ObjectId:
        """Make a branch at a revision and return its tip.

        Raises:
            InvalidRefName, AlreadyExists.
        """
        return self._make_ref(branch_ref(name), start, f"branch: from {start}")

    def tag(self, name: str, rev: Revision = HEAD) -> ObjectId:
        """Give a commit a name that never moves, and return its id.

        Raises:
            InvalidRefName, AlreadyExists.
        """
        return self._make_ref(tag_ref(name), rev, f"tag: {rev}")

    def delete_ref(self, name: str, *, kind: Literal["branch", "tag"] | None = None) -> ObjectId:
        """Delete a branch or tag and return where it was; its reflog is kept.

        Args:
            kind: which of the two; by default a branch, and a tag where there is no branch of that name.

        Raises:
            RevisionNotFound: there is none.  InvalidInput: HEAD is on it.
        """
        places = {"branch": [HEADS + name], "tag": [TAGS + name]}.get(kind or "", [HEADS + name, TAGS + name])
        for full in places:
            target = self._ref_target(full)
            if isinstance(target, ObjectId):
                if full in (self._ref_target(HEAD), self._branch):
                    raise InvalidInput(f"{name!r} is the current branch", hint="switch to another branch first")
                self._db.publish(None, [SetRef(full, target, None, "delete")])
                return target
        known = [*(self.branches() if kind != "tag" else ()), *(self.tags() if kind != "branch" else ())]
        raise RevisionNotFound(name, nearest_names(name, known), f"no {kind or 'branch or tag'} of that name")

    def switch(self, branch: str, *, create: bool = False) -> None:
        """Make `branch` the one that HEAD and this handle are on; other running writers stay where they are.

        Raises:
            RevisionNotFound: there is no such branch, and `create` is False.
        """
        full = branch_ref(branch)
        if create and self._ref_target(full) is None and self.head is not None:
            self.branch(branch)
        elif self._ref_target(full) is None and not create:
            raise RevisionNotFound(branch, nearest_names(branch, list(self.branches())), "no branch of that name")
        self._move(HEAD, full, f"switch: to {branch}")
        self._branch = full

    def detach(self, rev: Revision) -> ObjectId:
        """Put HEAD on a commit itself, and return it; the next commit from here opens a new branch."""
        id = self.resolve(rev)
        read_commit(self._db, id)
        self._move(HEAD, id, f"checkout: {rev}")
        self._branch = None
        return id

    def reset(self, branch: str, rev: Revision, *, expected_head: Revision | None = None) -> ObjectId:
        """Move a branch to a revision and return where it was; the reflog keeps that.

        Raises:
            RefConflict: `expected_head` is given and the branch is elsewhere.
        """
        full = branch_ref(branch)
        old = self._ref_target(full)
        if not isinstance(old, ObjectId):
            raise RevisionNotFound(branch, nearest_names(branch, list(self.branches())), "no branch of that name")
        if expected_head is not None and self.resolve(expected_head) != old:
            raise RefConflict(full, str(self.resolve(expected_head)), str(old))
        target = self.resolve(rev)
        read_commit(self._db, target)
        self._db.publish(None, [SetRef(full, old, target, f"reset: to {rev}")])
        return old

    def reflog(self, ref: str = HEAD) -> list[ReflogLine]:
        """Return the moves of a ref, newest first; HEAD means the current branch's."""
        with self._db.view() as view:
            if ref == HEAD and self._branch is not None:
                return view.reflog(self._branch)
            for full in (HEADS + ref, TAGS + ref, ref):
                lines = view.reflog(full)
                if lines:
                    return lines
        raise RevisionNotFound(ref, nearest_names(ref, [short_name(row.name) for row in self._db.refs()]))

    # -- upkeep

    def verify(self, level: Level = "links") -> VerifyReport:
        """Prove what is stored: "quick", "links" or "data" (every byte); the report's `damaged` lists what is not."""
        return verify(self._db, level, threads=self._settings.threads, observer=self._settings.observer)

    def rebuild_index(self) -> RebuildReport:
        """Make the index anew from log and packs, and heal the log from the index; see `rebuild_index`."""
        if self._settings.readonly:
            raise ReadOnly(f"{self.path} was opened for reading", hint="open it without readonly=True")
        with self._turn():
            report = rebuild_at(self._settings)
            self._db.settle()
        return report

    def add_key(self, provider: KeyProvider, *, label: str = "") -> None:
        """Let another key open this repository."""

        def with_slot(keyring: Keyring) -> Keyring:
            bundle, _ = access.unlock(self.path, keyring, self._settings.key)
            return keyring.with_slot(provider, bundle, label=label, random=os.urandom)

        self._keyring()
        self._db.change_keyring(with_slot)

    def remove_key(self, slot_id: str) -> None:
        """Close a key slot; who knew its key and copied the data before can still read that copy."""
        self._keyring()
        self._db.change_keyring(lambda keyring: keyring.without_slot(slot_id))

    def key_slots(self) -> list[str]:
        """Return what opens this repository, for people to read."""
        return [slot.describe() for slot in self._keyring().slots]

    # -- inside

    @property
    def _db(self) -> LocalDatabase:
        if self._closed:
            raise InvalidInput(f"this handle of {self.path} was closed", hint="open it again with cs.open")
        if os.getpid() != self._pid:
            # the parent's locks and files are of no use here; open anew, once
            self._core = _share(self._settings)
            self._pid = os.getpid()
        return self._core.db

    def _turn(self) -> threading.RLock:
        """Return the lock that one committing thread of this process holds; a forked child has its own."""
        _ = self._db
        return self._core.committing

    def _codec(self, asked: str | None) -> str:
        """Return the codec to use: the one asked for, else the one the repository was made with."""
        if asked is not None:
            return _checked_codec(asked)
        with self._db.view() as view:
            return view.config().get("codec", "auto")

    def _bind(self) -> None:
        target = self._ref_target(HEAD)
        self._branch = target if isinstance(target, str) else None

    def _names(self) -> Names:
        return Names(self._branch, _now_us)

    def _ref_target(self, full: str) -> Target:
        with self._db.view() as view:
            row = view.ref(full)
        return row.target if row is not None else None

    def _refs_below(self, prefix: str) -> dict[str, ObjectId]:
        return {
            short_name(row.name): row.target
            for row in self._db.refs()
            if row.name.startswith(prefix) and isinstance(row.target, ObjectId)
        }

    def _make_ref(self, full: str, rev: Revision, why: str) -> ObjectId:
        target = self.resolve(rev)
        read_commit(self._db, target)
        old = self._ref_target(full)
        if old is not None:
            raise AlreadyExists(f"{short_name(full)!r} exists already, at {old}"[:120], hint="choose another name")
        self._db.publish(None, [SetRef(full, None, target, why)])
        return target

    def _move(self, full: str, target: Target, why: str) -> None:
        old = self._ref_target(full)
        if old != target:
            self._db.publish(None, [SetRef(full, old, target, why)])

    def _target(self, plan: "_Plan") -> "_Target":
        full = branch_ref(plan.branch) if plan.branch is not None else self._branch
        moves: list[Change] = []
        tip: Target
        if full is None:
            tip = self._ref_target(HEAD)
            full = self._fresh_branch(tip)
            moves = [SetRef(HEAD, tip, full, "commit: from a detached HEAD")]
            self._settings.observer(Notice("new-branch", f"HEAD was detached; this run goes on as {short_name(full)}"))
            parent, old = tip, None
        else:
            old = parent = self._ref_target(full)
            if parent is None and full != self._branch:
                parent = head_of(self._db, self._names())
        if plan.expected_head is not None and self.resolve(plan.expected_head) != old:
            raise RefConflict(full, str(self.resolve(plan.expected_head)), str(old) if old else None)
        if isinstance(plan.parents, str):
            raise InvalidInput(f"parents are a list of revisions, not the text {plan.parents!r}")
        above = tuple(self.resolve(rev) for rev in plan.parents) if plan.parents is not None else None
        if above is None:
            above = (parent,) if isinstance(parent, ObjectId) else ()
        return _Target(full, old, above, above[0] if above else None, moves)

    def _fresh_branch(self, at: Target) -> str:
        taken = self.branches()
        stem = f"from-{at.short}" if isinstance(at, ObjectId) else "from-nothing"
        names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
        return HEADS + next(name for name in names if name not in taken)

    def _new_tags(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Return tags for a commit, each once, none of which exists."""
        if isinstance(tags, str):
            raise InvalidInput(f"tags are a list of names, not the text {tags!r}", hint=f"say tags=[{tags!r}]")
        for name in tags:
            if self._ref_target(tag_ref(name)) is not None:
                raise AlreadyExists(f"tag {name!r} exists already", hint="choose another name")
        return tuple(dict.fromkeys(tags))

    def _trusted(self, target: "_Target") -> frozenset[ObjectId]:
        """Return the chunks of the parent, if publishing will prove that it is still the branch's tip."""
        manifest = self._core.tips.get(target.parent) if target.parent is not None else None
        if manifest is None or target.parent != target.old:
            return frozenset()
        return self._db.unsuspected(manifest.chunks())

    def _finish(
        self,
        batch: LocalBatch,
        plan: "_Plan",
        target: "_Target",
        manifest: Manifest,
        files: Manifest,
        stats: Stats,
        started: float,
    ) -> Commit:
        root, taken = write_trees(batch, manifest, files)
        if not plan.allow_empty and target.parent is not None and read_commit(self._db, target.parent).tree == root:
            raise NothingToCommit("the state equals the tip's", hint="allow_empty=True commits it anyway")
        stats = replace(stats, stored_bytes=stats.stored_bytes + taken)
        note = replace(plan.note, author=config.user_name())
        id = write_commit(batch, root, target.parents, note, _now_us(), stats)
        why = f"commit: {note.message}" if note.message else "commit"
        changes: list[Change] = [SetRef(target.ref, target.old, id, why), *target.moves]
        changes += [SetRef(tag_ref(name), None, id, "tag: with its commit") for name in plan.tags]
        self._db.publish(batch, changes, parents=target.parents)
        if target.moves:
            self._branch = target.ref
        self._core.remember(id, manifest)
        commit = read_commit(self._db, id)
        return replace(commit, stats=replace(commit.stats, seconds=time.perf_counter() - started))

    def _keyring(self) -> Keyring:
        if not self.encrypted:
            raise NotEncrypted(f"{self.path} is not encrypted; it has no keys")
        return self._db.layout.read_keyring()


class Writer:
    """A commit that is built piece by piece; see `Repository.writer`."""

    def __init__(self, batch: LocalBatch, settings: Settings) -> None:
        self._batch, self._settings = batch, settings
        self._entries: list[Entry] = []
        self._files: list[Entry] = []
        self._stats = Stats()
        self._closed = False

    def __setitem__(self, key: str, value: object) -> None:
        """Store `value` under a top-level key, now."""
        self._put((key,), value)

    def add(self, path: str, value: object) -> None:
        """Store `value` at a path such as "optimizer/exp_avg", now; dicts above it are made."""
        self._put(parse_path(path), value)

    def add_file(self, name: str, path: str | os.PathLike[str]) -> None:
        """Store a file beside the state, now."""
        leaves = file_leaves({name: Path(path)})
        if any(leaf.path[: len(e.path)] == e.path[: len(leaf.path)] for leaf in leaves for e in self._files):
            raise InvalidInput(f"{name!r} is in this commit already, as a file or a folder")
        self._files += self._write(leaves).entries

    def _put(self, path: PathKeys, value: object) -> None:
        if not path:
            raise InvalidInput("a value needs a path of at least one key")
        if any(e.path[: len(path)] == path or path[: len(e.path)] == e.path for e in self._entries):
            raise InvalidInput(f"{'/'.join(map(str, path))!r} was written already; a commit holds each path once")
        nested = value
        for key in reversed(path):
            nested = {key: nested}
        leaves = [leaf for leaf in flatten(nested) if leaf.path[: len(path)] == path]
        if not leaves:  # no arrays above: the dicts around it became one plain value
            leaves = [replace(leaf, path=path) for leaf in flatten({path[-1]: value})[1:]]
        self._entries += self._write(leaves).entries

    def _write(self, leaves: Sequence[object]) -> Manifest:
        if self._closed:
            raise InvalidInput("this writer has finished")
        manifest, stats = write(
            self._batch,
            leaves,  # type: ignore[arg-type]
            threads=self._settings.threads,
            max_memory_bytes=self._settings.max_memory_bytes,
            observer=self._settings.observer,
        )
        self._stats = self._stats + stats
        return manifest

    def _manifests(self) -> tuple[Manifest, Manifest]:
        """Return what was written, in one walk order, the dicts above it included."""
        made = {entry.path for entry in self._entries}
        above = dict.fromkeys(
            entry.path[:depth]
            for entry in self._entries
            for depth in range(len(entry.path))
            if entry.path[:depth] not in made
        )
        above.setdefault((), None)
        dicts = [Entry(path, [nodes.DICT], None, ()) for path in above]
        order: dict[object, int] = {}
        for entry in self._entries:
            for depth in range(len(entry.path) + 1):
                order.setdefault(entry.path[:depth], len(order))
        order.setdefault((), -1)

        def rank(entry: Entry) -> tuple[int, ...]:
            return tuple(order[entry.path[:depth]] for depth in range(len(entry.path) + 1))

        return Manifest(sorted([*dicts, *self._entries], key=rank)), Manifest(self._files)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a commit was asked to be."""

    branch: str | None
    note: Note
    tags: tuple[str, ...]
    parents: Sequence[Revision] | None
    expected_head: Revision | None
    allow_empty: bool


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a commit goes: a ref, what that must still be, the parents, and HEAD's move if any."""

    ref: str
    old: Target
    parents: tuple[ObjectId, ...]
    parent: ObjectId | None
    moves: list[Change] = field(default_factory=list)


# ---- opening -------------------------------------------------------------------------------------------------


def init(
    path: str | os.PathLike[str],
    *,
    key: KeyProvider | None = None,
    encrypt: bool = True,
    codec: str = "auto",
    threads: int | None = None,
    max_memory: int | str = "256MiB",
    index_dir: str | os.PathLike[str] | None = None,
    exist_ok: bool = False,
    observer: Observer = silent,
) -> Repository:
    """Make a repository in the directory `path` and open it.

    Args:
        key: `Passphrase`, `KeyFile` or `KeyCommand`; by default the user's key, made on first use.
        encrypt: False stores everything readable.
        codec: "auto", "none", "fast" or "small".
        threads: workers of the pipeline; by default one a core, at most 8.
        max_memory: budget of the pipeline, bytes or text such as "256MiB".
        index_dir: a local directory for the index, where `path` is on a network disk.
        exist_ok: open what is there instead of refusing.
        observer: called with progress and notices.

    Raises:
        AlreadyExists: there is one.  InvalidInput: a key was given, and `encrypt` is False.
    """
    settings = _settings(path, key, False, threads, max_memory, index_dir, _checked_codec(codec), observer)
    given = access.given(key)
    if given is not None and not encrypt:
        raise InvalidInput(f"{given} was given for a repository that is not to be encrypted", hint="leave one out")
    layout = Layout(settings.root, settings.index_dir)
    if not layout.exists():
        layout.create()
        with publish_lock(layout.leases, _surroundings().who):  # of processes racing for it, one makes it
            if not layout.exists():
                _create(layout, settings, encrypt)
                exist_ok = True
    if not exist_ok:
        raise AlreadyExists(f"there is a repository at {settings.root}", hint="open it, or choose another directory")
    return _open_settings(settings)


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    readonly: bool = False,
    key: KeyProvider | None = None,
    threads: int | None = None,
    max_memory: int | str = "256MiB",
    index_dir: str | os.PathLike[str] | None = None,
    observer: Observer = silent,
) -> Repository:
    """Open the repository at `path` (or at `path/.chain`).

    Opening a path twice in one process shares what is behind it.

    Args:
        create: make it if it is not there.
        readonly: change nothing, not even what a crash left behind.
        key, threads, max_memory, index_dir, observer: as for `init`.

    Raises:
        RepositoryNotFound: there is none.
        KeyRequired, WrongKey: it is encrypted and the key is missing or another.
        Damaged: log or index are not what they were; says what heals them.
    """
    if create and readonly:
        raise InvalidInput("create and readonly contradict each other")
    settings = _settings(path, key, readonly, threads, max_memory, index_dir, None, observer)
    if not Layout(settings.root).exists() and Layout(settings.root / CHAIN_DIR).exists():
        settings = replace(settings, root=settings.root / CHAIN_DIR)
    if create and not Layout(settings.root).exists():
        return init(
            path,
            key=key,
            threads=threads,
            max_memory=max_memory,
            index_dir=index_dir,
            exist_ok=True,
            observer=observer,
        )
    return _open_settings(settings)


def locate(path: str | os.PathLike[str]) -> Path | None:
    """Return the directory of the repository at `path` or at `path/.chain`, or None where there is none."""
    root = Path(path)
    return next((place for place in (root, root / CHAIN_DIR) if Layout(place).exists()), None)


def key_kinds(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return what kinds of keys ("file", "passphrase", "command") open the repository at `path`; none if it needs none.

    Raises:
        RepositoryNotFound; Damaged: its format or key slots cannot be read.
    """
    layout = Layout(Path(path))
    slots = layout.read_keyring().slots if layout.read_format().encrypted else ()
    return frozenset(slot.kind for slot in slots)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a repository would stand on at some path.

    Attributes:
        file_system: its type, such as "ext4"; "" where the system does not tell.
        network: whether it is on another machine, where the index cannot live.
        free_bytes: for this user.
    """

    file_system: str
    network: bool
    free_bytes: int


def survey(path: str | os.PathLike[str]) -> Ground:
    """Return what lies under an existing path.

    Raises:
        StorageError: nothing can be learned of it.
    """
    place = Path(path).absolute()
    return Ground(fs.file_system_type(place), fs.is_network_file_system(place), fs.free_bytes(place))


def rebuild_at(settings: Settings) -> RebuildReport:
    """Rebuild the index of a repository that may be too damaged to be opened."""
    layout = Layout(settings.root, settings.index_dir)
    format, sealer, number, _ = _unseal(layout, settings)
    format.check_extensions(writing=True)
    layout.create()
    return rebuild_index(layout, format, sealer, number, _surroundings(), settings.observer)


def rebuild(
    path: str | os.PathLike[str],
    *,
    key: KeyProvider | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    observer: Observer = silent,
) -> RebuildReport:
    """Make the index of the repository at `path` anew from its log and packs, and heal its log from the index.

    Raises:
        RepositoryNotFound; KeyRequired, WrongKey; Damaged: neither log nor index can be read.
    """
    settings = _settings(path, key, False, None, "256MiB", index_dir, None, observer)
    if not Layout(settings.root).exists() and Layout(settings.root / CHAIN_DIR).exists():
        settings = replace(settings, root=settings.root / CHAIN_DIR)
    return rebuild_at(settings)


def _settings(
    path: str | os.PathLike[str],
    key: KeyProvider | None,
    readonly: bool,
    threads: int | None,
    max_memory: int | str,
    index_dir: str | os.PathLike[str] | None,
    codec: str | None,
    observer: Observer,
) -> Settings:
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ConfigError(f"threads must be a number from 1 on, not {threads!r}")
    return Settings(
        Path(path).expanduser().absolute(),
        key,
        readonly,
        threads or min(os.cpu_count() or 1, 8),
        config.parse_size(max_memory),
        Path(index_dir).expanduser().absolute() if index_dir is not None else None,
        codec,
        observer,
    )


def _checked_codec(codec: str) -> str:
    if codec not in CODECS:
        raise ConfigError(f"no codec {codec!r}: choose {', '.join(CODECS)}")
    return codec


def _create(layout: Layout, settings: Settings, encrypt: bool) -> None:
    """Make a repository in folders that exist; the caller holds the publish lock."""
    format = Format(os.urandom(16), SUITE_V1 if encrypt else SUITE_NONE)
    number = 0
    bundle = None
    if encrypt:
        chosen = access.key_for_new(layout.root, settings.key, settings.observer)
        bundle = new_bundle(os.urandom)
        keyring = Keyring(0, format.repo_id).with_slot(chosen.provider, bundle, random=os.urandom)
        layout.write_keyring(keyring)
        number = keyring.number
    sealer = Sealer(format.repo_id, bundle, os.urandom)
    create_local(
        layout,
        format,
        sealer,
        number,
        _surroundings(),
        head=HEADS + DEFAULT_BRANCH,
        config={"codec": settings.codec or "auto"},
    ).close()
    layout.write_format(format)  # last: before it, there is no repository


def _open_settings(settings: Settings) -> Repository:
    core = _share(settings)
    try:
        return Repository(settings, core)
    except BaseException:
        _release(core)
        raise


def _share(settings: Settings) -> _Core:
    """Return what is behind a path in this process, opened if it is not yet."""
    with _Core.lock:
        name = (str(settings.root.resolve()), settings.readonly)
        core = _Core.shared.get(name)
        layout = Layout(settings.root, settings.index_dir)
        if core is not None and core.pid == os.getpid() and core.db.sealer.repo_id == layout.read_format().repo_id:
            _check_same_key(core, settings)
        else:  # ours to open; or another repository was put at this path, and the old handles keep theirs
            format, sealer, number, origin = _unseal(layout, settings)
            format.check_extensions(writing=not settings.readonly)
            db = open_local(layout, format, sealer, number, _surroundings(), readonly=settings.readonly)
            core = _Core.shared[name] = _Core(settings, db, origin)
        core.users += 1
        return core


def _check_same_key(core: _Core, settings: Settings) -> None:
    """A key that is given must open the repository even where another handle has it open already."""
    if settings.key is not None and settings.key is not core.settings.key:
        if not core.db.sealer.encrypted:
            raise _not_encrypted(settings.root, settings.key.id)
        access.unlock(settings.root, core.db.layout.read_keyring(), settings.key)


def _release(core: _Core) -> None:
    with _Core.lock:
        core.users -= 1
        if core.users <= 0 and core.pid == os.getpid():
            core.db.close()
            for name in [name for name, other in _Core.shared.items() if other is core]:
                del _Core.shared[name]


def _unseal(layout: Layout, settings: Settings) -> tuple[Format, Sealer, int, str]:
    """Return format, sealer, keyring number, and where the key was found."""
    format = layout.read_format()
    if not format.encrypted:
        given = access.given(settings.key)
        if given is not None:
            raise _not_encrypted(settings.root, given)
        return format, Sealer(format.repo_id, None, os.urandom), 0, ""
    keyring = layout.read_keyring()
    if keyring.repo_id != format.repo_id:
        raise WrongRepository(
            f"the key slots in {layout.root} belong to repository {keyring.repo_id.hex()}, not {format.repo_id.hex()}"
        )
    bundle, chosen = access.unlock(layout.root, keyring, settings.key)
    return format, Sealer(format.repo_id, bundle, os.urandom), keyring.number, chosen.origin


def _not_encrypted(root: Path, given: str) -> NotEncrypted:
    return NotEncrypted(
        f"{given} was given, but {root} is not encrypted",
        hint="if it should be, somebody replaced it; if not, open it without a key",
    )


def _surroundings() -> Surroundings:
    return Surroundings(_now_us, os.urandom, config.host_name(), f"process {os.getpid()}")


def _now_us() -> int:
    return int(config.now().timestamp() * 1e6)


def _note(
    message: str,
    step: int | None,
    epoch: int | None,
    metrics: Mapping[str, object] | None,
    meta: Mapping[str, object] | None,
) -> Note:
    note = Note(message, "", step, epoch, {k: _number(k, v) for k, v in (metrics or {}).items()}, dict(meta or {}))
    encode_commit(ObjectId(bytes(32)), (), note, 0, Stats())  # what cannot be said is refused before anything is stored
    return note


def _number(name: str, value: object) -> float:
    """Return a metric as a float: numbers, 0-dim tensors, NumPy scalars."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(value.detach() if hasattr(value, "detach") else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidInput(f"metric {name!r} must be one number, not {type(value).__name__} ({error})") from error


__all__ = [
    "ForkedHandle",
    "NotFound",
    "RebuildReport",
    "Repository",
    "RepositoryNotFound",
    "VerifyReport",
    "Writer",
    "init",
    "open",
    "rebuild",
]
