"""`chain show`"""

import pprint
from collections.abc import Iterator, Mapping, Sequence

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.output import Output
from chainstore.cli.records import (
    bytes_text,
    commit_fields,
    mark_of,
    metrics_text,
    names_of_commits,
    plain_json,
    refs_text,
    step_text,
)
from chainstore.cli.wording import age, moment, printable, shape, size, table
from chainstore.errors import PathNotFound
from chainstore.lazy import Snapshot
from chainstore.model.change import MarkLine
from chainstore.model.commit import Commit
from chainstore.model.paths import Path, format_path, parse_path
from chainstore.repository import when_and_why

Row = tuple[str, str | None, tuple[int, ...] | None, int]


@cli.command("show", examples=["chain show", "chain show main~2", "chain show step:1200 model/0.weight --json"])
@click.argument("revision", default="HEAD")
@click.argument("path", required=False)
@click.pass_obj
def command(app: App, revision: str, path: str | None) -> None:
    """Show a commit and what its snapshot holds, or with PATH one tensor, value, or part of the tree.

    Without PATH, and for a part of the tree, no data is read. Where the snapshot was forgotten, it says when and by
    which policy.
    """
    with app.open(readonly=True) as repo:
        snapshot = repo.snapshot(revision)
        if path is None:
            names = names_of_commits(repo).get(snapshot.commit.id, [])
            mark = mark_of(repo, snapshot.commit)
            rows, files = (list(tree_rows(snapshot)), snapshot.files) if mark is None else ([], [])
            commit = commit_fields(snapshot.commit, names, mark)
            fields = {"commit": commit, "entries": _entries(rows), "files": files}
            app.out.result("chain.show/1", fields, _commit_lines(app.out, snapshot.commit, names, mark, rows, files))
            return
        found = find(snapshot, path)
        if isinstance(found, Snapshot):
            rows = list(tree_rows(snapshot, parse_path(path)))
            fields = {"commit": {"id": str(snapshot.commit.id)}, "path": path, "entries": _entries(rows)}
            app.out.result("chain.show/1", fields, _tree_lines(rows))
        else:
            _show_value(app, snapshot, path, found)


def find(snapshot: Snapshot, path: str) -> object:
    """Return the tensor or value at a path, or a smaller snapshot where others lie below it.

    Raises:
        PathNotFound: there is nothing.
    """
    found: object = snapshot
    keys = parse_path(path)
    for depth, key in enumerate(keys):
        if isinstance(found, Snapshot):
            found = found[key]
            continue
        try:
            found = found[key]  # type: ignore[index]
        except (LookupError, TypeError) as error:
            below = [format_path((*keys[:depth], k)) for k in found] if isinstance(found, Mapping) else []
            raise PathNotFound(path, snapshot.commit.short, below[:3]) from error
    return found


def tree_rows(snapshot: Snapshot, under: Path = ()) -> Iterator[Row]:
    """Yield path, dtype, shape and bytes of every array and value below a path; a value has no dtype and no shape.

    Cost: reads the pages of names, and no data.
    """
    texts = snapshot.keys()
    for text in texts:
        path = parse_path(text)
        if path[: len(under)] != under:
            continue
        try:
            info = snapshot.info(text)
            yield text, info.dtype, info.shape, info.nbytes
        except PathNotFound:
            nbytes = snapshot.manifest[path].nbytes
            if path or nbytes:  # the empty dict around files is not worth a line
                yield text, None, None, nbytes


def _entries(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [{"path": path, "dtype": dtype, "shape": dims, "nbytes": nbytes} for path, dtype, dims, nbytes in rows]


def _commit_lines(
    out: Output, commit: Commit, names: list[str], mark: MarkLine | None, rows: Sequence[Row], files: Sequence[str]
) -> Iterator[str]:
    yield " ".join(filter(None, (out.style(f"commit {commit.id}", "yellow"), refs_text(out, names))))
    yield from table([*_facts(commit), *_forgotten(mark)])
    if commit.message:
        yield ""
        yield from (f"    {line}" for line in printable(commit.message).splitlines())
    yield ""
    yield from _tree_lines(rows)
    if files:
        yield "files"
        yield from (f"  {printable(name)}" for name in files)


def _facts(commit: Commit) -> Iterator[tuple[str, str]]:
    yield "time", f"{moment(commit.time)} ({age(commit.time, config.now())}) by {printable(commit.author)}"
    if commit.parents:
        yield ("parent" if len(commit.parents) == 1 else "parents"), " ".join(p.short for p in commit.parents)
    if step_text(commit):
        yield "at", step_text(commit)
    if commit.metrics:
        yield "metrics", metrics_text(commit)
    if commit.meta:
        yield "meta", printable(str(dict(commit.meta)))
    yield "bytes", f"{bytes_text(commit)} new, stored in {size(commit.stats.stored_bytes)}"


def _forgotten(mark: MarkLine | None) -> Iterator[tuple[str, str]]:
    if mark is not None:
        left = "gc has taken it" if mark.swept else f"`chain forget --undo {mark.commit.short}` brings it back"
        yield "forgotten", f"{printable(when_and_why(mark))}; {left}"


def _tree_lines(rows: Sequence[Row]) -> Iterator[str]:
    cells = (
        (printable(path), dtype or "value", "" if dims is None else shape(dims), size(nbytes))
        for path, dtype, dims, nbytes in rows
    )
    return table(cells, indent="  ")


def _show_value(app: App, snapshot: Snapshot, path: str, value: object) -> None:
    fields: dict[str, object] = {"commit": {"id": str(snapshot.commit.id)}, "path": path}
    if app.door("arrays").is_array(value):
        facts = app.door("arrays").summarize(value, path)
        rows = ((name, _fact(name, fact)) for name, fact in facts.items())
        app.out.result("chain.show/1", {**fields, "array": facts}, table(rows))
    else:
        text = pprint.pformat(value, width=100, sort_dicts=False)
        app.out.result("chain.show/1", {**fields, "value": plain_json(value)}, printable(text))


def _fact(name: str, value: object) -> str:
    if name == "shape" and isinstance(value, list):
        return shape(value)
    if name == "nbytes" and isinstance(value, int):
        return size(value)
    if isinstance(value, list):
        return " ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
