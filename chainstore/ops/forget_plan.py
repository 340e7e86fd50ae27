"""Plans of forgetting: what a policy would drop, and of everything else why it stays; changes nothing.

A plan covers the commits that a branch leads to and that still have their snapshot.  Whatever its rules say, it never
drops what has a name (the tip of a branch, a tagged commit, the commit that HEAD is on), and of a branch whose tip has
lost its snapshot not the newest that is there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from chainstore.display import some, table
from chainstore.errors import InvalidInput
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import ancestors, read_commit
from chainstore.policies.retention import Retention
from chainstore.policies.texts import describe_retention
from chainstore.refs import HEAD, HEADS, TAGS, nearest_names, short_name

BY_HAND = "hand"  # stands for a policy in the marks of commits that somebody named
_MOST_SHOWN = 40  # rows in a notebook
_WHAT_TO_DO = (
    "move or delete what names it first: `chain reset`, `chain branch -d`, `chain tag -d`; where HEAD is on it, "
    "`chain switch`"
)


@dataclass(frozen=True, slots=True)
class ForgetLine:
    """What a plan does with one snapshot.

    Attributes:
        commit, step, time: of the commit.
        branches: the names of those that lead to it.
        kept: whether it stays.
        reasons: why it stays, such as "last of main" or "tag best"; () where it is dropped.
    """

    commit: ObjectId
    step: int | None
    time: datetime
    branches: tuple[str, ...]
    kept: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Which snapshots stay and which are dropped.

    Attributes:
        policy: for people to read, such as "keep-last 5, keep-daily 7"; the marks hold it.
        lines: one for each snapshot, newest first.
    """

    policy: str
    lines: tuple[ForgetLine, ...]

    @property
    def dropped(self) -> tuple[ObjectId, ...]:
        """The commits whose snapshots are dropped, newest first."""
        return tuple(line.commit for line in self.lines if not line.kept)

    @property
    def kept(self) -> tuple[ObjectId, ...]:
        """The commits whose snapshots stay, newest first."""
        return tuple(line.commit for line in self.lines if line.kept)

    def __repr__(self) -> str:
        return f"<ForgetPlan {self.policy}: {len(self.kept):,} kept, {len(self.dropped):,} dropped>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [
            (line.commit.short, "" if line.step is None else line.step, _word(line.kept), ", ".join(line.reasons))
            for line in self.lines[:_MOST_SHOWN]
        ]
        left = len(self.lines) - _MOST_SHOWN
        more = [(f"and {left:,} more", "", "", "")] if left > 0 else []
        title = f"{self.policy}: {len(self.kept):,} kept, {len(self.dropped):,} dropped"
        return table(title, [*rows, *more], ("commit", "step", "", "reasons"))


def plan_forget(
    db: LocalDatabase, retention: Retention, now: datetime, *, allow_remove_all: bool = False
) -> ForgetPlan:
    """Return what a policy would do to the snapshots of all branches.

    Args:
        now: with the time zone that calendar rules use.
        allow_remove_all: let the rules keep nothing of a branch; only what has a name stays then.

    Raises:
        InvalidInput: no commit has the metric of the policy; or its rules by themselves keep no snapshot of some
            branch, which is a slip more often than a wish: says of which.
        IdMismatch: a commit is damaged; nothing can be said of what lies behind it.
    """
    scene = _Scene.of(db)
    _check_metric(retention, scene.commits.values())
    wanted = retention.reasons(scene.commits.values(), now, tags=scene.tags, branches=scene.branches)
    if not allow_remove_all:
        _check_something_stays(retention, scene, wanted)
    lines = []
    for id, commit in scene.commits.items():
        reasons = tuple(dict.fromkeys((*scene.protected.get(id, ()), *wanted.get(id, ()))))
        lines.append(ForgetLine(id, commit.step, commit.time, scene.branches_of(id), bool(reasons), reasons))
    return ForgetPlan(describe_retention(retention), tuple(lines))


def plan_named(db: LocalDatabase, commits: Sequence[ObjectId]) -> ForgetPlan:
    """Return the plan that drops just these snapshots; those that were forgotten before are left out.

    Raises:
        InvalidInput: one of them must stay: names it, and says why and what to do.
    """
    scene = _Scene.of(db)
    for id in commits:
        if id in scene.protected:
            raise InvalidInput(f"{id.short} cannot be forgotten: it is {some(scene.protected[id])}", hint=_WHAT_TO_DO)
    lines = []
    for id in dict.fromkeys(commits):
        commit = scene.commits.get(id) or read_commit(db, id)
        if id not in scene.marked:
            lines.append(ForgetLine(id, commit.step, commit.time, scene.branches_of(id), False, ()))
    return ForgetPlan(BY_HAND, tuple(sorted(lines, key=lambda line: line.time, reverse=True)))


@dataclass(frozen=True, slots=True)
class _Scene:
    """What a plan is made from.

    Attributes:
        commits: those that branches lead to and that have their snapshot, newest first.
        branches: short name -> all commits that it leads to.
        tags: short name -> commit.
        protected: commit -> why it must stay.
        marked: the commits that were forgotten.
    """

    commits: Mapping[ObjectId, Commit]
    branches: Mapping[str, frozenset[ObjectId]]
    tags: Mapping[str, ObjectId]
    protected: Mapping[ObjectId, tuple[str, ...]]
    marked: frozenset[ObjectId]

    @classmethod
    def of(cls, db: LocalDatabase) -> "_Scene":
        """Look at all refs, marks, and commits of branches; each is read once, however many branches share it."""
        with db.view() as view:
            marked = frozenset(mark.commit for mark in view.marks())
            refs = {row.name: row.target for row in view.refs() if isinstance(row.target, ObjectId)}
        tips = {short_name(name): target for name, target in refs.items() if name.startswith(HEADS)}
        tags = {short_name(name): target for name, target in refs.items() if name.startswith(TAGS)}
        every = {commit.id: commit for commit in ancestors(db, *dict.fromkeys(tips.values()))}
        branches = {name: _behind(tip, every) for name, tip in tips.items()}
        protected: dict[ObjectId, list[str]] = {}
        for name, tip in tips.items():
            protected.setdefault(tip, []).append(f"tip of {name}")
            complete = _newest_complete(db, (every[id] for id in every if id in branches[name]), marked)
            if complete not in (None, tip):
                protected.setdefault(complete, []).append(f"newest complete of {name}")
        for name, tagged in tags.items():
            protected.setdefault(tagged, []).append(f"tag {name}")
        if HEAD in refs:
            protected.setdefault(refs[HEAD], []).append(HEAD)
        commits = {id: commit for id, commit in every.items() if id not in marked}
        return cls(commits, branches, tags, {id: tuple(why) for id, why in protected.items()}, marked)

    def branches_of(self, id: ObjectId) -> tuple[str, ...]:
        """Return the names of the branches that lead to a commit."""
        return tuple(name for name, ids in self.branches.items() if id in ids)


def _behind(tip: ObjectId, every: Mapping[ObjectId, Commit]) -> frozenset[ObjectId]:
    seen, waiting = {tip}, [tip]
    while waiting:
        for parent in every[waiting.pop()].parents:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return frozenset(seen)


def _newest_complete(db: LocalDatabase, commits: Iterable[Commit], marked: frozenset[ObjectId]) -> ObjectId | None:
    """Return the newest commit whose root is in the index: the cheap half of a proof that its snapshot is there."""
    return next((commit.id for commit in commits if commit.id not in marked and db.has(commit.tree)), None)


def _check_metric(retention: Retention, commits: Collection[Commit]) -> None:
    if retention.best is None or not commits:
        return
    known = sorted({name for commit in commits for name in commit.metrics})
    if retention.best.metric not in known:
        near = nearest_names(retention.best.metric, known)
        raise InvalidInput(
            f"no snapshot has a metric {retention.best.metric!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"there are {some(known) or 'no metrics at all'}",
        )


def _check_something_stays(retention: Retention, scene: _Scene, wanted: Mapping[ObjectId, tuple[str, ...]]) -> None:
    """Refuse rules that keep nothing of some branch: that its tip stays in any case does not make them meant so."""
    every = frozenset(scene.commits)
    groups = {"": every} if retention.group_by == "none" else scene.branches
    lost = [
        name
        for name, ids in groups.items()
        if not any(id in wanted for id in ids & every) and any(id not in scene.protected for id in ids & every)
    ]
    if lost:
        of = f" of {some(lost)}" if lost != [""] else ""
        raise InvalidInput(
            f"{describe_retention(retention)} keeps no snapshot{of} but those that have a name",
            hint="say what to keep, such as --keep-last 1; to drop all others, --unsafe-allow-remove-all "
            "(allow_remove_all=True)",
        )


def _word(kept: bool) -> str:
    return "kept" if kept else "dropped"
