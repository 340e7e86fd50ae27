"""`chain branch`"""

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.named import list_names


@cli.command(
    "branch",
    examples=["chain branch", "chain branch wider main~3", "chain branch -d wider"],
    codes=exits.WRITES,
)
@click.argument("name", required=False)
@click.argument("start", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete NAME; its commits stay until gc takes them.")
@click.pass_obj
def command(app: App, name: str | None, start: str | None, delete: bool) -> None:
    """List branches, make NAME at START (by default HEAD), or delete NAME.

    HEAD does not move: `chain switch NAME` goes there.
    """
    if delete and (name is None or start is not None):
        raise click.UsageError("-d takes the NAME of one branch")
    with app.open(readonly=name is None) as repo:
        if name is None:
            list_names(app.out, repo, "branch", repo.branches())
        elif delete:
            was = repo.delete_ref(name, kind="branch")
            app.out.result(
                "chain.branch/1", {"deleted": name, "id": str(was)}, f"deleted branch {name} (was {was.short})"
            )
        else:
            id = repo.branch(name, start or "HEAD")
            app.out.result("chain.branch/1", {"made": name, "id": str(id)}, f"branch {name} is at {id.short}")
