"""Refs: branches, tags and HEAD of one repository, made, moved and deleted.

What a name may be is said in `chainstore.refs`; here each move is one published change that expects the ref to be
where it was seen, so that two people who move it at once never overwrite each other.
"""

from datetime import datetime
from typing import Literal

from chainstore.errors import AlreadyExists, InvalidInput, RefConflict, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.model.change import ReflogLine, SetRef, Target
from chainstore.ops.history import head_of, read_commit
from chainstore.ops.rollback import Rollback, abandon, earlier_commit
from chainstore.refs import HEAD, HEADS, TAGS, branch_ref, nearest_names, short_name
from chainstore.repository.handles import Handle, Revision
from chainstore.repository.settings import now_us

Kind = Literal["branch", "tag"]


def refs_below(handle: Handle, prefix: str) -> dict[str, ObjectId]:
    """Return short name -> commit of the refs whose full name starts with `prefix`."""
    return {
        short_name(row.name): row.target
        for row in handle.db.refs()
        if row.name.startswith(prefix) and isinstance(row.target, ObjectId)
    }


def make_ref(handle: Handle, full: str, rev: Revision, why: str) -> ObjectId:
    """Make a branch or tag at a revision and return the commit; see `Repository.branch` and `Repository.tag`."""
    target = handle.resolve(rev)
    read_commit(handle.db, target)
    old = handle.ref_target(full)
    if old is not None:
        raise AlreadyExists(f"{short_name(full)!r} exists already, at {old}"[:120], hint="choose another name")
    handle.db.publish(None, [SetRef(full, None, target, why)])
    return target


def delete_ref(handle: Handle, name: str, kind: Kind | None) -> ObjectId:
    """Delete a branch or tag and return where it was; see `Repository.delete_ref`."""
    places = {"branch": [HEADS + name], "tag": [TAGS + name]}.get(kind or "", [HEADS + name, TAGS + name])
    for full in places:
        target = handle.ref_target(full)
        if isinstance(target, ObjectId):
            if full in (handle.ref_target(HEAD), handle.branch):
                raise InvalidInput(f"{name!r} is the current branch", hint="switch to another branch first")
            handle.db.publish(None, [SetRef(full, target, None, "delete")])
            return target
    known = [
        *(refs_below(handle, HEADS) if kind != "tag" else ()),
        *(refs_below(handle, TAGS) if kind != "branch" else ()),
    ]
    raise RevisionNotFound(name, nearest_names(name, known), f"no {kind or 'branch or tag'} of that name")


def switch(handle: Handle, branch: str, *, create: bool) -> None:
    """Put HEAD and the handle on a branch; see `Repository.switch`."""
    full = branch_ref(branch)
    if handle.ref_target(full) is None:
        if not create:
            raise _no_branch(handle, branch)
        if head_of(handle.db, handle.names()) is not None:
            make_ref(handle, full, HEAD, f"branch: from {HEAD}")
    _move(handle, HEAD, full, f"switch: to {branch}")
    handle.stand_on(full)


def detach(handle: Handle, rev: Revision) -> ObjectId:
    """Put HEAD on a commit itself, and return it; see `Repository.detach`."""
    id = handle.resolve(rev)
    read_commit(handle.db, id)
    _move(handle, HEAD, id, f"checkout: {rev}")
    handle.stand_on(None)
    return id


def reset(handle: Handle, branch: str, rev: Revision, expected_head: Revision | None) -> ObjectId:
    """Move a branch to a revision and return where it was; see `Repository.reset`."""
    full, old = _tip(handle, branch)
    if expected_head is not None and handle.resolve(expected_head) != old:
        raise RefConflict(full, str(handle.resolve(expected_head)), str(old))
    target = handle.resolve(rev)
    read_commit(handle.db, target)
    handle.db.publish(None, [SetRef(full, old, target, f"reset: to {rev}")])
    return old


def rollback(
    handle: Handle, branch: str, to: Revision | None, steps: int | None, before: datetime | None, reason: str
) -> Rollback:
    """Put a branch back to an earlier commit of its own; see `Repository.rollback`."""
    full, tip = _tip(handle, branch)
    wanted = handle.resolve(to) if to is not None else None
    target = earlier_commit(handle.db, tip, to=wanted, steps=steps, before=before)
    return abandon(handle.db, full, tip, target, reason, now_us())


def reflog(handle: Handle, ref: str) -> list[ReflogLine]:
    """Return the moves of a ref, newest first; see `Repository.reflog`."""
    with handle.db.view() as view:
        if ref == HEAD and handle.branch is not None:
            return view.reflog(handle.branch)
        for full in (HEADS + ref, TAGS + ref, ref):
            lines = view.reflog(full)
            if lines:
                return lines
    raise RevisionNotFound(ref, nearest_names(ref, [short_name(row.name) for row in handle.db.refs()]))


def _tip(handle: Handle, branch: str) -> tuple[str, ObjectId]:
    """Return full name and tip of a branch that exists."""
    full = branch_ref(branch)
    tip = handle.ref_target(full)
    if not isinstance(tip, ObjectId):
        raise _no_branch(handle, branch)
    return full, tip


def _move(handle: Handle, full: str, target: Target, why: str) -> None:
    old = handle.ref_target(full)
    if old != target:
        handle.db.publish(None, [SetRef(full, old, target, why)])


def _no_branch(handle: Handle, branch: str) -> RevisionNotFound:
    return RevisionNotFound(branch, nearest_names(branch, list(refs_below(handle, HEADS))), "no branch of that name")
