"""`chain import`"""

import re
from dataclasses import dataclass
from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.records import commit_fields, metric_fields, step_text
from chainstore.cli.sources import AS_FILE, Loaded, Source, find_sources, load
from chainstore.cli.wording import count, duration, size, table
from chainstore.errors import ChainError, NothingToCommit
from chainstore.integrations.kinds import KINDS
from chainstore.model.commit import Commit
from chainstore.repository import Repository

_FIELD = re.compile(r"\{(\w*)\}")
_FIELDS = ("name", "stem", "path", "kind", "step")


@dataclass(frozen=True, slots=True)
class _Done:
    """One checkpoint: its commit, or None where it equals the tip."""

    source: Source
    commit: Commit | None

    def fields(self) -> dict[str, object]:
        commit = commit_fields(self.commit) if self.commit is not None else None
        return {"path": str(self.source.path), "kind": self.source.kind, "commit": commit}


@cli.command(
    "import",
    examples=[
        "chain import model.pt checkpoint-500/ weights.safetensors",
        r"chain import runs/step_*.pt --step-from-name 'step_(\d+)' -b old-run",
        "chain import dcp-folder/ --dry-run",
    ],
    codes=exits.WRITES,
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(["auto", *KINDS]), default="auto", show_default=True, help="What they are.")
@click.option("--as-file", is_flag=True, help="Store every PATH as bytes, whatever is in it.")
@click.option(
    "--step-from-name", metavar="REGEX", help=r"Take the step from the path, as 'step_(\d+)', and sort by it."
)
@click.option("-b", "--branch", metavar="NAME", help="Branch to commit to; made if it does not exist.")
@click.option(
    "-m",
    "--message",
    default="import {name}",
    show_default=True,
    help="May hold {name} {stem} {path} {kind} {step}.",
)
@click.option("--dry-run", is_flag=True, help="Read everything, say what would be committed, and commit nothing.")
@click.pass_obj
def command(
    app: App,
    paths: tuple[Path, ...],
    kind: str,
    as_file: bool,
    step_from_name: str | None,
    branch: str | None,
    message: str,
    dry_run: bool,
) -> None:
    """Commit checkpoints that other tools made, one commit each, in the order given or in that of their steps.

    \b
    torch        .pt .pth .bin: files of torch.save, read with weights_only=True
    safetensors  .safetensors
    dcp          folders of torch.distributed.checkpoint, read without a process group
    hf           Hugging Face folders: weights, optimizer, scheduler, step and metrics; other files as files
    numpy        .npy .npz

    What a PATH is, is told from its content. No code in it is ever run: what would need that is refused, and --as-file
    stores it as bytes. The step comes from --step-from-name, else from trainer_state.json, else from a "step" or
    "global_step" in the checkpoint. What equals the tip is skipped.
    """
    _check_template(message)
    if as_file and kind != "auto":
        raise click.UsageError("--as-file and --kind exclude each other")
    app.place()  # says that there is no repository before big files are read
    sources = find_sources(paths, kind, as_file=as_file, step_pattern=step_from_name)
    if dry_run:
        _say_plan(app, sources, message)
        return
    with app.open() as repo:
        done = _import_all(app, repo, sources, message, branch)
        where = branch or repo.branch_name or "HEAD"
    skipped = sum(each.commit is None for each in done)
    fields = {"branch": where, "dry_run": False, "imported": [each.fields() for each in done], "skipped": skipped}
    app.out.result("chain.import/1", fields, _lines(where, done, skipped))


def _import_all(app: App, repo: Repository, sources: list[Source], message: str, branch: str | None) -> list[_Done]:
    done: list[_Done] = []
    for source in sources:
        if len(sources) > 1 and app.out.progress is not None:
            app.out.say(f"{len(done) + 1} of {len(sources)}: {source.path}")
        try:
            done.append(_Done(source, _import(app, repo, source, message, branch)))
        except ChainError as error:
            if any(each.commit for each in done):
                went = count(sum(each.commit is not None for each in done), "checkpoint")
                error.hint = f"{error.hint}; {went} before it stay committed".removeprefix("; ")
            raise
        app.so_far = f"{len(done)} of {count(len(sources), 'checkpoint')} went in before, and stay"
    return done


def _import(app: App, repo: Repository, source: Source, message: str, branch: str | None) -> Commit | None:
    loaded = load(app, source)
    for notice in loaded.notices:
        app.out.say(f"{source.path}: {notice}")
    try:
        return repo.commit(
            loaded.state,
            _filled(message, source, loaded.step),
            branch=branch,
            step=loaded.step,
            epoch=loaded.epoch,
            metrics=loaded.metrics,
            meta={"imported": {"from": source.path.absolute().name, "kind": source.kind}},
            files=dict(loaded.files),
            allow_empty=False,
        )
    except NothingToCommit:
        app.out.say(f"{source.path} equals the tip and is skipped")
        return None


def _check_template(message: str) -> None:
    unknown = [name for name in _FIELD.findall(message) if name not in _FIELDS]
    if unknown:
        raise click.UsageError(
            f"--message knows no {{{unknown[0]}}}; it knows {' '.join(f'{{{name}}}' for name in _FIELDS)}"
        )


def _filled(message: str, source: Source, step: int | None) -> str:
    path = source.path.absolute()
    values = {
        "name": path.name,
        "stem": path.stem,
        "path": str(source.path),
        "kind": source.kind,
        "step": "" if step is None else str(step),
    }
    return _FIELD.sub(lambda found: values[found[1]], message)


def _say_plan(app: App, sources: list[Source], message: str) -> None:
    planned = [(source, load(app, source)) for source in sources]
    fields = [_planned_fields(source, loaded, message) for source, loaded in planned]
    rows = [
        (
            source.kind,
            f"step {loaded.step}" if loaded.step is not None else "no step",
            size(source.nbytes),
            count(len(loaded.files), "file") if loaded.files else "",
            str(source.path),
        )
        for source, loaded in planned
    ]
    for source, loaded in planned:
        for notice in loaded.notices:
            app.out.say(f"{source.path}: {notice}")
    lines = [*table(rows), f"{count(len(planned), 'commit')} would be made"]
    app.out.result("chain.import/1", {"branch": None, "dry_run": True, "imported": fields, "skipped": 0}, lines)


def _planned_fields(source: Source, loaded: Loaded, message: str) -> dict[str, object]:
    return {
        "path": str(source.path),
        "kind": source.kind,
        "commit": None,
        "step": loaded.step,
        **metric_fields(loaded.metrics),
        "files": sorted(loaded.files),
        "message": _filled(message, source, loaded.step),
        "nbytes": source.nbytes,
    }


def _lines(where: str, done: list[_Done], skipped: int) -> list[str]:
    commits = [each.commit for each in done if each.commit is not None]
    rows = [
        (
            each.commit.short,
            step_text(each.commit),
            each.source.kind if each.source.kind != AS_FILE else "as file",
            f"{size(each.commit.stats.new_bytes)} new of {size(each.commit.stats.raw_bytes)}",
            str(each.source.path),
        )
        for each in done
        if each.commit is not None
    ]
    raw, stored = sum(c.stats.raw_bytes for c in commits), sum(c.stats.stored_bytes for c in commits)
    seconds = sum(c.stats.seconds or 0.0 for c in commits)
    told = f"{count(len(commits), 'commit')} on {where}: {size(raw)}, stored in {size(stored)}, {duration(seconds)}"
    return [*table(rows), told + (f"; {skipped} skipped" if skipped else "")]
