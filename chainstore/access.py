"""Access: which key opens a repository, and where it was looked for.

In this order, and the first that is named decides: `key=` or a flag; CHAIN_KEY_FILE, CHAIN_KEY_COMMAND,
CHAIN_PASSPHRASE; the user's settings; a key inside the repository directory; the user's one key for all repositories.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chainstore import config
from chainstore.crypto.keyring import Bundle, Keyring, Slot
from chainstore.crypto.keys import KeyCommand, KeyFile, KeyProvider, Passphrase, generate_key_file
from chainstore.errors import AlreadyExists, KeyRequired, WrongKey
from chainstore.observe import Notice, Observer

KEY_IN_REPOSITORY = "user.key"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A key and where it was found, for people to read."""

    provider: KeyProvider
    origin: str


def key_for_new(root: Path, key: KeyProvider | None, observer: Observer) -> Chosen:
    """Return the key that a new repository at `root` is to be opened with, making the user's key on first use.

    Where the home directory would not outlive this machine or container, the key is put into the repository, with a
    warning that says what that protects.
    """
    named = _named(key)
    if named is not None:
        return named
    path = config.user_key_path()
    if path.exists():
        if not config.key_was_exported():
            observer(Notice("key-kept", f"your key is {path}: keep a copy of it elsewhere (`chain key export`)"))
        return Chosen(KeyFile(path), f"your key in {path}")
    problem = config.home_problem()
    if problem is None:
        made = _make_key(path)
        observer(
            Notice(
                "key-made",
                f"your key for all repositories is {path}: keep a copy of it elsewhere, without it nothing can be read",
            )
        )
        return Chosen(made, f"your key in {path}")
    inside = root / KEY_IN_REPOSITORY
    made = _make_key(inside)
    observer(
        Notice(
            "key-in-repository",
            f"{problem}, so the key was put into the repository: {inside}. Whoever can read that folder can read the "
            "data; it protects copies that are pushed elsewhere. Set CHAIN_KEY_FILE to keep it apart",
        )
    )
    return Chosen(made, f"the key in {inside}")


def unlock(root: Path, keyring: Keyring, key: KeyProvider | None) -> tuple[Bundle, Chosen]:
    """Return the keys of a repository, and with what they were opened; see `unlock_slot`."""
    _, bundle, chosen = unlock_slot(root, keyring, key)
    return bundle, chosen


def unlock_slot(root: Path, keyring: Keyring, key: KeyProvider | None) -> tuple[Slot, Bundle, Chosen]:
    """Return the slot that opens a repository, its keys, and with what they were opened.

    Raises:
        WrongKey: the key that was named opens no slot.
        KeyRequired: none was named, and there is none where keys usually are.
    """
    named = _named(key)
    choices = [named] if named is not None else _lying_about(root)
    refused: WrongKey | None = None
    for chosen in choices:
        try:
            return *keyring.unlock(chosen.provider), chosen
        except WrongKey as error:
            refused = refused or error
    if refused is None:
        raise KeyRequired(
            f"{root} is encrypted and no key was found; it opens with {keyring.describe()}",
            hint=f"looked at key=, --key-file, CHAIN_KEY_FILE, CHAIN_KEY_COMMAND, CHAIN_PASSPHRASE, "
            f"{root / KEY_IN_REPOSITORY} and {config.user_key_path()}",
        )
    raise refused


def given(key: KeyProvider | None) -> str | None:
    """Return what key was named for this very run, by argument or environment, for people to read; None if none was.

    A repository that is not encrypted is then refused: somebody may have put it in the place of one that is.
    """
    if key is not None:
        return key.id
    found = config.key_from_environment()
    return found.origin if found is not None else None


def _named(key: KeyProvider | None) -> Chosen | None:
    if key is not None:
        return Chosen(key, f"the {key.id} that was given")
    for source in (config.key_from_environment, lambda: config.key_from_user_config(config.read_user_config())):
        found = source()
        if found is not None:
            return Chosen(_provider(found), found.origin)
    return None


def _lying_about(root: Path) -> list[Chosen]:
    places = (root / KEY_IN_REPOSITORY, config.user_key_path())
    return [Chosen(KeyFile(path), f"the key in {path}") for path in places if path.exists()]


def _provider(source: config.KeySource) -> KeyProvider:
    makers: dict[str, Callable[[str], KeyProvider]] = {
        "file": KeyFile,
        "command": KeyCommand,
        "passphrase": Passphrase,
    }
    return makers[source.kind](source.value)


def _make_key(path: Path) -> KeyFile:
    try:
        return generate_key_file(path, os.urandom)
    except AlreadyExists:
        return KeyFile(path)  # another process was faster; its key is as good
