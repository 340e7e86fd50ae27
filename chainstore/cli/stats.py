"""`chain stats`"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate

import click

from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.output import Output
from chainstore.cli.plot import draw, ink_for
from chainstore.cli.wording import count, size
from chainstore.model.commit import Commit

_COLORS = {"stored": "green", "logical": "cyan"}


@cli.command("stats", examples=["chain stats", "chain stats --plot", "chain stats --reclaimable"])
@click.option("--plot", is_flag=True, help="Draw logical against stored bytes over the commits.")
@click.option("--reclaimable", is_flag=True, help="Also what `chain gc` would give back; reads every name.")
@click.pass_obj
def command(app: App, plot: bool, reclaimable: bool) -> None:
    """Show how much the repository holds, and how much it takes.

    With --plot the full columns are what the commits up to there are stored in, the light ones above them what their
    snapshots take in memory, each of them counted.
    """
    with app.open(readonly=True) as repo:
        stats = repo.stats(reclaimable=reclaimable)
        commits = list(repo.log(all_refs=True))[::-1] if plot else []
    smaller = stats.logical_bytes > stats.stored_bytes > 0
    saved = f" ({stats.logical_bytes / stats.stored_bytes:.1f} times less)" if smaller else ""
    lines = [
        f"{count(stats.commits, 'commit')}, {count(stats.objects, 'object')} in {count(stats.packs, 'pack')}",
        f"{size(stats.logical_bytes)} of state take {size(stats.stored_bytes)} on disk{saved}",
    ]
    if stats.reclaimable_bytes is not None:
        lines.append(f"{size(stats.reclaimable_bytes)} of it `chain gc` would give back")
    points = _points(commits)
    history = [
        {"id": str(commit.id), "step": commit.step, "logical_bytes": logical, "stored_bytes": stored}
        for commit, (logical, stored) in zip(commits, points, strict=True)
    ]
    if points and not app.out.json:
        lines += ["", *_chart(app.out, commits, points)]
    app.out.result("chain.stats/1", {**asdict(stats), **({"history": history} if plot else {})}, lines)


def _points(commits: Sequence[Commit]) -> list[tuple[int, int]]:
    """Return (logical, stored) bytes up to each commit."""
    logical = accumulate(commit.stats.raw_bytes for commit in commits)
    stored = accumulate(commit.stats.stored_bytes for commit in commits)
    return list(zip(logical, stored, strict=True))


def _chart(out: Output, commits: Sequence[Commit], points: Sequence[tuple[int, int]]) -> Iterator[str]:
    ink = ink_for(sys.stdout.encoding)
    ends = _name(commits[0]), _name(commits[-1])

    def paint(text: str, kind: str) -> str:
        return out.style(text, _COLORS[kind])

    yield from draw(points, shutil.get_terminal_size().columns, ink, paint, ends)
    logical, stored = points[-1]
    legend = (
        f"{paint(ink.stored[-1], 'stored')} stored {size(stored)}",
        f"{paint(ink.logical, 'logical')} logical {size(logical)}",
    )
    yield "  " + "   ".join(legend)


def _name(commit: Commit) -> str:
    return f"step {commit.step}" if commit.step is not None else commit.short
