"""`chain reflog`"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli.app import App
from chainstore.cli.wording import age, first_line, table
from chainstore.ids import ObjectId
from chainstore.model.change import ReflogLine, Target


@cli.command("reflog", examples=["chain reflog", "chain reflog trial -n 5"])
@click.argument("name", default="HEAD")
@click.option("-n", "--max-count", type=click.IntRange(min=1), metavar="N", help="Stop after N moves.")
@click.pass_obj
def command(app: App, name: str, max_count: int | None) -> None:
    """List where a branch or tag has been, newest first; HEAD means the current branch.

    The number is what `NAME@{1}` takes.
    """
    with app.open(readonly=True) as repo:
        moves = list(islice(repo.reflog(name), max_count))
        fields = {"ref": name, "moves": [_fields(number, move) for number, move in enumerate(moves)]}
        app.out.result("chain.reflog/1", fields, table(_rows(name, moves)))


def _rows(name: str, moves: Sequence[ReflogLine]) -> Iterator[Sequence[str]]:
    now = config.now()
    for number, move in enumerate(moves):
        yield f"{name}@{{{number}}}", _target(move.new), age(_time(move), now), first_line(move.reason)


def _fields(number: int, move: ReflogLine) -> dict[str, object]:
    ids = {"old": str(move.old) if move.old else None, "new": str(move.new) if move.new else None}
    return {"number": number, **ids, "time": _time(move).isoformat(), "reason": move.reason}


def _target(target: Target) -> str:
    return target.short if isinstance(target, ObjectId) else target or "gone"


def _time(move: ReflogLine) -> datetime:
    return datetime.fromtimestamp(move.time_us / 1e6, UTC)
