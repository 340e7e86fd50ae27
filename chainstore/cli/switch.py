"""`chain switch`"""

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App


@cli.command("switch", examples=["chain switch wider", "chain switch -c wider"], codes=exits.WRITES)
@click.argument("branch")
@click.option("-c", "--create", is_flag=True, help="Make the branch where HEAD is, if there is none of that name.")
@click.pass_obj
def command(app: App, branch: str, create: bool) -> None:
    """Make BRANCH the one that commits go to; writers that run stay on theirs."""
    with app.open() as repo:
        repo.switch(branch, create=create)
        head = repo.head
        fields = {"branch": branch, "id": str(head.id) if head else None}
        app.out.result(
            "chain.switch/1", fields, f"on {branch}" + (f" at {head.short}" if head else ", nothing committed")
        )
