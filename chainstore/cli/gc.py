"""`chain gc`"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import count, printable, size
from chainstore.repository import GcReport, Kept

_WHY = {
    "branch": "branches lead to it",
    "tag": "tags lead to it",
    "reflog": "reflogs remember it, for 14 days",
    "reader": "somebody is reading it",
    "base": "what is kept is stored as a difference to it",
    "writer": "useless, in packs that somebody writes to",
    "scattered": "useless, in pieces too small to be worth moving what is between them",
}
_HEAD = ("STAY", "OBJECTS", "WHY")
_MOST_SHOWN = 10


@cli.command("gc", examples=["chain gc --dry-run", "chain gc", "chain gc --explain"], codes=exits.WRITES)
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be freed.")
@click.option("--explain", is_flag=True, help="Show of all bytes that stay why they do.")
@click.option("--no-forget", is_flag=True, help="Do not apply the repository's own policy first.")
@click.pass_obj
def command(app: App, dry_run: bool, explain: bool, no_forget: bool) -> None:
    """Take away what nothing leads to, and give its space back to the file system.

    First drops the snapshots that the repository's own policy drops (`chain forget --store`). What branches, tags,
    reflogs of the last 14 days and readers lead to stays, and so does whatever somebody is writing. Others may go on
    working. Killed at any moment, the next gc goes on; it works on a full disk.
    """
    app.watch_progress()
    with app.open(readonly=False) as repo:
        report = repo.gc(dry_run=dry_run, forget=not no_forget)
    app.out.result("chain.gc/1", asdict(report), _lines(report, explain))


def _lines(report: GcReport, explain: bool) -> Iterator[str]:
    if report.nothing_to_do:
        yield "nothing to do: nothing was dropped since the last gc"
    else:
        would = "would be " if report.dry_run else ""
        if report.forgotten:
            yield f"{count(report.forgotten, 'snapshot')} {would}dropped by the repository's policy"
        removed = [count(report.objects, "object")]
        removed += [count(report.commits, "commit") + " among them"] if report.commits else []
        yield f"{', '.join(removed)} {would}removed"
        if report.dry_run:
            yield f"{size(report.useless_bytes)} would be freed"
        else:
            moved = f", {size(report.moved_bytes)} moved together" if report.moved_bytes else ""
            moved += f", {size(report.recoded_bytes)} coded anew" if report.recoded_bytes else ""
            yield f"{size(report.freed_bytes)} freed, {count(report.packs_removed, 'pack')} removed{moved}"
    if explain and not report.nothing_to_do:
        yield from _table(report.kept)
    yield from (f"left alone: {printable(text)}" for text in report.left[:_MOST_SHOWN])
    if report.foreign:
        more = f" and {len(report.foreign) - _MOST_SHOWN} more" if len(report.foreign) > _MOST_SHOWN else ""
        yield f"not ours, left alone: {printable(', '.join(report.foreign[:_MOST_SHOWN]))}{more}"


def _table(stays: Sequence[Kept]) -> Iterator[str]:
    """Yield what stays, by why, and all of it."""
    every = [(kept.stored_bytes, kept.objects, _WHY[kept.why]) for kept in stays]
    every.append((sum(row[0] for row in every), sum(row[1] for row in every), "in all"))
    rows = [(size(nbytes), f"{objects:,}" if objects else "", why) for nbytes, objects, why in every]
    wide = [max(len(row[column]) for row in [*rows, _HEAD]) for column in range(2)]
    for stay, objects, why in [_HEAD, *rows]:
        yield f"{stay:>{wide[0]}}  {objects:>{wide[1]}}  {why}"
