"""Recording: from what a commit is asked to be to a published commit.

Request      what the caller said, checked before anything is stored
Landing      where it goes: a ref, where that ref must still be, the parents
record       write the state, and land; again where gc took what the commit relied on
finish       tree pages, the commit, one publication
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

from chainstore import config
from chainstore.errors import AlreadyExists, Damaged, InvalidInput, NothingToCommit, RefConflict
from chainstore.ids import ObjectId
from chainstore.model.change import Change, SetRef, Target
from chainstore.model.commit import Commit, Note, Stats, encode_commit
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Root, read_tree
from chainstore.observe import Notice
from chainstore.odb.batch import LocalBatch
from chainstore.odb.conflicts import GoneMeanwhile
from chainstore.ops.commit import write, write_commit, write_trees
from chainstore.ops.deltas import Lines
from chainstore.ops.form import Form
from chainstore.ops.history import first_parents, head_of, read_commit
from chainstore.refs import HEAD, HEADS, branch_ref, short_name, tag_ref
from chainstore.repository.handles import Handle, Revision
from chainstore.repository.refs import refs_below
from chainstore.repository.settings import Settings, now_us
from chainstore.state.leaf import Leaf

_WRITE_TRIES = 3
_DELTA_CODECS = frozenset({"small", "auto"})  # the latter where that pays


@dataclass(frozen=True, slots=True)
class Request:
    """What a commit was asked to be."""

    branch: str | None
    note: Note
    tags: tuple[str, ...]
    parents: Sequence[Revision] | None = None
    expected_head: Revision | None = None
    allow_empty: bool = True


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a commit goes: a ref, what that must still be, the parents, and HEAD's move if any."""

    ref: str
    old: Target
    parents: tuple[ObjectId, ...]
    moves: list[Change] = field(default_factory=list)

    @property
    def parent(self) -> ObjectId | None:
        """The parent that counts as the chain."""
        return self.parents[0] if self.parents else None


@dataclass(frozen=True, slots=True)
class Written:
    """A state in a batch, its names still in memory; files beside it likewise; the form of the state, if it is kept."""

    state: Manifest
    files: Manifest
    stats: Stats
    form: Form | None = None


def record(
    handle: Handle, request: Request, leaves: Sequence[Leaf], beside: Sequence[Leaf], codec: str, started: float
) -> Commit:
    """Store a state and the files beside it, and publish the commit; see `Repository.commit`."""
    with handle.turn():
        form = handle.core.walks.form(leaves)
        for attempt in range(_WRITE_TRIES):
            batch = handle.db.batch(codec)
            try:
                landing = find_landing(handle, request)
                batch.trust(trusted_chunks(handle, landing))
                lines = deltas_of(handle, landing, codec, leaves)
                state, stats = write_leaves(batch, leaves, handle.settings, lines, form)
                files, more = write_leaves(batch, beside, handle.settings) if beside else (Manifest(), Stats())
                return finish(handle, batch, request, landing, Written(state, files, stats + more, form), started)
            except GoneMeanwhile:
                if attempt == _WRITE_TRIES - 1:
                    raise
            finally:
                handle.db.retire_batch(batch)
    raise AssertionError("unreachable")


def find_landing(handle: Handle, request: Request) -> Landing:
    """Return where a commit goes.

    Raises:
        RefConflict: the branch is not at `expected_head`.  BranchDeleted: somebody deleted the handle's branch.
    """
    moves: list[Change] = []
    full = branch_ref(request.branch) if request.branch is not None else handle.branch
    if full is None:
        seen = tip = handle.ref_target(HEAD)
        full, old = _fresh_branch(handle, tip), None
        moves.append(SetRef(HEAD, tip, full, "commit: from a detached HEAD"))
    else:
        seen = old = tip = handle.ref_target(full)
        if old is None and full != handle.branch:
            tip = head_of(handle.db, handle.names())
        elif old is None and request.parents is None:
            handle.check_branch()
    _check_expected(handle, request, full if not moves else HEAD, seen)
    if moves:
        notice = f"HEAD was detached; this run goes on as {short_name(full)}"
        handle.settings.observer(Notice("new-branch", notice))
    return Landing(full, old, _parents(handle, request, tip), moves)


def _check_expected(handle: Handle, request: Request, ref: str, seen: Target) -> None:
    if request.expected_head is not None:
        expected = handle.resolve(request.expected_head)
        if expected != seen:
            raise RefConflict(ref, str(expected), str(seen) if seen else None)


def _parents(handle: Handle, request: Request, tip: Target) -> tuple[ObjectId, ...]:
    if isinstance(request.parents, str):
        raise InvalidInput(f"parents are a list of revisions, not the text {request.parents!r}")
    if request.parents is not None:
        return tuple(handle.resolve(rev) for rev in request.parents)
    return (tip,) if isinstance(tip, ObjectId) else ()


def _fresh_branch(handle: Handle, at: Target) -> str:
    taken = refs_below(handle, HEADS)
    stem = f"from-{at.short}" if isinstance(at, ObjectId) else "from-nothing"
    names = [stem, *(f"{stem}-{n}" for n in range(2, 1000))]
    return HEADS + next(name for name in names if name not in taken)


def trusted_chunks(handle: Handle, landing: Landing) -> frozenset[ObjectId]:
    """Return the chunks of the parent, if publishing will prove that it is still the branch's tip."""
    manifest = handle.core.tips.get(landing.parent) if landing.parent is not None else None
    if manifest is None or landing.parent != landing.old:
        return frozenset()
    return handle.db.unsuspected(manifest.chunks())


def deltas_of(handle: Handle, landing: Landing, codec: str, leaves: Sequence[Leaf]) -> Lines | None:
    """Return what the chunks of a commit may be differences to: those of its parent, where its codec makes such."""
    if codec not in _DELTA_CODECS:
        return None

    @cache
    def names() -> Manifest | None:
        return _parent_manifest(handle, landing.parent) if landing.parent is not None else Manifest()

    core = handle.core
    if codec == "auto" and not core.scout.wants(handle.db, names, leaves, handle.db.benches.thrift):
        core.shadow.clear()
        return None
    parent = names()
    if parent is None:
        return None
    shadow = core.shadow if handle.setting("shadow") == "yes" else None

    def older(count: int) -> Manifest | None:
        try:
            line = islice(first_parents(handle.db, landing.parents[0]), count, None)
            commit = next(line, None)
        except Damaged:
            return None
        return _parent_manifest(handle, commit.id) if commit is not None else None

    proved = (core.links(landing.ref), core.links(f"{landing.ref}, keyframes"))
    return Lines(handle.db, parent, older, core.choices, proved, shadow, predicting=codec == "small")


def _parent_manifest(handle: Handle, parent: ObjectId) -> Manifest | None:
    """Return the names and chunks of a snapshot; None where they do not read: what is stored now can do without."""

    def load(id: ObjectId) -> bytes:
        return bytes(handle.db.read(id))

    found = handle.core.tips.get(parent)
    if found is not None:
        return found
    try:
        root = Root.from_bytes(load(read_commit(handle.db, parent).tree))
        return Manifest(read_tree(root.state, load) if root.state is not None else ())
    except Damaged:
        return None


def write_leaves(
    batch: LocalBatch,
    leaves: Sequence[Leaf],
    settings: Settings,
    lines: Lines | None = None,
    form: Form | None = None,
) -> tuple[Manifest, Stats]:
    """Store leaves in a batch with the threads and memory that the handle may use."""
    return write(
        batch,
        leaves,
        threads=settings.threads,
        max_memory_bytes=settings.max_memory_bytes,
        observer=settings.observer,
        lines=lines,
        form=form,
    )


def finish(
    handle: Handle, batch: LocalBatch, request: Request, landing: Landing, written: Written, started: float
) -> Commit:
    """Store the names and the commit, and publish everything in one step.

    Raises:
        NothingToCommit: the request does not allow an empty commit, and nothing changed.
    """
    db, parent = handle.db, landing.parent
    root, taken = write_trees(batch, written.state, written.files, written.form)
    if not request.allow_empty and parent is not None and read_commit(db, parent).tree == root:
        raise NothingToCommit("the state equals the tip's", hint="allow_empty=True commits it anyway")
    stats = replace(written.stats, stored_bytes=written.stats.stored_bytes + taken)
    note = replace(request.note, author=config.user_name())
    id = write_commit(batch, root, landing.parents, note, now_us(), stats)
    why = f"commit: {note.message}" if note.message else "commit"
    changes: list[Change] = [SetRef(landing.ref, landing.old, id, why), *landing.moves]
    changes += [SetRef(tag_ref(name), None, id, "tag: with its commit") for name in request.tags]
    db.publish(batch, changes, parents=landing.parents)
    if landing.moves:
        handle.stand_on(landing.ref)
    handle.core.remember(id, written.state)
    commit = read_commit(db, id)
    return replace(commit, stats=replace(commit.stats, seconds=time.perf_counter() - started))


def make_note(
    message: str,
    step: int | None,
    epoch: int | None,
    metrics: Mapping[str, object] | None,
    meta: Mapping[str, object] | None,
) -> Note:
    """Return what is said about a commit; what cannot be said is refused before anything is stored."""
    note = Note(message, "", step, epoch, {k: _number(k, v) for k, v in (metrics or {}).items()}, dict(meta or {}))
    encode_commit(ObjectId(bytes(32)), (), note, 0, Stats())
    return note


def _number(name: str, value: object) -> float:
    """Return a metric as a float: numbers, 0-dim tensors, NumPy scalars."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(value.detach() if hasattr(value, "detach") else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidInput(f"metric {name!r} must be one number, not {type(value).__name__} ({error})") from error


def new_tags(handle: Handle, tags: Sequence[str]) -> tuple[str, ...]:
    """Return tags for a commit, each once, none of which exists."""
    if isinstance(tags, str):
        raise InvalidInput(f"tags are a list of names, not the text {tags!r}", hint=f"say tags=[{tags!r}]")
    for name in tags:
        if handle.ref_target(tag_ref(name)) is not None:
            raise AlreadyExists(f"tag {name!r} exists already", hint="choose another name")
    return tuple(dict.fromkeys(tags))
