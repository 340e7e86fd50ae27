"""Forgetting: snapshots dropped by a policy or by name, and the policy that a repository keeps for itself."""

from collections.abc import Callable, Iterable, Sequence

from chainstore import config
from chainstore.errors import InvalidInput
from chainstore.ids import ObjectId
from chainstore.model.change import MarkLine
from chainstore.odb.reserve import reserve_given_up
from chainstore.ops.forget import forget as forget_by
from chainstore.ops.forget import unforget as take_back
from chainstore.ops.forget_plan import ForgetPlan, plan_forget, plan_named
from chainstore.policies.retention import Retention
from chainstore.policies.texts import parse_retention
from chainstore.repository.handles import Handle, Revision
from chainstore.settings import resolve

_HOW = "give one, such as Retention(last=10) or `--keep-last 10`; `repo.set_retention` and `--store` remember it"


def forget(
    handle: Handle,
    retention: Retention | None,
    commits: Sequence[Revision] | None,
    dry_run: bool,
    allow_remove_all: bool,
) -> ForgetPlan:
    """Drop snapshots, or say which; see `Repository.forget`."""
    db = handle.db
    if commits is not None:
        if retention is not None:
            raise InvalidInput("name commits, or give a policy; not both")
        named = _resolved(handle, commits)
        return _done(handle, lambda: plan_named(db, named), dry_run)
    policy = retention if retention is not None else stored_retention(handle)
    if policy is None:
        raise InvalidInput("no policy is given, and the repository has none of its own", hint=_HOW)

    def plan() -> ForgetPlan:
        return plan_forget(db, policy, config.now(), allow_remove_all=allow_remove_all)

    return _done(handle, plan, dry_run)


def _done(handle: Handle, plan: Callable[[], ForgetPlan], dry_run: bool) -> ForgetPlan:
    if dry_run:
        return plan()
    if handle.settings.readonly:
        return forget_by(handle.db, plan)  # which says why not
    with reserve_given_up(handle.db.layout, all_of_it=False):  # gc needs the rest
        return forget_by(handle.db, plan)


def unforget(handle: Handle, commits: Sequence[Revision] | None) -> tuple[ObjectId, ...]:
    """Take forget marks back; see `Repository.unforget`."""
    return take_back(handle.db, None if commits is None else _resolved(handle, commits))


def marks(handle: Handle, commits: Iterable[Revision] | None) -> dict[ObjectId, MarkLine]:
    """Return the marks of forgotten commits; see `Repository.marks`."""
    wanted = None if commits is None else [handle.resolve(commit) for commit in commits]
    with handle.db.view() as view:
        found = view.marks() if wanted is None else (view.mark(id) for id in wanted)
        # gc takes whole commits away too; the marks that it gives those go last
        return {mark.commit: mark for mark in found if mark is not None and view.place(mark.commit) is not None}


def stored_retention(handle: Handle) -> Retention | None:
    """Return the policy that the repository keeps for itself, or None.

    Raises:
        ConfigError: what is stored makes no sense here; a newer version may have written it.
    """
    text = str(resolve("retention", None, handle.own_settings()).value)
    return parse_retention(text) if text else None


def _resolved(handle: Handle, commits: Sequence[Revision]) -> list[ObjectId]:
    if isinstance(commits, str):
        raise InvalidInput(f"commits are a list of revisions, not the text {commits!r}", hint=f"say [{commits!r}]")
    return [handle.resolve(rev) for rev in commits]
