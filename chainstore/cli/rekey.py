"""`chain rekey`"""

from collections.abc import Iterator
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import count, printable, size
from chainstore.repository import RekeyReport


@cli.command(
    "rekey",
    examples=["chain rekey --reencrypt --dry-run", "chain rekey --reencrypt", "chain rekey --drop-other-keys"],
    codes=(*exits.WRITES, exits.PARTLY),
)
@click.option("--reencrypt", is_flag=True, help="Rewrite what older keys sealed, and throw those away.")
@click.option("--drop-other-keys", is_flag=True, help="Close the slots of all other keys.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be rewritten.")
@click.pass_obj
def command(app: App, reencrypt: bool, drop_other_keys: bool, dry_run: bool) -> None:
    """Make new keys for the data; what is written from here on is sealed with them.

    `chain key rotate` changes the way in and leaves the data as it is: do that when a key file changes hands. This
    changes the keys of the data themselves: do it when somebody had a key who should not read what comes (and, with
    --reencrypt, what is here). What they copied before stays readable to them. Interrupted, the same command goes on;
    it ends with 3 while something is left that could not be rewritten.
    """
    app.watch_progress()
    with app.open() as repo:
        report = repo.rekey(reencrypt=reencrypt, drop_other_keys=drop_other_keys, dry_run=dry_run)
    app.exit_code = exits.PARTLY if report.left else exits.OK
    app.out.result("chain.rekey/1", asdict(report), _lines(report, reencrypt))


def _lines(report: RekeyReport, reencrypt: bool) -> Iterator[str]:
    would = "would be " if report.dry_run else ""
    if report.resumed:
        yield f"an earlier run is gone on with: keys of generation {report.generation}"
    else:
        yield f"keys of generation {report.generation} {would}made"
    if report.keys_removed:
        yield f"{count(len(report.keys_removed), 'other key')} {would}closed: {', '.join(report.keys_removed)}"
    if not reencrypt:
        yield f"{size(report.outdated_bytes)} of records stay sealed with older keys; --reencrypt rewrites them"
    elif report.dry_run:
        yield f"{size(report.outdated_bytes)} would be rewritten"
    else:
        yield f"{size(report.rewritten_bytes)} rewritten"
        if report.complete:
            yield "older keys open nothing here any more"
    yield from (f"left: {printable(text)}" for text in report.left)
