"""`chain init`"""

import sys
from pathlib import Path

import click

from chainstore import config, settings
from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App, check_exclusive
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import KeyRequired
from chainstore.repository import CHAIN_DIR, CODECS, Repository
from chainstore.repository import init as make_repository


@cli.command(
    "init",
    examples=["chain init", "chain init runs/gpt", "chain init --passphrase", "chain --key-file ~/run.key init"],
    codes=(exits.KEY, exits.STORAGE),
)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--no-encrypt", is_flag=True, help="Store everything readable.")
@click.option("--passphrase", is_flag=True, help="Ask for a passphrase that is to open it.")
@click.option("--codec", type=click.Choice(CODECS), help="How arrays are coded; by default as the settings say.")
@click.pass_obj
def command(app: App, directory: Path | None, no_encrypt: bool, passphrase: bool, codec: str | None) -> None:
    """Make a repository: DIRECTORY itself, or .chain in the current folder.

    It is encrypted with your key, which is made on first use, unless you choose otherwise.
    """
    check_exclusive(no_encrypt=no_encrypt, passphrase=passphrase, key_file=app.key_file, key_command=app.key_command)
    target = directory if directory is not None else Path(app.repo) if app.repo else Path(CHAIN_DIR)
    key = _passphrase(app) if passphrase else app.key()
    chosen = str(settings.resolve("codec", codec, {}).value)
    with make_repository(
        target, key=key, encrypt=not no_encrypt, codec=chosen, index_dir=app.index_dir, observer=app.out.observe
    ) as repo:
        found = directory is None and app.repo is None and config.repo_from_environment() is None
        begin = "chain" if found else f"chain -C {target}"
        fields = {"path": str(repo.path), "id": repo.id, "encrypted": repo.encrypted, "key": repo.key_origin}
        app.out.result("chain.init/1", fields, _lines(repo, f'{begin} commit model.pt -m "first"'))


def _lines(repo: Repository, following: str) -> list[str]:
    opens = f"encrypted; it opens with {repo.key_origin}" if repo.encrypted else "not encrypted: anybody can read it"
    return [f"repository  {repo.path}", f"key         {opens}", f"next        {following}"]


def _passphrase(app: App) -> KeyProvider | None:
    """Return the passphrase from the terminal, or None where the environment has one."""
    source = config.key_from_environment()
    if source is not None and source.kind == "passphrase":
        return None
    if not sys.stdin.isatty():
        raise KeyRequired("there is no terminal to ask for a passphrase on", hint="set CHAIN_PASSPHRASE instead")
    return app.ask_passphrase("New passphrase", twice=True)
