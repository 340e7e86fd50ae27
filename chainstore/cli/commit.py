"""`chain commit`"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.records import commit_fields, step_text
from chainstore.cli.wording import duration, size
from chainstore.errors import InvalidInput, NothingToCommit
from chainstore.model.commit import Commit

READERS = {  # suffix -> door and function that read such a file
    ".pt": ("files", "read_torch"),
    ".pth": ("files", "read_torch"),
    ".bin": ("files", "read_torch"),
    ".ckpt": ("files", "read_torch"),
    ".npy": ("arrays", "read_arrays"),
    ".npz": ("arrays", "read_arrays"),
    ".safetensors": ("safetensors", "read_safetensors"),
}


def metric(text: str) -> tuple[str, float]:
    """Return name and number of `loss=1.2`."""
    name, equals, number = text.partition("=")
    try:
        if name and equals:
            return name, float(number)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not NAME=NUMBER")


@cli.command(
    "commit",
    examples=[
        'chain commit model.pt -m "warmed up" --step 1200 --metric loss=1.84',
        "chain commit model.pt optimizer.pt -b trial --tag before-decay",
        "chain commit --as-file checkpoint/ train.yaml",
    ],
    codes=exits.WRITES,
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, path_type=Path))
@click.option("-m", "--message", default="", help="What is worth remembering.")
@click.option("--step", type=int, help="Completed optimizer steps.")
@click.option("--epoch", type=int, help="Epoch.")
@click.option(
    "--metric", "metrics", type=metric, metavar="NAME=NUMBER", multiple=True, help="A number to find it by (repeat)."
)
@click.option("-b", "--branch", metavar="NAME", help="Branch to commit to; made if it does not exist.")
@click.option("--tag", "tags", metavar="NAME", multiple=True, help="Name for this commit (repeat).")
@click.option("--as-file", is_flag=True, help="Store every FILE as bytes, whatever is in it.")
@click.option("--allow-empty", is_flag=True, help="Commit even if nothing changed.")
@click.pass_obj
def command(
    app: App,
    files: tuple[Path, ...],
    message: str,
    step: int | None,
    epoch: int | None,
    metrics: tuple[tuple[str, float], ...],
    branch: str | None,
    tags: tuple[str, ...],
    as_file: bool,
    allow_empty: bool,
) -> None:
    """Commit checkpoint files; durable when it returns.

    Tensors are taken out of .pt, .pth, .bin, .ckpt, .safetensors, .npz and .npy files; the state of several such files
    is a dict by their names without suffix. Folders are stored file by file.
    """
    app.place()  # says that there is no repository before a big file is read
    stored = [path for path in files if as_file or path.is_dir()]
    state = read_state(app, [path for path in files if path not in stored])
    with app.open() as repo:
        try:
            commit = repo.commit(
                state,
                message,
                step=step,
                epoch=epoch,
                metrics=dict(metrics),
                branch=branch,
                tags=tags,
                files=dict(named_files(stored)),
                allow_empty=allow_empty,
            )
        except NothingToCommit as error:
            error.hint = "--allow-empty commits it anyway"
            raise
        where = branch or repo.branch_name or "HEAD"
    seconds = commit.stats.seconds or 0.0
    fields = {"branch": where, "commit": commit_fields(commit), "seconds": seconds}
    app.out.result("chain.commit/1", fields, _lines(where, commit, seconds))


def _lines(where: str, commit: Commit, seconds: float) -> list[str]:
    stats = commit.stats
    head = "  ".join(filter(None, (f"[{where} {commit.short}]", step_text(commit), commit.message)))
    return [
        head,
        f"  {size(stats.new_bytes)} new of {size(stats.raw_bytes)}, stored in {size(stats.stored_bytes)}, "
        f"{duration(seconds)}",
    ]


def read_state(app: App, paths: Sequence[Path]) -> object:
    """Return the state that files hold: of one its content, of several a dict by stem, of none an empty dict.

    Raises:
        InvalidInput: a file is of no kind that can be read, or two have the same stem.
    """
    states: dict[str, object] = {}
    for path in paths:
        if path.stem in states:
            raise InvalidInput(
                f"two files would both be {path.stem!r} in the state", hint="rename one, or commit them one by one"
            )
        states[path.stem] = _read(app, path)
    return next(iter(states.values())) if len(paths) == 1 else states


def _read(app: App, path: Path) -> object:
    if path.suffix not in READERS:
        raise InvalidInput(
            f"{path}: no tensors are known in {path.suffix or 'files without suffix'}; known are {', '.join(READERS)}",
            hint=f"store it as it is: `chain commit --as-file {path}`",
        )
    door, function = READERS[path.suffix]
    return getattr(app.door(door), function)(path)


def named_files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name in the snapshot and place of every file: `ckpt/a/b.json` for a folder `runs/ckpt`, else its own name.

    Links to folders are not followed.

    Raises:
        InvalidInput: two files would have the same name.
    """
    seen: set[str] = set()
    for path in paths:
        for name, file in _walk(path):
            if name in seen:
                raise InvalidInput(f"two files would both be {name!r} in the snapshot", hint="commit them one by one")
            seen.add(name)
            yield name, file


def _walk(path: Path) -> Iterator[tuple[str, Path]]:
    base = path.absolute()
    base = base.resolve() if base.name in ("", "..") else base
    if not path.is_dir():
        yield base.name, path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            yield (Path(base.name) / file.relative_to(path)).as_posix(), file
