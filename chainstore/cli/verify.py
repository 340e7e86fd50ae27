"""`chain verify`"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App, check_exclusive
from chainstore.cli.junit import junit_of, junit_of_error, write_junit
from chainstore.cli.wording import count, printable, size
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import Damaged
from chainstore.repository import Damage, Level, VerifyReport, grouped, heal_small_files, rebuild, verify_without_key
from chainstore.repository import open as open_repository

_SHOWN = 10  # commits and paths named for one damage; all are in the JSON
_EXAMPLES = [
    "chain verify",
    "chain verify --quick",
    "chain verify --read-data --json",
    "chain verify --read-data-subset 1/7 --junit report.xml",
    "chain verify --no-key",
    "chain verify --repair-from /backup/run/.chain --dry-run",
]


@cli.command("verify", examples=_EXAMPLES, codes=(*exits.WRITES, exits.PARTLY))
@click.option("--quick", is_flag=True, help="Only log, index, small files and refs.")
@click.option("--read-data", is_flag=True, help="Read and check every byte as well.")
@click.option(
    "--read-data-subset",
    metavar="PART",
    help="Read a part of the data: 5% of it, 1/7 (the first of seven parts, by id), or 10G.",
)
@click.option("--seed", type=int, metavar="N", help="Draw that part again as a report told.")
@click.option("--no-key", is_flag=True, help="Check only what needs no key: checksums of records, index, log.")
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Write a JUnit report for CI.")
@click.option(
    "--repair-from",
    metavar="PATH",
    help="Take what is damaged from a copy of this repository. Reads all data, unless a part of it is named.",
)
@click.option("--dry-run", is_flag=True, help="With --repair-from: only say what would be taken.")
@click.pass_obj
def command(
    app: App,
    quick: bool,
    read_data: bool,
    read_data_subset: str | None,
    seed: int | None,
    no_key: bool,
    junit: Path | None,
    repair_from: str | None,
    dry_run: bool,
) -> None:
    """Prove that everything is there; by default every commit and name is read, and every chunk has its place.

    Damage is listed with the commits and paths that it hits, and the exit code is 4. Where --repair-from healed all of
    it, the exit code is 3; what stood in the place of what was healed is kept in quarantine/.
    """
    check_exclusive(quick=quick, read_data=read_data, read_data_subset=read_data_subset, no_key=no_key)
    check_exclusive(no_key=no_key, repair_from=repair_from)
    check_exclusive(quick=quick, repair_from=repair_from)
    if dry_run and repair_from is None:
        raise click.UsageError("--dry-run says what --repair-from would do; name a copy")
    if seed is not None and read_data_subset is None:
        raise click.UsageError("--seed draws what --read-data-subset reads; name a part")
    started = time.monotonic()
    if junit is not None and not junit.absolute().parent.is_dir():
        raise click.UsageError(f"--junit {junit}: there is no such folder")
    try:
        if no_key:
            app.watch_progress()
            report = verify_without_key(app.place(), observer=app.out.observe)
        else:
            reads = read_data or read_data_subset or repair_from
            level: Level = "quick" if quick else "data" if reads else "links"
            report = _verify(app, level, read_data_subset, seed, repair_from, dry_run)
    except Damaged as error:
        if junit is not None:
            write_junit(junit, junit_of_error(str(error), time.monotonic() - started))
        raise
    if junit is not None:
        write_junit(junit, junit_of(report, time.monotonic() - started))
    app.exit_code = exits.DAMAGE if report.damaged else exits.PARTLY if report.healed else exits.OK
    app.out.result("chain.verify/1", _fields(report), _lines(report))


def _verify(
    app: App, level: Level, sample: str | None, seed: int | None, repair_from: str | None, dry_run: bool
) -> VerifyReport:
    if repair_from is None:
        with app.open(readonly=True) as repo:
            return repo.verify(level, sample=sample, seed=seed)
    app.watch_progress()
    files = heal_small_files(app.place(), repair_from, dry_run=dry_run)
    first = [Damage(f"{name} was damaged; it was written anew", check="files") for name in files]

    def repair(key: KeyProvider | None, root: Path) -> VerifyReport:
        healed = [] if dry_run else _heal_index(app, key, root)
        with open_repository(root, readonly=dry_run, key=key, observer=app.out.observe) as repo:
            report = repo.verify(level, sample=sample, seed=seed, repair_from=repair_from, dry_run=dry_run)
        report.healed = [*first, *healed, *report.healed]
        return report

    return app.with_key(repair)


def _heal_index(app: App, key: KeyProvider | None, root: Path) -> list[Damage]:
    """Make the index anew where a repository does not open for want of it; return what was healed."""
    try:
        open_repository(root, readonly=True, key=key).close()
    except Damaged as error:
        app.out.say(f"{error}; the index is made anew first")
        rebuild(root, key=key, observer=app.out.observe)
        return [Damage(f"{error}; the index was made anew", check="index")]
    return []


def _fields(report: VerifyReport) -> dict[str, object]:
    """Return the report as JSON; `asdict` would copy the lists of commits, which damages share."""

    def plain(value: object) -> object:
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, Damage):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        return value

    return {"ok": report.ok, **{field.name: plain(getattr(report, field.name)) for field in fields(report)}}


def _lines(report: VerifyReport) -> Iterator[str]:
    yield from _listed("damaged", report.damaged)
    yield from _listed("would be taken" if report.dry_run else "healed", report.healed)
    for name in report.quarantined[:_SHOWN]:
        yield f"set aside: {printable(name)}"
    if len(report.quarantined) > _SHOWN:
        yield f"set aside: {len(report.quarantined) - _SHOWN} more"
    if report.repaired_from and (report.damaged or report.healed):
        verb = "would be taken" if report.dry_run else "taken"
        source = printable(report.repaired_from)
        yield f"{count(report.taken, 'object')} ({size(report.taken_bytes)}) {verb} from {source}"
    found = [count(len(report.damaged), "damage")] if report.damaged else []
    if report.healed:
        found.append(f"{count(len(report.healed), 'damage')} healed")
    yield f"{', '.join(found) or 'all is well'}: {', '.join(_looked_at(report))}"


def _looked_at(report: VerifyReport) -> Iterator[str]:
    yield count(report.lines, "log line")
    if report.level == "records":
        yield count(report.records, "record")
    else:
        yield count(report.refs, "ref")
    if report.level in ("links", "data"):
        yield from (count(report.commits, "commit"), count(report.pages, "page"), count(report.chunks, "chunk"))
    if report.sample:
        drawn = f", seed {report.seed}" if report.seed is not None else ""
        yield f"{report.chunks_read:,} of them read ({report.sample}{drawn})"
    if report.level in ("data", "records"):
        yield f"{size(report.read_bytes)} read"


def _listed(label: str, damages: Sequence[Damage]) -> Iterator[str]:
    for group in grouped(damages):
        yield f"{label}: {printable(group.what)}"
        if group.commits:
            yield f"  commits  {_some([id[:12] for id in group.commits])}"
        if group.paths:
            yield f"  paths    {_some(group.paths)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN])) + more
