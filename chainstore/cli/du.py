"""`chain du`"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.output import Output
from chainstore.cli.wording import printable, size, table
from chainstore.repository import Usage

_WORDS = {"commit": "commits", "tree": "names", "chunk": "arrays, values, files"}


@cli.command("du", examples=["chain du", "chain du main -n 10", "chain du --branches", "chain du --reclaimable"])
@click.argument("revision", required=False)
@click.option(
    "-n", "--max-count", type=click.IntRange(min=1), default=1, show_default=True, help="Sum up the newest N snapshots."
)
@click.option("--branches", is_flag=True, help="By branch, all its snapshots; instead of by path.")
@click.option("--reclaimable", is_flag=True, help="Also what `chain gc` would give back; reads every name.")
@click.pass_obj
def command(app: App, revision: str | None, max_count: int, branches: bool, reclaimable: bool) -> None:
    """Show where the bytes are: by path in the newest snapshots of REVISION (by default HEAD), and by kind of object.

    \b
    logical   what the snapshots take in memory, each of them counted
    stored    the records that hold them, each counted once, headers and encryption included
    own       (--branches) of it, what no other branch needs

    A chunk that several paths need counts for the first of them, one that is stored as a difference with what it takes
    itself. Log, index and unused space are not in it: `chain stats` shows what the directory takes.
    """
    if branches and (revision or max_count != 1):
        raise click.UsageError("--branches takes every snapshot of every branch; leave REVISION and -n out")
    with app.open(readonly=True) as repo:
        usage = repo.usage(revision, max_count=max_count, branches=branches, reclaimable=reclaimable)
    app.out.result("chain.du/1", {**asdict(usage), "snapshots": len(usage.commits)}, _lines(app.out, usage, branches))


def _lines(out: Output, usage: Usage, branches: bool) -> Iterator[str]:
    kinds = [(_WORDS[kind.kind], kind.logical_bytes, kind.stored_bytes) for kind in usage.kinds]
    if branches:
        head = ("BRANCH", "SNAPSHOTS", "LOGICAL", "STORED", "OWN")
        rows = [
            (b.branch, f"{b.commits:,}", size(b.logical_bytes), size(b.stored_bytes), size(b.own_bytes))
            for b in usage.branches
        ]
        yield from _table(out, head, rows)
    else:
        paths = [(printable(p.path), p.logical_bytes, p.stored_bytes) for p in usage.paths]
        yield from _table(out, ("PATH", "LOGICAL", "STORED"), [*map(_row, paths), _sum(paths)])
    yield ""
    yield from _table(out, ("KIND", "LOGICAL", "STORED"), [*map(_row, kinds), _sum(kinds)])
    if usage.reclaimable_bytes is not None:
        yield ""
        yield f"{size(usage.reclaimable_bytes)} of packs `chain gc` would give back"


def _row(row: tuple[str, int, int]) -> tuple[str, ...]:
    name, logical, stored = row
    return name, size(logical), size(stored)


def _sum(rows: Sequence[tuple[str, int, int]]) -> tuple[str, ...]:
    return _row(("total", sum(row[1] for row in rows), sum(row[2] for row in rows)))


def _table(out: Output, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    lines = table([head, *rows])
    yield out.style(next(lines), bold=True)
    yield from lines
