"""`chain log`"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat, tee

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.graph import Drawn, draw, in_order
from chainstore.cli.output import Output
from chainstore.cli.records import (
    bytes_text,
    commit_fields,
    mark_of,
    metrics_text,
    names_of_commits,
    refs_text,
    step_text,
)
from chainstore.cli.wording import age, count, first_line, size, table
from chainstore.errors import SnapshotForgotten
from chainstore.model.commit import Commit
from chainstore.repository import Repository

Names = dict[bytes, list[str]]


@cli.command(
    "log",
    examples=[
        "chain log -n 10",
        "chain log main --step 1000:2000 --stat",
        "chain log --all --graph --oneline",
        "chain log --all --since 2h --json",
    ],
)
@click.argument("revision", required=False)
@click.option("-n", "--max-count", type=click.IntRange(min=1), metavar="N", help="Stop after N commits.")
@click.option("--oneline", is_flag=True, help="Print id, names and message only.")
@click.option("--all", "everywhere", is_flag=True, help="Start from every branch and tag.")
@click.option("--step", "steps", metavar="A:B", help="Only steps from A to B, both included; either may be left out.")
@click.option("--since", metavar="TIME", help="Only what is younger: `2h`, `3d`, or a date such as 2026-01-31.")
@click.option("--graph", is_flag=True, help="Draw how commits descend from each other.")
@click.option("--stat", is_flag=True, help="Say of each commit how many tensors it holds, and what it had to store.")
@click.pass_obj
def command(
    app: App,
    revision: str | None,
    max_count: int | None,
    oneline: bool,
    everywhere: bool,
    steps: str | None,
    since: str | None,
    graph: bool,
    stat: bool,
) -> None:
    """List commits, newest first, from REVISION (by default HEAD) back to the first.

    Each line says: id, step, metrics, new bytes of all bytes, age, names, whether its snapshot was forgotten, message.
    """
    if everywhere and revision:
        raise click.UsageError("--all starts from every branch; leave REVISION out")
    limits = parse_steps(steps) if steps is not None else None
    start = parse_since(since, config.now()) if since is not None else None
    with app.open(readonly=True) as repo:
        names = names_of_commits(repo)
        commits = repo.log(revision, max_count=max_count, since=start, steps=limits, all_refs=everywhere)
        if app.out.json:
            app.out.result("chain.log/1", {"commits": list(_records(repo, commits, names, stat))}, "")
        else:
            lines = _lines(app.out, repo, commits, names, oneline, graph, stat)
            first = list(islice(lines, 1))
            app.out.result("chain.log/1", {}, first)
            app.out.result("chain.log/1", {}, lines)
            if not first:
                app.out.say("no commits" if limits or start or repo.head else "nothing was committed yet")


def _records(repo: Repository, commits: Iterator[Commit], names: Names, stat: bool) -> Iterator[dict[str, object]]:
    for commit in commits:
        fields = commit_fields(commit, names.get(commit.id), mark_of(repo, commit))
        yield {**fields, "tensors": count_tensors(repo, commit)} if stat else fields


def _lines(
    out: Output, repo: Repository, commits: Iterator[Commit], names: Names, oneline: bool, graph: bool, stat: bool
) -> Iterator[str]:
    ordered = in_order(list(commits)) if graph else None
    ours, again = tee(commits if ordered is None else ordered)
    texts = _short(out, repo, ours, names) if oneline else _long(out, repo, ours, names)
    drawn = draw(ordered) if ordered is not None else repeat(_NO_GRAPH)
    for text, commit, left in zip(texts, again, drawn, strict=False):
        yield f"{left.node} {text}" if graph else text
        if stat:
            yield f"{left.bars}   {_stat(repo, commit)}"
        yield from left.links


_NO_GRAPH = Drawn("", "", ())


def _stat(repo: Repository, commit: Commit) -> str:
    tensors, stats = count_tensors(repo, commit), commit.stats
    held = count(tensors, "tensor") if tensors is not None else "snapshot forgotten"
    told = f"{size(stats.new_bytes)} new, {size(stats.reused_bytes)} reused, stored in {size(stats.stored_bytes)}"
    return f"{held}, {told}"


def count_tensors(repo: Repository, commit: Commit) -> int | None:
    """Return how many arrays and tensors a snapshot holds; None where it was forgotten.

    Cost: reads its pages of names.
    """
    try:
        return sum(entry.spec is not None for entry in repo.snapshot(commit).manifest.entries)
    except SnapshotForgotten:
        return None


def _short(out: Output, repo: Repository, commits: Iterator[Commit], names: Names) -> Iterator[str]:
    for commit in commits:
        yield "  ".join(filter(None, (out.style(commit.short, "yellow"), _said(out, repo, commit, names))))


def _said(out: Output, repo: Repository, commit: Commit, names: Names) -> str:
    """Return names, mark and message of a commit, as far as it has them."""
    mark = out.style("forgotten", "red") if mark_of(repo, commit) is not None else ""
    return "  ".join(filter(None, (refs_text(out, names.get(commit.id, [])), mark, first_line(commit.message))))


def _long(out: Output, repo: Repository, commits: Iterator[Commit], names: Names) -> Iterator[str]:
    now = config.now()
    return table(
        (
            out.style(commit.short, "yellow"),
            step_text(commit),
            metrics_text(commit),
            bytes_text(commit),
            age(commit.time, now),
            _said(out, repo, commit, names),
        )
        for commit in commits
    )


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Return the bounds of `A:B`, `A:`, `:B` or `A`.

    Raises:
        UsageError: it is none of them.
    """
    low, colon, high = text.partition(":")
    try:
        first = int(low) if low else None
        last = (int(high) if high else None) if colon else first
    except ValueError:
        raise click.UsageError(f"--step takes A:B with whole numbers, not {text!r}") from None
    return first, last


def parse_since(text: str, now: datetime) -> datetime:
    """Return the moment that `2h`, `3d` or an ISO date (UTC without a zone) means.

    Raises:
        InvalidInput: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return now - timedelta(seconds=config.parse_duration(text))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
