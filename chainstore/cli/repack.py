"""`chain repack`"""

from collections.abc import Iterator
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import count, printable, size
from chainstore.repository import RepackReport

_MOST_SHOWN = 10


@cli.command("repack", examples=["chain repack --dry-run", "chain repack"], codes=exits.WRITES)
@click.option("--dry-run", is_flag=True, help="Change nothing; show what it would give, which takes as long.")
@click.pass_obj
def command(app: App, dry_run: bool) -> None:
    """Store all history anew, smaller where that is possible.

    Every array of every snapshot is coded again as a difference to the one before it, with the effort of the codec
    "small"; what takes fewer bytes than before stays so. No snapshot changes. For hours in which the machine is idle:
    it takes about as long as restoring and committing everything. Others may go on working. Killed at any moment,
    what was done stays done.
    """
    app.watch_progress()
    with app.open(readonly=False) as repo:
        report = repo.repack(dry_run=dry_run)
    app.out.result("chain.repack/1", asdict(report), _lines(report))


def _lines(report: RepackReport) -> Iterator[str]:
    would = "would be " if report.dry_run else ""
    chunks, commits = count(report.chunks, "chunk"), count(report.commits, "snapshot")
    yield f"{chunks} of {commits}, {report.recoded:,} {would}coded anew"
    yield f"{size(report.before_bytes)} {'would become' if report.dry_run else 'became'} {size(report.after_bytes)}"
    if not report.dry_run:
        yield f"{size(max(0, report.freed_bytes))} freed"
    yield from (f"left alone: {printable(text)}" for text in report.left[:_MOST_SHOWN])
