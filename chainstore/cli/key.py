"""`chain key`"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from chainstore import config
from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.wording import printable, table
from chainstore.crypto.keyfile import KeyFile, export_key, generate_key_file
from chainstore.crypto.keys import KeyCommand, KeyProvider
from chainstore.errors import InvalidInput, KeyRequired, NotFound
from chainstore.repository import KeySlot, Repository

F = TypeVar("F", bound=Callable[..., object])


@cli.group(
    "key",
    examples=["chain key list", "chain key add --new-passphrase --label ada", "chain key export -o backup.key"],
    codes=exits.WRITES,
)
@click.pass_obj
def command(app: App) -> None:
    """List, add, remove, rotate or export the keys that open the repository.

    Each slot holds the repository's own keys, wrapped so that one key opens them; adding, removing and rotating keys
    leaves the data as it is. Who had a key and kept a copy of the file `keyring` can still read the data wherever they
    find it.
    """


def _new_key_options(function: F) -> F:
    for option in (
        click.option("--label", default="", metavar="TEXT", help="What to call it; lies in the clear."),
        click.option("--new-key-command", metavar="COMMAND", help="Command that prints the new key."),
        click.option("--new-passphrase", is_flag=True, help="Ask for the new passphrase."),
        click.option("--new-key-file", metavar="PATH", help="File with the new key; made if it does not exist."),
    ):
        function = option(function)
    return function


@cli.command("list", examples=["chain key list", "chain key list --json"])
@click.pass_obj
def list_keys(app: App) -> None:
    """List what opens the repository; the star marks what opened it now."""
    with app.open(readonly=True) as repo:
        slots = repo.list_keys()
        origin = repo.key_origin
    rows = [("* " if s.opened else "  ") + s.id for s in slots]
    lines = table(
        [(row, s.kind, printable(s.label), origin if s.opened else "") for row, s in zip(rows, slots, strict=True)]
    )
    app.out.result("chain.key/1", {"keys": [_fields(slot) for slot in slots]}, lines)


@cli.command(
    "add", examples=["chain key add --new-key-file team.key", "chain key add --new-passphrase"], codes=exits.WRITES
)
@_new_key_options
@click.pass_obj
def add(app: App, new_key_file: str | None, new_passphrase: bool, new_key_command: str | None, label: str) -> None:
    """Let one more key open the repository."""
    with app.open() as repo:
        provider = _new_key(app, repo, new_key_file, new_passphrase, new_key_command)
        id = repo.add_key(provider, label=label)
    app.out.result("chain.key/1", {"added": id}, f"{provider.id} opens it too (slot {id})")
    _tell_how_to_use(app, provider)


@cli.command("remove", examples=["chain key remove 1f0c"], codes=exits.WRITES)
@click.argument("slot")
@click.option("--force", is_flag=True, help="Even if it is the key that is in use now.")
@click.pass_obj
def remove(app: App, slot: str, force: bool) -> None:
    """Close the key slot SLOT, named as `chain key list` does; its first digits are enough."""
    with app.open() as repo:
        found = _named(repo.list_keys(), slot)
        if found.opened and not force and len(repo.list_keys()) > 1:
            raise InvalidInput(
                f"slot {found.id} is the key you use now",
                hint="--force removes it; make sure that you have another that opens the repository",
            )
        repo.remove_key(found.id)
    app.out.result("chain.key/1", {"removed": found.id}, f"slot {found.id} is closed")


@cli.command(
    "rotate",
    examples=["chain key rotate --new-passphrase", "chain key rotate --new-key-file new.key"],
    codes=exits.WRITES,
)
@_new_key_options
@click.pass_obj
def rotate(app: App, new_key_file: str | None, new_passphrase: bool, new_key_command: str | None, label: str) -> None:
    """Put a new key in the place of the one that is in use now.

    Only the way in changes, the data stays as it is.
    """
    with app.open() as repo:
        provider = _new_key(app, repo, new_key_file, new_passphrase, new_key_command)
        old = next(slot for slot in repo.list_keys() if slot.opened)
        id = repo.rotate_key(provider, label=label or old.label)
    lines = [f"{provider.id} opens it from now on (slot {id}), the key before does not (slot {old.id})"]
    app.out.result("chain.key/1", {"added": id, "removed": old.id}, lines)
    _tell_how_to_use(app, provider)


@cli.command("export", examples=["chain key export", "chain key export -o /media/usb/chain.key"])
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to this new file (0600).")
@click.pass_obj
def export(app: App, output: Path | None) -> None:
    """Print the key that is in use as 64 hexadecimal digits, to keep a copy of it elsewhere.

    Outside of a repository it is your key for all of them. Whoever has it can read the data.
    """
    file = _key_file_in_use(app)
    digits = export_key(file)
    fields: dict[str, object] = {"from": str(file.path), "key": digits}
    lines = [digits]
    if output is not None:
        _write_new(output, digits)
        fields, lines = {"from": str(file.path), "output": str(output)}, [f"{file.path} was copied to {output}"]
    if file.path == config.user_key_path():
        config.note_key_exported()
    app.out.result("chain.key/1", fields, lines)


def _new_key(
    app: App, repo: Repository, key_file: str | None, passphrase: bool, key_command: str | None
) -> KeyProvider:
    given = [name for name, value in (("file", key_file), ("pass", passphrase), ("command", key_command)) if value]
    if len(given) != 1:
        raise click.UsageError("name one new key: --new-key-file, --new-passphrase or --new-key-command")
    repo.list_keys()  # says that it is not encrypted before anybody thinks of a passphrase
    if key_command:
        return KeyCommand(key_command)
    if passphrase:
        if not sys.stdin.isatty():
            raise KeyRequired("there is no terminal to ask for a passphrase on", hint="use --new-key-file")
        return app.ask_passphrase("New passphrase", twice=True)
    path = Path(key_file or "").expanduser().absolute()
    if path.exists():
        return KeyFile(path)
    app.out.say(f"{path} is made: keep a copy of it elsewhere, without it nothing can be read")
    return generate_key_file(path)


def _tell_how_to_use(app: App, provider: KeyProvider) -> None:
    """Say how a key is named that chain does not find by itself."""
    if isinstance(provider, KeyFile) and provider.path != config.user_key_path():
        app.out.say(f"name it with --key-file {provider.path} or CHAIN_KEY_FILE")
    elif isinstance(provider, KeyCommand):
        app.out.say("name it with --key-command or CHAIN_KEY_COMMAND")


def _named(slots: tuple[KeySlot, ...], name: str) -> KeySlot:
    found = [slot for slot in slots if slot.id.startswith(name)]
    if len(found) != 1 or not name:
        why = f"{len(found)} key slots start with {name!r}" if found else f"no key slot {name!r}"
        raise NotFound(why, hint=f"there are: {', '.join(slot.id for slot in slots)}")
    return found[0]


def _fields(slot: KeySlot) -> dict[str, object]:
    return {"id": slot.id, "kind": slot.kind, "label": slot.label, "opened": slot.opened}


def _key_file_in_use(app: App) -> KeyFile:
    """Return the key file that opens the repository, or the user's own where there is no repository."""
    if not app.is_in_repository():
        path = config.user_key_path()
        if not path.exists():
            raise KeyRequired(f"there is no key in {path} yet", hint="the first `chain init` makes it")
        return KeyFile(path)
    with app.open(readonly=True) as repo:
        provider = repo.key_in_use()
    if not isinstance(provider, KeyFile):
        raise InvalidInput(
            f"it is opened with {provider.id}, not with a key file: there is nothing to export",
            hint="`chain key add --new-key-file PATH` makes a key file that opens it too",
        )
    return provider


def _write_new(path: Path, digits: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(digits + "\n")
        file.flush()
        os.fsync(descriptor)


for _subcommand in (list_keys, add, remove, rotate, export):
    command.add_command(_subcommand)
