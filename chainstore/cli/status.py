"""`chain status`"""

from collections.abc import Iterator

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.records import commit_fields, metrics_text, step_text
from chainstore.cli.wording import age, count, first_line, size, table
from chainstore.model.commit import Commit
from chainstore.repository import Repository, Status


@cli.command("status", examples=["chain status", "chain -C runs/gpt status --json"])
@click.pass_obj
def command(app: App) -> None:
    """Show where the repository stands: branch, tip, step, age, space, key, and whether it was left in order.

    Only what is known at once; `chain verify` looks closer.
    """
    with app.open(readonly=True) as repo:
        status, tip = repo.status(), repo.head
        key = _key(repo)
        fields = {
            "path": str(repo.path),
            "branch": repo.branch_name,
            "tip": commit_fields(tip) if tip is not None else None,
            "branches": status.branches,
            "tags": status.tags,
            "disk_bytes": status.disk_bytes,
            "free_bytes": status.free_bytes,
            "encrypted": repo.encrypted,
            "key": repo.key_origin if repo.encrypted else None,
            "lines_ahead": status.lines_ahead,
            "index": str(status.index_outside) if status.index_outside else None,
        }
        app.out.result("chain.status/1", fields, _lines(repo, status, tip, key))


def _key(repo: Repository) -> str:
    return f"opens with {repo.key_origin}" if repo.encrypted else "none: it is not encrypted"


def _whose(status: Status) -> str:
    """Say what an index outside of the repository is good for."""
    if status.index_private:
        return f"for reading only: host {status.index_host} writes to it"
    return "on this machine, which alone may write"


def _lines(repo: Repository, status: Status, tip: Commit | None, key: str) -> Iterator[str]:
    rows = [("repository", str(repo.path)), ("on", repo.branch_name or "a commit, on no branch")]
    if tip is None:
        rows.append(("tip", "nothing was committed yet"))
    else:
        told = (tip.short, step_text(tip), metrics_text(tip), age(tip.time, config.now()), first_line(tip.message, 48))
        rows.append(("tip", "  ".join(part for part in told if part)))
    branches = count(status.branches, "branch")
    rows += [
        ("names", f"{branches}, {count(status.tags, 'tag')}"),
        ("space", f"{size(status.disk_bytes)} taken, {size(status.free_bytes)} free"),
        ("key", key),
    ]
    if status.index_outside:
        rows.append(("index", f"{status.index_outside}, {_whose(status)}"))
    if status.lines_ahead:
        ahead = count(status.lines_ahead, "line")
        rows.append(("log", f"{ahead} ahead of the index, as after a crash; the next commit puts that right"))
    if repo.encrypted and str(config.user_key_path()) in repo.key_origin and not config.key_was_exported():
        rows.append(("", "keep a copy of that key elsewhere: `chain key export`"))
    return table(rows)
