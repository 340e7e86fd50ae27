"""`chain demo`"""

from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App


@cli.command("demo", examples=["chain demo", "chain demo --keep demo-run"], codes=())
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Make the repository in DIR and leave it.")
@click.pass_obj
def command(app: App, keep: Path | None) -> None:
    """Train a small model, kill it twice, and compare every bit with a run that nobody disturbed.

    Takes about half a minute and no GPU.
    """
    if app.out.json:
        raise click.UsageError("the demo tells a story; there is no JSON of it")
    app.exit_code = app.door("demo").main(keep)
