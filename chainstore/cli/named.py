"""Lists of branches and tags: name, commit, step, age, message."""

from collections.abc import Mapping

from chainstore import config
from chainstore.cli.output import Output
from chainstore.cli.records import commit_fields, step_text
from chainstore.cli.wording import age, first_line, table
from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.repository import Repository


def list_names(out: Output, repo: Repository, noun: str, names: Mapping[str, ObjectId]) -> None:
    """Print every branch or tag; the current branch has a star.

    Args:
        noun: "branch" or "tag".
    """
    current = repo.branch_name if noun == "branch" else None
    if not out.json:
        out.result("", {}, table(_row(out, repo, name, id, name == current) for name, id in names.items()))
        if noun == "branch" and (current is None or current not in names):
            out.say("HEAD is on a commit, not on a branch" if current is None else f"{current} holds no commit yet")
        return
    plural = {"branch": "branches", "tag": "tags"}[noun]
    listed = [{"name": name, "id": str(id), "commit": _fields(repo, id)} for name, id in names.items()]
    out.result(f"chain.{noun}/1", {"current": current, plural: listed} if noun == "branch" else {plural: listed}, "")


def _row(out: Output, repo: Repository, name: str, id: ObjectId, current: bool) -> tuple[str, ...]:
    label = out.style(f"* {name}", "green") if current else f"  {name}"
    try:
        commit = repo.get_commit(id)
        told = (step_text(commit), age(commit.time, config.now()), first_line(commit.message))
    except Damaged:
        told = ("damaged", "", "")
    return (label, out.style(id.short, "yellow"), *told)


def _fields(repo: Repository, id: ObjectId) -> dict[str, object] | None:
    try:
        return commit_fields(repo.get_commit(id))
    except Damaged:
        return None
