"""`chain stats`"""

from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.wording import count, size


@cli.command("stats", examples=["chain stats"])
@click.pass_obj
def command(app: App) -> None:
    """Show how much the repository holds, and how much it takes."""
    with app.open(readonly=True) as repo:
        stats = repo.stats()
    smaller = stats.logical_bytes > stats.stored_bytes > 0
    saved = f" ({stats.logical_bytes / stats.stored_bytes:.1f} times less)" if smaller else ""
    lines = [
        f"{count(stats.commits, 'commit')}, {count(stats.objects, 'object')} in {count(stats.packs, 'pack')}",
        f"{size(stats.logical_bytes)} of state take {size(stats.stored_bytes)} on disk{saved}",
    ]
    app.out.result("chain.stats/1", asdict(stats), lines)
