"""`chain checkout`"""

from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.export import Export, Written, export
from chainstore.cli.formats import FOLDERS, FORMATS, SHARD_SIZE, Choice, format_of
from chainstore.cli.wording import count, size
from chainstore.ids import ObjectId
from chainstore.repository import Repository


@cli.command(
    "checkout",
    examples=[
        "chain checkout main",
        "chain checkout step:1200 -o model.safetensors",
        "chain checkout best -o out/ --format hf --shard-size 2GB --dtype bfloat16",
        "chain checkout best -o out/ --format dir --exclude 'optimizer/**' --delete --dry-run",
    ],
    codes=exits.WRITES,
)
@click.argument("revision")
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path), help="Write to OUT; HEAD stays.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default what the suffix of OUT says, else dir.")
@click.option(
    "--select", metavar="GLOB", multiple=True, help="Only these paths; `*` is one key, `**` any number (repeat)."
)
@click.option("--exclude", metavar="GLOB", multiple=True, help="Without these paths and files (repeat).")
@click.option("--dtype", metavar="TYPE", help="Type of floating-point tensors in safetensors and hf, as bfloat16.")
@click.option("--shard-size", metavar="SIZE", help=f"The most in one file of hf; {SHARD_SIZE} by default.")
@click.option("--force", is_flag=True, help="Replace files that differ, leave others in a folder alone.")
@click.option("--delete", is_flag=True, help="Replace, and delete files in the folder that the commit does not hold.")
@click.option("--dry-run", is_flag=True, help="Say what would be written and deleted, and do nothing.")
@click.pass_obj
def command(
    app: App,
    revision: str,
    output: Path | None,
    form: str | None,
    select: tuple[str, ...],
    exclude: tuple[str, ...],
    dtype: str | None,
    shard_size: str | None,
    force: bool,
    delete: bool,
    dry_run: bool,
) -> None:
    """Go to a branch or commit, or with -o write what a commit holds to files.

    \b
    torch        one file of torch.save with the whole state
    safetensors  one file with the tensors of the model (or of --select), without ties
    hf           a folder with model.safetensors, sharded with its index, and the committed files
    npz          one file with its arrays
    dir          the committed files, every array as .npy below state/, every other value in values.json

    safetensors and hf write what is below "model" unless --select says otherwise, everything where there is no "model".

    An output that is there and equal is left alone. Another one is refused before anything is written, unless --force
    or --delete says what to do with it. Nothing outside OUT is touched.
    """
    if output is None:
        if form or select or exclude or dtype or shard_size or force or delete or dry_run:
            raise click.UsageError("these options say what is written; name where with -o OUT")
        with app.open() as repo:
            _move(app, repo, revision)
        return
    form = form or format_of(output)
    _check_options(form, dtype, shard_size, force, delete)
    choice = Choice(select, exclude, dtype, shard_size or SHARD_SIZE)
    with app.open(readonly=True) as repo:
        snapshot = repo.snapshot(revision)
        done = export(app, snapshot, output, form, choice, force=force, delete=delete, dry_run=dry_run)
    fields = {"commit": str(snapshot.commit.id), "output": str(output), "format": form, "dry_run": dry_run}
    files = [file.fields() for file in done.files]
    app.out.result(
        "chain.checkout/1",
        {**fields, "files": files, "deleted": done.deleted, "foreign": done.foreign},
        _lines(done, output, dry_run),
    )


def _check_options(form: str, dtype: str | None, shard_size: str | None, force: bool, delete: bool) -> None:
    if dtype and form not in ("safetensors", "hf"):
        raise click.UsageError("--dtype is for --format safetensors and hf; others keep every type")
    if shard_size and form != "hf":
        raise click.UsageError("--shard-size is for --format hf; others write one file")
    if delete and form not in FOLDERS:
        raise click.UsageError("--delete is for folders, --format dir and hf")
    cli.check_exclusive(force=force, delete=delete)


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
    nbytes = size(sum(file.nbytes for file in written))
    same = len(done.files) - len(written)
    parts = []
    if same:
        parts.append(f"{count(same, 'equal file')} left alone")
    if done.foreign:
        parts.append(f"{count(len(done.foreign), 'other file')} left there")
    if done.deleted:
        parts.append(f"{count(len(done.deleted), 'file')} deleted")
    tail = "".join(f", {part}" for part in parts)
    gone = [f"deleted  {name}" for name in done.deleted]
    if not dry_run:
        return [*gone, f"{count(len(written), 'file')} written to {output} ({nbytes}){tail}"]
    names = [f"{_word(file)}  {file.name}  {size(file.nbytes)}" for file in done.files]
    gone = [f"would be {line}" for line in gone]
    return [*names, *gone, f"{count(len(written), 'file')} would be written to {output} ({nbytes}){tail}"]


def _word(file: Written) -> str:
    return "equal   " if file.unchanged else "replaced" if file.replaced else "new     "
