"""`chain rebuild-index`"""

from collections.abc import Iterator
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import count, printable
from chainstore.repository import RebuildReport, rebuild


@cli.command(
    "rebuild-index",
    examples=["chain rebuild-index", "chain rebuild-index --take-over"],
    codes=(*exits.WRITES, exits.PARTLY),
)
@click.option("--take-over", is_flag=True, help="Write from this machine from now on, in place of the one that did.")
@click.pass_obj
def command(app: App, take_over: bool) -> None:
    """Make the index anew from the log and the packs, and heal the log from the old index.

    Works on a repository that cannot be opened. Ends with 3 if something stays damaged, with 4 if commits that were
    acknowledged are gone.

    On a network disk one machine at a time writes, the one that has the index. Where locks are not seen by all
    machines, --take-over makes this one it: see first that nothing writes there any more.
    """
    app.watch_progress()
    report: RebuildReport = app.with_key(
        lambda key, root: rebuild(root, key=key, index_dir=app.index_dir, take_over=take_over, observer=app.out.observe)
    )
    app.exit_code = exits.DAMAGE if report.lost_lines else exits.PARTLY if report.problems else exits.OK
    app.out.result("chain.rebuild-index/1", asdict(report), _lines(report))


def _lines(report: RebuildReport) -> Iterator[str]:
    yield f"{count(report.lines, 'log line')}, {count(report.objects, 'object')}, {count(report.packs, 'pack')}"
    if report.log_healed:
        yield "the log had lost lines; they were restored from the old index"
    if report.lost_lines:
        yield "lines that were acknowledged are in neither log nor index: what they committed is gone"
    for ref, (old, new) in report.moved.items():
        yield f"{ref} went back from {old[:12]} to {new[:12] if new else 'nothing'}"
    yield from (f"damaged: {printable(problem)}" for problem in report.problems)
