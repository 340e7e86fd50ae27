"""`chain tag`"""

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.named import list_names


@cli.command("tag", examples=["chain tag", "chain tag best min:loss", "chain tag -d best"], codes=exits.WRITES)
@click.argument("name", required=False)
@click.argument("revision", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete NAME; its commit stays until gc takes it.")
@click.pass_obj
def command(app: App, name: str | None, revision: str | None, delete: bool) -> None:
    """List tags, give REVISION (by default HEAD) the name NAME, or delete NAME.

    A tag never moves.
    """
    if delete and (name is None or revision is not None):
        raise click.UsageError("-d takes the NAME of one tag")
    with app.open(readonly=name is None) as repo:
        if name is None:
            list_names(app.out, repo, "tag", repo.tags())
        elif delete:
            was = repo.delete_ref(name, kind="tag")
            app.out.result("chain.tag/1", {"deleted": name, "id": str(was)}, f"deleted tag {name} (was {was.short})")
        else:
            id = repo.tag(name, revision or "HEAD")
            app.out.result("chain.tag/1", {"made": name, "id": str(id)}, f"tag {name} is at {id.short}")
