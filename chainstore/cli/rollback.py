"""`chain rollback`"""

from datetime import datetime

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App, check_exclusive
from chainstore.cli.log import parse_since


@cli.command(
    "rollback",
    examples=[
        'chain rollback --to main~3 --reason "loss is NaN"',
        'chain rollback --steps 500 --reason "spike"',
        'chain rollback trial --before 2h --reason "bad data since noon"',
    ],
    codes=exits.WRITES,
)
@click.argument("branch", required=False)
@click.option("--to", metavar="REV", help="Go back to this commit.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Go back at least N optimizer steps.")
@click.option("--before", metavar="TIME", help="Go back to the newest commit before a time: `2h` (ago), or a date.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the reflog keeps it.")
@click.pass_obj
def command(app: App, branch: str | None, to: str | None, steps: int | None, before: str | None, reason: str) -> None:
    """Put BRANCH (by default the current one) back to an earlier commit of its own.

    Nothing is lost: the tip that is left keeps a tag, abandoned/BRANCH/TIME. A commit whose snapshot was forgotten is
    passed over. To go back a number of commits instead of steps, say --to BRANCH~N.
    """
    check_exclusive(to=to, steps=steps, before=before)
    if to is None and steps is None and before is None:
        raise click.UsageError("say how far back: --to REV, --steps N or --before TIME")
    moment: datetime | None = parse_since(before, config.now()) if before is not None else None
    with app.open() as repo:
        name = branch or repo.branch_name
        if name is None:
            raise click.UsageError("HEAD is on a commit, not on a branch; name one")
        done = repo.rollback(name, to=to, steps=steps, before=moment, reason=reason)
    fields = {"branch": done.branch, "id": str(done.new), "was": str(done.old), "tag": done.tag}
    lines = [f"{done.branch} is back at {done.new.short} (was {done.old.short}, tagged {done.tag})"]
    app.out.result("chain.rollback/1", fields, lines)
