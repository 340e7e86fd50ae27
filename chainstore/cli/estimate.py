"""`chain estimate`"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.sources import Source, find_sources, load, load_readers
from chainstore.cli.wording import count, duration, size, table
from chainstore.crypto.keys import generate_key_file
from chainstore.errors import StoreFull
from chainstore.integrations.kinds import KINDS
from chainstore.model.commit import Stats
from chainstore.repository import CODECS, Repository, survey
from chainstore.repository import init as make_repository

_ROOM_BYTES = 64 << 20  # what a repository takes besides what is committed to it


@dataclass(frozen=True, slots=True)
class _Row:
    """What one commit took: its numbers, and seconds with reading the file."""

    source: Source
    step: int | None
    stats: Stats
    seconds: float

    def fields(self) -> dict[str, object]:
        return {
            "path": str(self.source.path),
            "kind": self.source.kind,
            "step": self.step,
            "raw_bytes": self.stats.raw_bytes,
            "new_bytes": self.stats.new_bytes,
            "stored_bytes": self.stats.stored_bytes,
            "ratio": _ratio(self.stats.raw_bytes, self.stats.stored_bytes),
            "seconds": self.seconds,
        }


@cli.command(
    "estimate",
    examples=["chain estimate ckpt-*.pt", r"chain estimate run/step_*/ --step-from-name 'step_(\d+)' --tmp scratch"],
    codes=(exits.STORAGE,),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True, help="What they are.")
@click.option("--as-file", is_flag=True, help="Take every FILE as bytes, whatever is in it.")
@click.option(
    "--step-from-name", metavar="REGEX", help=r"Take the step from the path, as 'step_(\d+)', and sort by it."
)
@click.option("--codec", type=click.Choice(CODECS), default="auto", show_default=True, help="How arrays are coded.")
@click.option("--tmp", metavar="DIR", type=click.Path(path_type=Path), help="Where to work; else TMPDIR.")
@click.pass_obj
def command(
    app: App,
    files: tuple[Path, ...],
    kind: str,
    as_file: bool,
    step_from_name: str | None,
    codec: str,
    tmp: Path | None,
) -> None:
    """Show what a chain of these checkpoints would take, commit by commit, and make nothing.

    They are committed one after the other to a repository in a temporary folder, encrypted with a key that is thrown
    away, and the folder is removed: the numbers are those of `chain import`, not a guess. FILE is all that `chain
    import` takes.
    """
    if as_file and kind != "auto":
        raise click.UsageError("--as-file and --kind exclude each other")
    sources = find_sources(files, kind, as_file=as_file, step_pattern=step_from_name)
    place = tmp if tmp is not None else Path(tempfile.gettempdir())
    _check_room(app, place, sum(source.nbytes for source in sources) + _ROOM_BYTES)
    app.watch_progress()
    load_readers(app, sources)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="chain-estimate-", dir=place) as folder:
        key = generate_key_file(Path(folder) / "key", os.urandom)
        with make_repository(Path(folder) / "repository", key=key, codec=codec, observer=app.out.observe) as repo:
            rows = [_measure(app, repo, source) for source in sources]
            on_disk = repo.stats().stored_bytes
    seconds = time.perf_counter() - started
    total = {
        "raw_bytes": sum(row.stats.raw_bytes for row in rows),
        "new_bytes": sum(row.stats.new_bytes for row in rows),
        "stored_bytes": sum(row.stats.stored_bytes for row in rows),
    }
    total_fields = {**total, "ratio": _ratio(total["raw_bytes"], total["stored_bytes"]), "on_disk_bytes": on_disk}
    fields = {"commits": [row.fields() for row in rows], "total": {**total_fields, "seconds": seconds}}
    app.out.result("chain.estimate/1", fields, _lines(rows, total, on_disk, seconds))


def _check_room(app: App, place: Path, needed: int) -> None:
    """Say how much room is needed, and refuse where there is less.

    Raises:
        StoreFull: there is not enough room.
    """
    if not place.is_dir():
        raise click.UsageError(f"--tmp {place} is no folder")
    free = survey(place).free_bytes
    if free < needed:
        raise StoreFull(
            f"up to {size(needed)} are needed in {place} for the time of the estimate, where {size(free)} are free",
            hint="--tmp DIR or TMPDIR names another folder",
        )
    app.out.say(f"working in {place}: up to {size(needed)} for the time of the estimate, {size(free)} are free")


def _measure(app: App, repo: Repository, source: Source) -> _Row:
    started = time.perf_counter()
    loaded = load(app, source)
    for notice in loaded.notices:
        app.out.say(f"{source.path}: {notice}")
    commit = repo.commit(loaded.state, step=loaded.step, files=dict(loaded.files))
    return _Row(source, loaded.step, commit.stats, time.perf_counter() - started)


def _ratio(raw: int, stored: int) -> float:
    return round(raw / stored, 3) if stored else 0.0


def _lines(rows: list[_Row], total: dict[str, int], on_disk: int, seconds: float) -> list[str]:
    heads = ("file", "raw", "new", "stored", "ratio", "time")
    cells = [_cells(row.source.path.absolute().name, row.stats, row.seconds) for row in rows]
    whole = _cells(
        f"{count(len(rows), 'commit')}",
        Stats(raw_bytes=total["raw_bytes"], new_bytes=total["new_bytes"], stored_bytes=total["stored_bytes"]),
        seconds,
    )
    return [*table([heads, *cells, whole]), f"{size(on_disk)} on disk, with index and log; nothing was kept"]


def _cells(name: str, stats: Stats, seconds: float) -> tuple[str, ...]:
    ratio = f"{stats.raw_bytes / stats.stored_bytes:.2f}" if stats.stored_bytes else "-"
    return (name, size(stats.raw_bytes), size(stats.new_bytes), size(stats.stored_bytes), ratio, duration(seconds))
