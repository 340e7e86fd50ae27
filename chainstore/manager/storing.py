"""Storing: a capture becomes a commit, in whichever thread or process does it."""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chainstore.errors import ChainError, InvalidInput
from chainstore.manager.captured import CapturedLeaf
from chainstore.manager.checksums import checksums
from chainstore.manager.messages import Durable, Failed, Request, Told
from chainstore.model.commit import Commit
from chainstore.policies.texts import parse_retention
from chainstore.repository import FileContent, Leaf, Repository


@dataclass(frozen=True, slots=True)
class BufferSource:
    """Bytes of a leaf in a buffer, read where they lie; valid as long as the buffer is not changed."""

    view: memoryview
    offset: int
    nbytes: int

    def read(self, start: int, stop: int) -> memoryview:
        return self.view[self.offset + start : self.offset + stop]


def store(
    repo: Repository, number: int, leaves: Sequence[CapturedLeaf], view: memoryview, request: Request
) -> Durable | Failed:
    """Commit a capture; whatever goes wrong becomes the answer, so that the next one can be tried."""
    return store_leaves(repo, number, [_leaf(leaf, view) for leaf in leaves], request)


def store_leaves(repo: Repository, number: int, leaves: Sequence[Leaf], request: Request) -> Durable | Failed:
    """Commit leaves, whose bytes are read where they lie; else as `store`."""
    try:
        commit, left_out = _commit_what_reads(repo, leaves, request)
        sums = checksums(leaves) if request.checksums else b""
    except Exception as error:
        return failure(number, error)
    stats = commit.stats
    sizes = (stats.raw_bytes, stats.new_bytes, stats.stored_bytes)
    return Durable(number, str(commit.id), stats.seconds or 0.0, *sizes, sums, left_out, stats.delta_bytes)


def _commit_what_reads(repo: Repository, leaves: Sequence[Leaf], request: Request) -> tuple[Commit, dict[str, str]]:
    """Commit leaves and the files beside them; those that cannot be read are left out, and told by name with why."""
    left_out = unreadable(request.files)
    files = {name: file for name, file in request.files.items() if name not in left_out}
    try:
        return _commit(repo, leaves, replace(request, files=files)), left_out
    except (InvalidInput, FileNotFoundError) as error:
        read = {name: file for name, file in files.items() if isinstance(file, FileContent)}
        if len(read) == len(files):
            raise
        # One of those on disk became shorter or went away meanwhile; what else it can be fails once more.
        commit = _commit(repo, leaves, replace(request, files=read))
        return commit, left_out | {name: str(error) for name in files if name not in read}


def unreadable(files: Mapping[str, str | os.PathLike[str] | FileContent]) -> dict[str, str]:
    """Return those of files that cannot be read any more, and why not, by name."""
    found = {}
    for name, file in files.items():
        if isinstance(file, FileContent):
            continue
        try:
            look_at(file)
            open(file, "rb").close()
        except OSError as error:
            found[name] = error.strerror or str(error)
    return found


def look_at(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the state of a file.

    Raises:
        OSError: there is none, or it is something else; `strerror` says so.
    """
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(0, "it is not a file")
    return state


def _commit(repo: Repository, leaves: Sequence[Leaf], request: Request) -> Commit:
    return repo.commit_leaves(
        leaves,
        request.message,
        branch=request.branch,
        step=request.step,
        epoch=request.epoch,
        metrics=request.metrics,
        meta=request.meta,
        tags=request.tags,
        files=request.files,
        expected_head=request.expected_head,
        parents=[] if request.root and request.branch not in repo.branches() else None,
        codec=request.codec,
    )


def tidy(repo: Repository, retention: str) -> Told | None:
    """Drop what a policy does not keep, and take the garbage away; return what a person should know of it."""
    try:
        repo.forget(parse_retention(retention))
        repo.gc(forget=False)
    except Exception as error:
        return Told("tidy-failed", f"old snapshots could not be dropped: {failure(0, error).text}")
    return None


def failure(number: int, error: Exception) -> Failed:
    """Return what is told of an error."""
    if isinstance(error, ChainError):
        return Failed(number, error.code, str(error), error.hint)
    return Failed(
        number, "error", f"{type(error).__name__}: {error}", "this is a bug of chainstore, unless memory ran out"
    )


def _leaf(leaf: CapturedLeaf, view: memoryview) -> Leaf:
    source = BufferSource(view, leaf.offset, leaf.nbytes) if leaf.offset >= 0 else None
    return Leaf(leaf.path, leaf.node, leaf.spec, source)
