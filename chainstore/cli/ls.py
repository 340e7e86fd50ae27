"""`chain ls`"""

from collections.abc import Iterator, Sequence

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.show import Row, tree_rows
from chainstore.cli.wording import printable, shape, size, table
from chainstore.errors import PathNotFound
from chainstore.lazy import Snapshot
from chainstore.model.paths import compile_glob, parse_path


@cli.command("ls", examples=["chain ls", "chain ls main~2 'model/**'", "chain ls best '**/weight' --json"])
@click.argument("revision", default="HEAD")
@click.argument("glob", required=False)
@click.pass_obj
def command(app: App, revision: str, glob: str | None) -> None:
    """List what the snapshot of REVISION (by default HEAD) holds: path, dtype, shape, bytes.

    With GLOB only what matches: `*` is one key or a piece of one, `**` any number of keys. A line of `value` is a plain
    value, one of `file` a file committed beside the state. No data is read.
    """
    wanted = compile_glob(glob) if glob is not None else None
    with app.open(readonly=True) as repo:
        snapshot = repo.snapshot(revision)
        rows = [row for row in tree_rows(snapshot) if wanted is None or wanted(parse_path(row[0]))]
        files = [name for name in snapshot.files if wanted is None or wanted(tuple(name.split("/")))]
        if glob is not None and not rows and not files:
            raise PathNotFound(glob, snapshot.commit.short)
        entries = [*_entries(rows), *_files(snapshot, files)]
        fields = {"commit": {"id": str(snapshot.commit.id)}, "entries": entries}
        app.out.result("chain.ls/1", fields, _lines(entries))


def _entries(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    for path, dtype, dims, nbytes in rows:
        kind = "array" if dtype is not None else "value"
        told = list(dims) if dims is not None else None
        yield {"path": path, "kind": kind, "dtype": dtype, "shape": told, "nbytes": nbytes}


def _files(snapshot: Snapshot, names: Sequence[str]) -> Iterator[dict[str, object]]:
    for name in names:
        nbytes, _ = snapshot.file_info(name)
        yield {"path": name, "kind": "file", "dtype": None, "shape": None, "nbytes": nbytes}


def _lines(entries: Sequence[dict[str, object]]) -> Iterator[str]:
    return table(
        (
            printable(str(entry["path"])),
            str(entry["dtype"] or entry["kind"]),
            shape(dims) if isinstance(dims := entry["shape"], list) else "",
            size(nbytes) if isinstance(nbytes := entry["nbytes"], int) else "",
        )
        for entry in entries
    )
