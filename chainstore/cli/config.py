"""`chain config`"""

from collections.abc import Mapping

import click

from chainstore import settings
from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import table
from chainstore.settings import Resolved

_SCHEMA = "chain.config/1"


@cli.group(
    "config",
    examples=["chain config list --show-origin", "chain config set codec small", "chain config unset threads"],
    codes=exits.WRITES,
)
@click.pass_obj
def command(app: App) -> None:
    """List, read or change settings.

    \b
    codec        how arrays are coded: auto, none, fast, small
    threads      workers of commit and checkout
    max_memory   bytes that commit and checkout may hold at once, such as 256MiB
    shadow       whether who commits differences keeps the last snapshot in memory: yes, no
    git_diff     whether managers store how the git work tree differs from HEAD: yes, no
    retention    which snapshots forget and gc keep, such as "last=5 daily=7"; only the repository's own counts
    interval     when a manager takes snapshots, such as "100 steps or 30m"; only the repository's own counts

    The first that says something decides: a flag or argument; CHAIN_CODEC, CHAIN_THREADS, CHAIN_MAX_MEMORY,
    CHAIN_SHADOW, CHAIN_GIT_DIFF; the repository's own settings, which `set` and `unset` change; the user's settings
    (config.toml); the default.
    """


@cli.command("list", examples=["chain config list --show-origin"])
@click.option("--show-origin", is_flag=True, help="Say where each value comes from.")
@click.pass_obj
def list_settings(app: App, show_origin: bool) -> None:
    """List every setting with the value in force."""
    own = _own(app)
    _print(app, [settings.resolve(name, None, own) for name in settings.KNOWN], show_origin)


@cli.command("get", examples=["chain config get codec"])
@click.argument("name")
@click.option("--show-origin", is_flag=True, help="Say where the value comes from.")
@click.pass_obj
def get(app: App, name: str, show_origin: bool) -> None:
    """Print the value of NAME that is in force."""
    settings.known(name)
    found = settings.resolve(name, None, _own(app))
    text = f"{found.value}" + (f"  ({found.origin})" if show_origin else "")
    app.out.result(_SCHEMA, {"settings": [_fields(found)]}, text)


@cli.command("set", examples=["chain config set max_memory 1GiB"], codes=exits.WRITES)
@click.argument("name")
@click.argument("value")
@click.pass_obj
def set_value(app: App, name: str, value: str) -> None:
    """Set NAME to VALUE in the repository, for everybody who uses it."""
    settings.known(name).parse(value)
    with app.open() as repo:
        repo.set_setting(name, value)
        _tell(app, name, repo.settings())


@cli.command("unset", examples=["chain config unset codec"], codes=exits.WRITES)
@click.argument("name")
@click.pass_obj
def unset(app: App, name: str) -> None:
    """Take NAME out of the repository's settings."""
    settings.known(name)
    with app.open() as repo:
        repo.set_setting(name, None)
        _tell(app, name, repo.settings())


def _own(app: App) -> Mapping[str, str]:
    """Return the settings of the repository; none where there is no repository."""
    if not app.is_in_repository():
        return {}
    with app.open(readonly=True) as repo:
        return repo.settings()


def _tell(app: App, name: str, own: Mapping[str, str]) -> None:
    """Say what is in force after a change, which need not be what was set."""
    found = settings.resolve(name, None, own)
    app.out.result(_SCHEMA, {"settings": [_fields(found)]}, f"{name} is {found.value} ({found.origin})")


def _print(app: App, found: list[Resolved], show_origin: bool) -> None:
    rows = [(each.name, str(each.value), *((each.origin,) if show_origin else ())) for each in found]
    app.out.result(_SCHEMA, {"settings": [_fields(each) for each in found]}, table(rows))


def _fields(found: Resolved) -> dict[str, object]:
    return {"name": found.name, "value": found.value, "origin": found.origin}


for _subcommand in (list_settings, get, set_value, unset):
    command.add_command(_subcommand)
