"""`chain forget`"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App, check_exclusive
from chainstore.cli.output import Output
from chainstore.cli.wording import count, moment, printable, table
from chainstore.display import some
from chainstore.errors import InvalidInput
from chainstore.policies.retention import ALL, Best, Retention
from chainstore.policies.spans import parse_span
from chainstore.policies.texts import format_retention
from chainstore.repository import ForgetLine, ForgetPlan, Repository

_SCHEMA = "chain.forget/1"
_NO_RULE = (
    "no rule is given, and the repository has no policy of its own: say what to keep, such as --keep-last 10, and "
    "--store to remember it"
)
_CALENDAR = ("hourly", "daily", "weekly", "monthly", "yearly")
_UNITS = {"hourly": "hours", "daily": "days", "weekly": "weeks", "monthly": "months", "yearly": "years"}


def _count(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return a number from 1 on, or `all`."""
    if value is None or value == "all":
        return ALL if value else None
    number = int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else 0
    if number < 1 and number != ALL:
        raise click.BadParameter(f"{value!r} is not a number from 1 on, nor `all`", context, parameter)
    return number


def _span(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Return a length of time such as `12h` or `2w`."""
    if value is None:
        return None
    try:
        span = parse_span(value.replace(" ", "").lower())
    except InvalidInput as error:
        raise click.BadParameter(f"{error}: {error.hint}" if error.hint else str(error), context, parameter) from None
    if not span:
        raise click.BadParameter(f"{value!r} is no time at all", context, parameter)
    return span


def _calendar(function: Callable[..., None]) -> Callable[..., None]:
    """Add --keep-hourly to --keep-yearly."""
    for name in reversed(_CALENDAR):
        text = f"Of each of the newest N {_UNITS[name]} with snapshots the newest one."
        function = click.option(f"--keep-{name}", callback=_count, metavar="N", help=text)(function)
    return function


@cli.command(
    "forget",
    examples=[
        "chain forget --keep-last 10 --keep-daily 7 --dry-run",
        "chain forget --keep-every-steps 1000 --keep-best 3 --metric loss --store",
        "chain forget",
        "chain forget step:1200 step:1300",
        "chain forget --undo",
    ],
    codes=exits.WRITES,
)
@click.argument("revisions", nargs=-1, metavar="[REVISION]...")
@click.option("--keep-last", callback=_count, metavar="N", help="The newest N.")
@_calendar
@click.option("--keep-within", callback=_span, metavar="TIME", help="Not TIME older than the newest: `12h`, `2w`.")
@click.option("--keep-tag", multiple=True, metavar="GLOB", help="With such a tag (every tagged one stays anyway).")
@click.option("--keep-every-steps", type=click.IntRange(min=1), metavar="N", help="Steps that are multiples of N.")
@click.option("--keep-best", callback=_count, metavar="K", help="The best K by --metric.")
@click.option("--metric", metavar="NAME", help="Metric for --keep-best.")
@click.option("--mode", type=click.Choice(["min", "max"]), help="Whether less (by default) or more of it is better.")
@click.option("--keep-first", is_flag=True, help="The oldest one.")
@click.option(
    "--group-by",
    type=click.Choice(["branch", "none"]),
    default="branch",
    show_default=True,
    help="Apply the rules to each branch, a snapshot staying if any of them keeps it; or once to all.",
)
@click.option("--store", is_flag=True, help="Remember these rules, for `chain forget` and `chain gc`.")
@click.option("--undo", is_flag=True, help="Bring back what was forgotten, or just REVISIONs, until gc has run.")
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@click.option("--unsafe-allow-remove-all", is_flag=True, help="Let rules keep nothing of a branch but what has a name.")
@click.pass_obj
def command(
    app: App,
    /,
    revisions: tuple[str, ...],
    metric: str | None,
    mode: Literal["min", "max"] | None,
    group_by: Literal["branch", "none"],
    store: bool,
    undo: bool,
    dry_run: bool,
    unsafe_allow_remove_all: bool,
    **rules: Any,
) -> None:
    """Drop the snapshots that no rule keeps, or just those of REVISIONs; the commits stay in the log, with a mark.

    A snapshot stays if any rule wants it. Days, weeks and so on are those of UTC, and only those that have snapshots
    count. Without a rule, the policy that --store or `chain config set retention` put into the repository is used.

    Never dropped: tips of branches, tagged commits, the commit that HEAD is on, and of a branch whose tip has lost its
    snapshot the newest that is there. What no branch leads to is dropped only by name.

    `chain gc` gives the space back; until then --undo brings everything back.
    """
    retention = _retention(rules, metric, mode, group_by)
    _check(revisions, retention, store, undo, dry_run, unsafe_allow_remove_all)
    with app.open(readonly=dry_run) as repo:
        if undo:
            _undo(app, repo, revisions)
            return
        if not revisions and retention is None and repo.retention is None:
            raise click.UsageError(_NO_RULE)
        plan = _plan(repo, revisions, retention, dry_run, unsafe_allow_remove_all)
        if store:
            repo.set_retention(retention)
    fields = {"dry_run": dry_run, "stored": store, **_fields(plan)}
    app.out.result(_SCHEMA, fields, _lines(app.out, plan, dry_run))
    if plan.dropped and not dry_run:
        app.out.say("`chain forget --undo` brings them back until `chain gc` runs")
    if store and retention is not None:
        app.out.say(f"from now on `chain forget` and `chain gc` use {format_retention(retention)}")


def _retention(
    rules: dict[str, Any], metric: str | None, mode: Literal["min", "max"] | None, group_by: Literal["branch", "none"]
) -> Retention | None:
    """Return the policy that the options say, or None where they say none."""
    if (rules["keep_best"] is None) != (metric is None):
        raise click.UsageError("--keep-best and --metric go together: --keep-best 3 --metric loss")
    if mode is not None and metric is None:
        raise click.UsageError("--mode says which values of a --metric are better; name one, with --keep-best")
    found = {name.removeprefix("keep_"): value for name, value in rules.items()}
    best, tags = found.pop("best"), found.pop("tag")
    if not any((*found.values(), best, tags)):
        if group_by != "branch":
            raise click.UsageError("--group-by says how rules are applied; give one, such as --keep-last 10")
        return None
    try:
        chosen = Best(metric or "", best, mode or "min") if best is not None else None
        return Retention(**found, best=chosen, tags=tags, group_by=group_by)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None


def _check(
    revisions: tuple[str, ...], retention: Retention | None, store: bool, undo: bool, dry_run: bool, allow: bool
) -> None:
    """Refuse options that contradict each other."""
    check_exclusive(undo=undo, dry_run=dry_run)
    check_exclusive(undo=undo, store=store)
    check_exclusive(undo=undo, unsafe_allow_remove_all=allow)
    check_exclusive(store=store, dry_run=dry_run)
    if retention is not None and (undo or revisions):
        what = "--undo" if undo else "a REVISION"
        raise click.UsageError(f"rules and {what} exclude each other")
    if store and retention is None:
        raise click.UsageError("--store remembers rules; give some, such as --keep-last 10")


def _plan(
    repo: Repository, revisions: tuple[str, ...], retention: Retention | None, dry_run: bool, allow: bool
) -> ForgetPlan:
    try:
        return repo.forget(retention, commits=revisions or None, dry_run=dry_run, allow_remove_all=allow)
    except InvalidInput as error:
        if retention is None:
            raise
        raise click.UsageError(f"{error}: {error.hint}" if error.hint else str(error)) from None


def _undo(app: App, repo: Repository, revisions: tuple[str, ...]) -> None:
    back = repo.unforget(revisions or None)
    said = f"{count(len(back), 'snapshot')} brought back" if back else "nothing there is forgotten"
    rows = (id.short for id in back)
    app.out.result(_SCHEMA, {"restored": [str(id) for id in back]}, [*rows, said])


def _fields(plan: ForgetPlan) -> dict[str, object]:
    lines = [
        {
            "id": str(line.commit),
            "step": line.step,
            "time": line.time.isoformat(),
            "branches": list(line.branches),
            "kept": line.kept,
            "reasons": list(line.reasons),
        }
        for line in plan.lines
    ]
    return {"policy": plan.policy, "kept": len(plan.kept), "dropped": len(plan.dropped), "commits": lines}


def _lines(out: Output, plan: ForgetPlan, dry_run: bool) -> Iterator[str]:
    if plan.lines:
        rows = table([("COMMIT", "STEP", "TIME", "BRANCHES", "", "REASONS"), *(_row(out, line) for line in plan.lines)])
        yield out.style(next(rows), bold=True)
        yield from rows
    verb = "would drop" if dry_run else "dropped"
    yield f"{verb} {len(plan.dropped):,} of {count(len(plan.lines), 'snapshot')} by {printable(plan.policy)}"


def _row(out: Output, line: ForgetLine) -> tuple[str, ...]:
    return (
        out.style(line.commit.short, "yellow"),
        "" if line.step is None else str(line.step),
        moment(line.time),
        printable(some(line.branches, 3)),
        "keep" if line.kept else out.style("drop", "red"),
        printable(some(line.reasons, 4)),
    )
