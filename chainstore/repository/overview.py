"""Overview: a repository as a notebook shows it."""

from chainstore.display import some, table
from chainstore.errors import ChainError
from chainstore.ids import ObjectId
from chainstore.ops.history import head_of, read_commit
from chainstore.refs import HEADS, short_name
from chainstore.repository.handles import Handle


def overview(handle: Handle) -> str:
    """Return a small HTML table: where it is, the branch, its tip, the other branches; never raises for damage."""
    rows: list[tuple[str, object]] = [("path", handle.settings.root)]
    try:
        rows += _facts(handle)
    except ChainError as error:
        rows.append(("error", error))
    return table("repository", rows)


def _facts(handle: Handle) -> list[tuple[str, object]]:
    db = handle.db
    branches = [short_name(row.name) for row in db.refs() if row.name.startswith(HEADS)]
    tip = head_of(db, handle.names())
    facts: list[tuple[str, object]] = [
        ("encrypted", "yes" if db.sealer.encrypted else "no"),
        ("on branch", short_name(handle.branch) if handle.branch else "none: HEAD is detached"),
        ("branches", some(branches) or "none yet"),
    ]
    return facts + _commit_facts(handle, tip)


def _commit_facts(handle: Handle, tip: ObjectId | None) -> list[tuple[str, object]]:
    if tip is None:
        return [("tip", "nothing was committed yet")]
    commit = read_commit(handle.db, tip)
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in commit.metrics.items())
    facts = [("tip", f"{commit.short} {commit.message}"), ("step", commit.step), ("metrics", metrics)]
    return [fact for fact in [*facts, ("time", f"{commit.time:%Y-%m-%d %H:%M:%S} UTC")] if fact[1] not in (None, "")]
