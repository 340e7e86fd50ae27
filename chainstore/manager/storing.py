"""Storing: a capture becomes a commit, in whichever thread or process does it."""

from collections.abc import Sequence
from dataclasses import dataclass

from chainstore.errors import ChainError
from chainstore.manager.captured import CapturedLeaf
from chainstore.manager.messages import Durable, Failed, Request, Told
from chainstore.policies.texts import parse_retention
from chainstore.repository import Leaf, Repository


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
    try:
        commit = repo.commit_leaves(
            [_leaf(leaf, view) for leaf in leaves],
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
    except Exception as error:
        return failure(number, error)
    stats = commit.stats
    return Durable(number, str(commit.id), stats.seconds or 0.0, stats.raw_bytes, stats.new_bytes, stats.stored_bytes)


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
