"""`chain merge-base`"""

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.records import commit_fields, names_of_commits, refs_text, step_text
from chainstore.cli.wording import first_line
from chainstore.errors import RevisionNotFound


@cli.command("merge-base", examples=["chain merge-base main wider", "chain merge-base main wider --json"])
@click.argument("a")
@click.argument("b")
@click.pass_obj
def command(app: App, a: str, b: str) -> None:
    """Print the newest commit that both A and B descend from; ends with 1 where there is none."""
    with app.open(readonly=True) as repo:
        commit = repo.merge_base(a, b)
        if commit is None:
            raise RevisionNotFound(f"{a}...{b}", why="they have no commit in common")
        names = names_of_commits(repo).get(commit.id, [])
        parts = (
            app.out.style(commit.short, "yellow"),
            refs_text(app.out, names),
            step_text(commit),
            first_line(commit.message),
        )
        app.out.result("chain.merge-base/1", {"commit": commit_fields(commit, names)}, "  ".join(filter(None, parts)))
