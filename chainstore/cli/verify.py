"""`chain verify`"""

from collections.abc import Iterator
from dataclasses import asdict

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App, check_exclusive
from chainstore.cli.wording import count, printable, size
from chainstore.repository import VerifyReport

_SHOWN = 10  # commits and paths named for one damage; all are in the JSON


@cli.command("verify", examples=["chain verify", "chain verify --quick", "chain verify --read-data --json"])
@click.option("--quick", is_flag=True, help="Only log, index, small files and refs.")
@click.option("--read-data", is_flag=True, help="Read and check every byte as well.")
@click.pass_obj
def command(app: App, quick: bool, read_data: bool) -> None:
    """Prove that everything is there; by default every commit and name is read, and every chunk has its place.

    Damage is listed with the commits and paths that it hits, and the exit code is 4.
    """
    check_exclusive(quick=quick, read_data=read_data)
    with app.open(readonly=True) as repo:
        report = repo.verify("quick" if quick else "data" if read_data else "links")
    app.exit_code = exits.OK if report.ok else exits.DAMAGE
    app.out.result("chain.verify/1", {"ok": report.ok, **asdict(report)}, _lines(report))


def _lines(report: VerifyReport) -> Iterator[str]:
    for damage in report.damaged:
        yield f"damaged: {printable(damage.what)}"
        if damage.commits:
            yield f"  commits  {_some([id[:12] for id in damage.commits])}"
        if damage.paths:
            yield f"  paths    {_some(damage.paths)}"
    looked = [count(report.lines, "log line"), count(report.refs, "ref")]
    if report.level != "quick":
        looked += [count(report.commits, "commit"), count(report.pages, "page"), count(report.chunks, "chunk")]
    if report.level == "data":
        looked.append(f"{size(report.read_bytes)} read")
    yield f"{'all is well' if report.ok else count(len(report.damaged), 'damage')}: {', '.join(looked)}"


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN])) + more
