"""`chain checkout`"""

from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.export import FORMATS, Export, export
from chainstore.cli.wording import count, size
from chainstore.ids import ObjectId
from chainstore.repository import Repository


@cli.command(
    "checkout",
    examples=[
        "chain checkout main",
        "chain checkout step:1200 -o model.pt --select 'model/**'",
        "chain checkout best -o out/ --format dir --dry-run",
    ],
    codes=exits.WRITES,
)
@click.argument("revision")
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path), help="Write to OUT; HEAD stays.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default what the suffix of OUT says, else dir.")
@click.option(
    "--select", metavar="GLOB", multiple=True, help="Only these paths; `*` is one key, `**` any number (repeat)."
)
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.pass_obj
def command(
    app: App, revision: str, output: Path | None, form: str | None, select: tuple[str, ...], dry_run: bool
) -> None:
    """Go to a branch or commit, or with -o write what a commit holds to files.

    \b
    torch  one file of torch.save with the whole state
    npz    one file with its arrays
    dir    the committed files, every array as .npy below state/, every other value in values.json

    Files that are there and equal are left alone, others are replaced, and nothing outside OUT is touched.
    """
    if output is None:
        if form or select or dry_run:
            raise click.UsageError("--format, --select and --dry-run say what is written; name where with -o OUT")
        with app.open() as repo:
            _move(app, repo, revision)
        return
    with app.open(readonly=True) as repo:
        snapshot = repo.snapshot(revision)
        done = export(app, snapshot, output, form, select, dry_run=dry_run)
    fields = {"commit": str(snapshot.commit.id), "output": str(output), "dry_run": dry_run}
    app.out.result(
        "chain.checkout/1", {**fields, "files": [f.fields() for f in done.files]}, _lines(done, output, dry_run)
    )


def _move(app: App, repo: Repository, revision: str) -> None:
    id: ObjectId | None
    head = repo.head
    if revision == "HEAD" and head is not None:
        id, text = head.id, f"HEAD stays at {head.short}"
    elif revision in repo.branches() or revision == repo.branch_name:
        repo.switch(revision)
        id = repo.head.id if repo.head else None
        text = f"on {revision}" + (f" at {id.short}" if id else ", nothing committed yet")
    else:
        id = repo.detach(revision)
        text = f"HEAD is at {id.short}, on no branch; the next commit from here opens one"
    fields = {"branch": repo.branch_name, "id": str(id) if id else None}
    app.out.result("chain.checkout/1", fields, text)


def _lines(done: Export, output: Path, dry_run: bool) -> list[str]:
    written = [file for file in done.files if not file.unchanged]
    if dry_run:
        names = [f"{file.name}  {size(file.nbytes)}" for file in done.files]
        return [*names, f"{count(len(names), 'file')} would be written to {output}"]
    same = len(done.files) - len(written)
    kept = f", {count(same, 'equal file')} left alone" if same else ""
    return [f"{count(len(written), 'file')} written to {output} ({size(sum(file.nbytes for file in written))}){kept}"]
