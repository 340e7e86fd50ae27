"""Handles: what one process has open.

All handles of one repository in one process share a `Core`: one database, one turn at committing, the manifests of
the last tips.  A forked child opens everything anew at its first use, since locks and files of the parent are of no
use to it.
"""

import os
import threading
from dataclasses import replace
from typing import ClassVar

from chainstore.errors import BranchDeleted, InvalidInput, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.change import Target
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import open_local
from chainstore.ops.deltas import Choices
from chainstore.ops.history import Names, resolve
from chainstore.ops.linking import Memory
from chainstore.ops.scouting import Scout
from chainstore.ops.shadow import Shadow
from chainstore.refs import HEAD, short_name
from chainstore.repository.settings import Settings, in_force, now_us
from chainstore.repository.slots import check_key, unseal
from chainstore.repository.walking import Walks
from chainstore.settings import resolve as resolve_setting

Revision = str | ObjectId | Commit
_TIPS_KEPT = 2
_HAS_TIP = -1


class Core:
    """What all handles of one repository in one process share: database, last manifests, choices of codecs."""

    shared: ClassVar[dict[tuple[str, bool], "Core"]] = {}
    lock = threading.RLock()

    def __init__(self, settings: Settings, db: LocalDatabase, key_origin: str) -> None:
        self.settings, self.db, self.key_origin = settings, db, key_origin
        self.pid = os.getpid()
        self.users = 0
        self.committing = threading.RLock()
        self.tips: dict[ObjectId, Manifest] = {}
        self.choices, self.shadow, self.walks = Choices(), Shadow(), Walks()
        self.scout = Scout()
        self._links: dict[str, Memory] = {}

    def links(self, name: str) -> Memory:
        """Return what commits to a branch proved of its optimizers."""
        return self._links.setdefault(name, Memory())

    def remember(self, commit: ObjectId, manifest: Manifest) -> None:
        """Keep the manifest of a tip: the next commit on it need not look its chunks up."""
        self.choices.commit()
        self.shadow.settle(manifest.chunks())
        self.tips.pop(commit, None)
        self.tips[commit] = manifest
        while len(self.tips) > _TIPS_KEPT:
            self.tips.pop(next(iter(self.tips)))

    @classmethod
    def after_fork(cls) -> None:
        """In a forked child: take a new lock, since the old one may be held by a thread that is not there."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=Core.after_fork)


def share(settings: Settings) -> Core:
    """Return what is behind a path in this process, opened if it is not yet; `release` gives it back."""
    with Core.lock:
        name = (str(settings.root.resolve()), settings.readonly)
        core = Core.shared.get(name)
        layout = settings.layout
        if core is not None and core.pid == os.getpid() and core.db.sealer.repo_id == layout.read_format().repo_id:
            check_key(core.db, core.settings.key, settings)
        else:  # ours to open; or another repository was put at this path, and the old handles keep theirs
            there = unseal(layout, settings)
            there.format.check_extensions(writing=not settings.readonly)
            db = open_local(
                layout,
                there.format,
                there.sealer,
                there.keyring_number,
                settings.around,
                readonly=settings.readonly,
                take_over=settings.take_over,
            )
            core = Core.shared[name] = Core(settings, db, there.key_origin)
        core.users += 1
        return core


def release(core: Core) -> None:
    """Give up one use; the last one of a process closes the database."""
    with Core.lock:
        core.users -= 1
        if core.users <= 0 and core.pid == os.getpid():
            core.db.close()
            for name in [name for name, other in Core.shared.items() if other is core]:
                del Core.shared[name]


class Handle:
    """What one user of a repository holds: how it was opened, what is shared, and the branch it is on.

    Attributes:
        branch: full name of the branch that commits go to; None where HEAD was detached.
    """

    def __init__(self, settings: Settings, core: Core) -> None:
        self.settings, self.core = settings, core
        self.branch: str | None = None
        self._moves_before_tip = _HAS_TIP
        self._closed = False
        self._pid = os.getpid()
        # what comes back after a fork, or on another machine, does not take over by itself
        self.settings = replace(in_force(settings, self.own_settings()), take_over=False)
        target = self.ref_target(HEAD)
        self.stand_on(target if isinstance(target, str) else None)

    @property
    def db(self) -> LocalDatabase:
        """The database behind it.

        Raises:
            InvalidInput: the handle was closed.
        """
        if self._closed:
            raise InvalidInput(f"this handle of {self.settings.root} was closed", hint="open it again with cs.open")
        if os.getpid() != self._pid:
            # the parent's locks and files are of no use here; open anew, once
            self.core = share(self.settings)
            self._pid = os.getpid()
        return self.core.db

    def close(self) -> None:
        """Give it up; again is fine."""
        if not self._closed:
            self._closed = True
            release(self.core)

    def manifest_of(self, commit: ObjectId) -> Manifest | None:
        """Return the manifest of a recent tip, as long as its snapshot was not forgotten; None: it must be read."""
        found = self.core.tips.get(commit)
        if found is not None:
            with self.db.view() as view:
                return found if view.mark(commit) is None else None
        return None

    def turn(self) -> threading.RLock:
        """Return the lock that one committing thread of this process holds; a forked child has its own."""
        _ = self.db
        return self.core.committing

    def codec(self, asked: str | None) -> str:
        """Return the codec to use: the one asked for, else what the settings say."""
        return str(resolve_setting("codec", asked, self.own_settings()).value)

    def setting(self, name: str) -> str | int:
        """Return the value of a setting that no call can say."""
        return resolve_setting(name, None, self.own_settings()).value

    def own_settings(self) -> dict[str, str]:
        """Return the settings that the repository holds."""
        with self.db.view() as view:
            return view.config()

    # -- the branch, and names in general

    def stand_on(self, branch: str | None) -> None:
        """Make `branch` the one that commits go to; None for a detached HEAD."""
        self.branch = branch
        if branch is not None:
            target, moves = self._ref(branch)
            self._moves_before_tip = moves if target is None else _HAS_TIP

    @property
    def standing(self) -> tuple[str | None, int]:
        """The branch that commits go to, and how often it had moved before it had a tip; -1 where it had one."""
        return self.branch, self._moves_before_tip

    def stand_as(self, branch: str | None, moves: int) -> None:
        """Stand where another handle stands, whose `standing` this is."""
        self.branch, self._moves_before_tip = branch, moves

    def check_branch(self) -> None:
        """Refuse to go on with a branch that had a tip and was deleted: its next commit would have no parent.

        Raises:
            BranchDeleted: names it.
        """
        if self.branch is not None:
            target, moves = self._ref(self.branch)
            if target is None and moves != self._moves_before_tip:
                raise BranchDeleted(short_name(self.branch))

    def ref_target(self, full: str) -> Target:
        """Return where a ref is, or None where it does not exist."""
        return self._ref(full)[0]

    def _ref(self, full: str) -> tuple[Target, int]:
        """Return where a ref is, and how often it moved."""
        with self.db.view() as view:
            row = view.ref(full)
        return (row.target, row.moves) if row is not None else (None, 0)

    def names(self) -> Names:
        """Return what revisions mean for whoever holds this handle."""
        return Names(self.branch, now_us)

    def resolve(self, revision: Revision) -> ObjectId:
        """Return the id of the commit that a revision names.

        Raises:
            RevisionNotFound: there is none; says what comes closest.
        """
        if isinstance(revision, Commit | ObjectId):
            id = revision.id if isinstance(revision, Commit) else revision
            if self.db.length(id) < 0:
                raise RevisionNotFound(id.hex(), why="it is not in this repository")
            return id
        if not isinstance(revision, str):
            raise InvalidInput(f"a revision is text, an id or a commit, not {type(revision).__name__}")
        return resolve(self.db, revision, self.names())
