"""Every error chainstore raises, in one tree, grouped by what the caller does next.

    ChainError                                                                            exit
     NotFound (LookupError)    check the name                                                1
        RepositoryNotFound                                                                  10
        RevisionNotFound, SnapshotNotFound (also FileNotFoundError), SnapshotForgotten
     AlreadyExists             choose another name                                           1
        NothingToCommit
     Conflict                  fetch and retry                                               1
        RefConflict, BranchDeleted                                                          13
        Locked, IndexElsewhere                                                              11
     InvalidInput (ValueError) fix the call                                                  1
        UnsupportedState, InvalidRefName, ConfigError, StateMismatch, CodecMismatch
     Denied                    get the right                                                12
        KeyRequired, WrongKey, NotEncrypted, WrongRepository, StaleKeyring
        ReadOnly                                                                             1
     Damaged                   verify, rebuild the index, fetch again                        4
        IdMismatch, Malformed
     Unsupported               upgrade                                                       1
        FormatTooNew
     StorageError              the operator                                                 16
        StoreFull, MemoryShort, SnapshotFailed, QueueFull, ForkedHandle, UnsuitablePlace
        RemoteError, RollbackDetected                                                       14
     RankFailure               look at that rank                                             1

Each class has a stable `code` (for `--json` and for handlers that cross a process), an `exit_code`, and each
instance a message and a `hint` that says what to do next.  Facts are attributes, never only text.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime


class ChainError(Exception):
    """Base of every error chainstore raises on purpose."""

    code = "error"
    exit_code = 1
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class NotFound(ChainError, LookupError):
    """A name that was given does not exist."""

    code = "not-found"


class RepositoryNotFound(NotFound):
    """No repository lies at the path."""

    code = "repository-not-found"
    exit_code = 10

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"no repository at {path}",
            hint=f"make one with `chain init {path}`, or name another with -C PATH or CHAIN_REPO",
        )


class RevisionNotFound(NotFound):
    """A revision names no commit."""

    code = "revision-not-found"

    def __init__(self, revision: str, nearest: Sequence[str] = (), why: str = "") -> None:
        self.revision, self.nearest = revision, tuple(nearest)
        super().__init__(
            f"unknown revision {revision!r}" + (f": {why}" if why else ""),
            hint=f"did you mean {' or '.join(nearest)}?" if nearest else "`chain log --all` lists what there is",
        )


class SnapshotNotFound(NotFound, FileNotFoundError):
    """A snapshot was asked for where none exists yet."""

    code = "snapshot-not-found"


class SnapshotForgotten(NotFound):
    """The commit exists, but its snapshot was dropped by a retention policy."""

    code = "snapshot-forgotten"


class PathNotFound(NotFound, KeyError):
    """A snapshot holds nothing under a path."""

    code = "path-not-found"

    def __init__(self, path: str, commit: str = "", nearest: Sequence[str] = ()) -> None:
        self.path, self.commit, self.nearest = path, commit, tuple(nearest)
        super().__init__(
            f"nothing at {path!r}" + (f" in commit {commit}" if commit else ""),
            hint=f"did you mean {' or '.join(nearest)}?"
            if nearest
            else "`snap.keys()` or `chain show` lists the paths",
        )

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class AlreadyExists(ChainError):
    """Something of that name exists already."""

    code = "already-exists"


class NothingToCommit(AlreadyExists):
    """What was to be committed equals the branch's tip."""

    code = "nothing-to-commit"


class Conflict(ChainError):
    """Somebody else changed or holds what this operation needs."""

    code = "conflict"


class RefConflict(Conflict):
    """A ref moved while a commit was being written; nothing was published.

    The chunks already written stay in the store and are reused by the retry.
    """

    code = "ref-conflict"
    exit_code = 13

    def __init__(self, ref: str, expected: str | None, found: str | None) -> None:
        self.ref, self.expected, self.found = ref, expected, found
        super().__init__(
            f"{ref} moved from {expected or 'nothing'} to {found or 'nothing'} during this operation",
            hint="look at the new tip with `chain log`, then run the operation again",
        )


class BranchDeleted(RefConflict):
    """The branch that a handle commits to was deleted by somebody else; nothing was published."""

    code = "branch-deleted"

    def __init__(self, branch: str) -> None:
        self.ref, self.expected, self.found = branch, None, None
        Conflict.__init__(
            self,
            f"branch {branch!r} was deleted meanwhile; a commit to it would begin a new chain",
            hint="switch to another branch, or name one with branch=; parents=[] begins a new chain",
        )


class Locked(Conflict):
    """Another process held a lock for longer than we wait."""

    code = "locked"
    exit_code = 11

    def __init__(self, what: str, by: str, waited_seconds: float) -> None:
        self.what, self.by, self.waited_seconds = what, by, waited_seconds
        super().__init__(
            f"{what} is held by {by}; gave up after {waited_seconds:.0f} s",
            hint="the lock ends with that process; wait for it or stop it, there is nothing to unlock",
        )


class IndexElsewhere(Conflict):
    """The index in force is on another host, which alone may write until it is taken over; nothing was changed.

    Attributes:
        host: its name, as it called itself.  since: when it made its index the one in force (UTC).
        taken_over: whether that was while this process had the index of this host open.
    """

    code = "index-elsewhere"
    exit_code = 11

    def __init__(self, place: str, host: str, since: datetime, *, taken_over: bool = False) -> None:
        self.host, self.since, self.taken_over = host, since, taken_over
        how = f"was taken over by host {host}" if taken_over else f"is written to by host {host}, which has its index,"
        super().__init__(
            f"{place} {how} since {since:%Y-%m-%d %H:%M:%S} UTC",
            hint="write to it there, or make sure that nobody does and take it over with "
            "`chain rebuild-index --take-over` or cs.open(PATH, take_over=True); reading needs neither",
        )


class InvalidInput(ChainError, ValueError):
    """The call itself is wrong; nothing was changed."""

    code = "invalid-input"


class UnsupportedState(InvalidInput):
    """Some leaves of a state cannot be stored; nothing was written.

    Attributes:
        paths: path as text -> why it cannot be stored (with its type).
    """

    code = "unsupported-state"

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = dict(paths)
        listed = "\n".join(f"  {path}: {why}" for path, why in self.paths.items())
        super().__init__(
            f"{len(self.paths)} value{'s' if len(self.paths) != 1 else ''} in this state cannot be stored:\n{listed}",
            hint="take them out of the state, or teach chainstore the type with cs.register(type, encode, decode)",
        )


class InvalidRefName(InvalidInput):
    """A branch or tag name breaks the naming rules."""

    code = "invalid-ref-name"


class ConfigError(InvalidInput):
    """A setting has a value that makes no sense."""

    code = "config"


class StateMismatch(InvalidInput):
    """What a snapshot holds and what it should be loaded into do not fit; nothing was written.

    Attributes:
        missing, unexpected, mismatched: paths as text (mismatched ones with the reason).
    """

    code = "state-mismatch"

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        self.missing, self.unexpected, self.mismatched = tuple(missing), tuple(unexpected), tuple(mismatched)
        super().__init__(message, hint=hint or "nothing was changed; strict=False loads what fits")


class CodecMismatch(InvalidInput):
    """Data handed to a codec does not fit what was said of it."""

    code = "codec-mismatch"


class Denied(ChainError):
    """A right, most often a key, is missing."""

    code = "denied"
    exit_code = 12


class KeyRequired(Denied):
    """The repository is encrypted and no key was found."""

    code = "key-required"


class WrongKey(Denied):
    """A key was given, and it opens no slot of this repository."""

    code = "wrong-key"


class NotEncrypted(Denied):
    """A key was given or is on record, but the repository claims to be unencrypted."""

    code = "not-encrypted"


class WrongRepository(Denied):
    """What lies here belongs to another repository."""

    code = "wrong-repository"


class StaleKeyring(Denied):
    """The key slots on disk are older than the commit log knows them to be."""

    code = "stale-keyring"


class ReadOnly(Denied):
    """A change was asked of something opened for reading."""

    code = "read-only"
    exit_code = 1


class Damaged(ChainError):
    """Stored bytes are not what was stored; nothing wrong was handed out."""

    code = "damaged"
    exit_code = 4
    hint = "run `chain verify` to see what is hit; `chain rebuild-index` heals a damaged index"


class IdMismatch(Damaged):
    """An object's bytes do not hash to its id (or do not authenticate).

    Attributes:
        id: the object, 64 hex digits.
        path, commit, ancestor: where it was needed and the nearest ancestor commit that has other bytes there
            (None where the reader does not know).
        base: the object to blame, 64 hex digits, where that is not `id` but something it is a difference to.
    """

    code = "id-mismatch"

    def __init__(
        self,
        id: str,
        why: str,
        *,
        path: str | None = None,
        commit: str | None = None,
        ancestor: str | None = None,
        base: str | None = None,
    ) -> None:
        self.id, self.why, self.path, self.commit, self.ancestor = id, why, path, commit, ancestor
        self.base = base
        place = f"{path!r} of commit {commit[:12]}" if path is not None and commit else f"object {id[:12]}"
        super().__init__(
            f"{place} is damaged: {why}",
            hint=f"the nearest good ancestor is {ancestor[:12]}: `chain checkout {ancestor[:12]}`" if ancestor else "",
        )


class Malformed(Damaged):
    """Bytes that should follow the format do not.

    Attributes:
        what: what was being read.  offset: where in it, in bytes (-1 unknown).
    """

    code = "malformed"

    def __init__(self, what: str, why: str, offset: int = -1) -> None:
        self.what, self.why, self.offset = what, why, offset
        super().__init__(f"{what} is malformed{f' at byte {offset}' if offset >= 0 else ''}: {why}")


class Unsupported(ChainError):
    """This version of chainstore cannot do that."""

    code = "unsupported"
    hint = "upgrade chainstore"


class FormatTooNew(Unsupported):
    """The repository uses a format or an extension that this version does not know."""

    code = "format-too-new"

    def __init__(self, extension: str, operation: str) -> None:
        self.extension, self.operation = extension, operation
        super().__init__(
            f"this repository uses {extension!r}, which this version of chainstore must not {operation}",
            hint="upgrade chainstore: `pip install -U chainstore`",
        )


class StorageError(ChainError):
    """The place that holds the bytes failed."""

    code = "storage"
    exit_code = 16


class StoreFull(StorageError):
    """No space left; nothing was published, everything acknowledged is intact."""

    code = "store-full"
    hint = "free some space; nothing that was committed is lost"


class MemoryShort(StorageError):
    """There is less memory than a copy of the state takes; nothing was captured.

    A manager does without a copy then: it commits the live state, and training waits until that is durable.

    Attributes:
        needed, left: bytes; what has to be left to others does not count.
    """

    code = "memory-short"
    hint = (
        "raise the memory limit of the job, or have less in the state; with max_pending=1 one copy is enough, and "
        "without one a manager stores the state while training waits"
    )

    def __init__(self, needed: int, left: int) -> None:
        self.needed, self.left = needed, left
        rest = f"{left / 1e6:,.0f} MB are left" if left < needed else "the system refuses that"
        super().__init__(f"a capture takes {needed / 1e6:,.0f} MB of memory and {rest}")


class SnapshotFailed(StorageError):
    """A snapshot did not become durable; training can go on.

    Attributes:
        step: of the snapshot.
        cause: the code of what it failed of.
    """

    code = "snapshot-failed"

    def __init__(self, step: int | None, cause: str, text: str, hint: str = "") -> None:
        self.step, self.cause = step, cause
        of = f" of step {step}" if step is not None else ""
        super().__init__(f"the snapshot{of} failed: {text}", hint=hint)


class QueueFull(StorageError):
    """A snapshot is due while as many as may be are on their way."""

    code = "queue-full"
    hint = "snapshots are due faster than they become durable: a longer interval, or when_full='skip'"


class ForkedHandle(StorageError):
    """An open writer or transaction was used in a forked child."""

    code = "forked-handle"
    hint = "open the repository anew in the child process"


class UnsuitablePlace(StorageError):
    """The index cannot live where it was asked to."""

    code = "unsuitable-place"


class RemoteError(StorageError):
    """A remote did not do what was asked.

    Attributes:
        retryable: whether trying again can help.
    """

    code = "remote"
    exit_code = 14

    def __init__(self, message: str, *, retryable: bool = False, hint: str = "") -> None:
        self.retryable = retryable
        super().__init__(message, hint=hint)


class RollbackDetected(StorageError):
    """A remote shows an older state than was seen before."""

    code = "rollback-detected"
    exit_code = 14


class RankFailure(ChainError):
    """Some ranks of a distributed operation failed.

    Attributes:
        errors: rank -> its error.
    """

    code = "rank-failure"

    def __init__(self, message: str, errors: Mapping[int, ChainError]) -> None:
        self.errors = dict(errors)
        super().__init__(message)
