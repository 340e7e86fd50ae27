"""`chain reset`"""

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App


@cli.command("reset", examples=["chain reset main~1", "chain reset step:1200 -b trial"], codes=exits.WRITES)
@click.argument("revision")
@click.option("-b", "--branch", metavar="NAME", help="Branch to move; by default the current one.")
@click.option("--expect", metavar="REV", help="Refuse unless the branch is at REV.")
@click.pass_obj
def command(app: App, revision: str, branch: str | None, expect: str | None) -> None:
    """Move a branch to REVISION.

    Where it was stays in its reflog: `chain reset NAME@{1}` takes it back.
    """
    with app.open() as repo:
        name = branch or repo.branch_name
        if name is None:
            raise click.UsageError("HEAD is on a commit, not on a branch; name one with -b")
        was = repo.reset(name, revision, expected_head=expect)
        now = repo.branches()[name]
        fields = {"branch": name, "id": str(now), "was": str(was)}
        app.out.result("chain.reset/1", fields, f"{name} is at {now.short} (was {was.short})")
