"""Slots: how a key opens a repository, and how keys are added and removed.

A repository that is not encrypted has no slots; a key that is given for it is refused, because somebody who gives a
key expects secrecy.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chainstore import access
from chainstore.crypto.bundle import Bundle, new_bundle
from chainstore.crypto.keyring import Keyring
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import NotEncrypted, WrongRepository
from chainstore.odb.layout import Format, Layout
from chainstore.odb.local import LocalDatabase
from chainstore.odb.record import Sealer
from chainstore.repository.settings import Settings


@dataclass(frozen=True, slots=True)
class Unsealed:
    """What a key that fits gives.

    Attributes:
        keyring_number: which version of the key slots it was opened with; 0 where there are none.
        key_origin: where the key was found, for people to read; "" where it is not encrypted.
    """

    format: Format
    sealer: Sealer
    keyring_number: int
    key_origin: str


@dataclass(frozen=True, slots=True)
class KeySlot:
    """One way to open a repository.

    Attributes:
        id: 16 hex digits.  kind: "file", "passphrase" or "command".  label: chosen by people.
        opened: whether it is the one in use.
    """

    id: str
    kind: str
    label: str
    opened: bool


def unseal(layout: Layout, settings: Settings) -> Unsealed:
    """Open the key slots of a repository.

    Raises:
        RepositoryNotFound; KeyRequired, WrongKey: it is encrypted and the key is missing or another.
        NotEncrypted: a key was given and it is not.  WrongRepository: the key slots are those of another.
    """
    format = layout.read_format()
    if not format.encrypted:
        given = access.given(settings.key)
        if given is not None:
            raise _not_encrypted(settings.root, given)
        return Unsealed(format, Sealer(format.repo_id, None, os.urandom), 0, "")
    keyring = layout.read_keyring()
    if keyring.repo_id != format.repo_id:
        raise WrongRepository(
            f"the key slots in {layout.root} belong to repository {keyring.repo_id.hex()}, not {format.repo_id.hex()}"
        )
    bundle, chosen = access.unlock(layout.root, keyring, settings.key)
    sealer = Sealer(format.repo_id, bundle, os.urandom, _renewal(layout, settings.key))
    return Unsealed(format, sealer, keyring.number, chosen.origin)


def _renewal(layout: Layout, key: KeyProvider | None) -> Callable[[], Bundle]:
    """Return what opens the key slots again, as they are by then."""
    return lambda: access.unlock(layout.root, layout.read_keyring(), key)[0]


def make_keyring(layout: Layout, settings: Settings, repo_id: bytes) -> tuple[Keyring, Bundle]:
    """Make the keys of a new repository, write them in one slot, and return both."""
    chosen = access.key_for_new(layout.root, settings.key, settings.observer)
    bundle = new_bundle(os.urandom)
    keyring = Keyring(0, repo_id).with_slot(chosen.provider, bundle, random=os.urandom)
    layout.write_keyring(keyring)
    return keyring, bundle


def check_key(db: LocalDatabase, opened_with: KeyProvider | None, settings: Settings) -> None:
    """A key that is given must open the repository even where another handle has it open already."""
    if settings.key is not None and settings.key is not opened_with:
        if not db.sealer.encrypted:
            raise _not_encrypted(settings.root, settings.key.id)
        access.unlock(settings.root, db.layout.read_keyring(), settings.key)


def list_slots(db: LocalDatabase, settings: Settings) -> tuple[KeySlot, ...]:
    """Return what opens a repository."""
    keyring = keyring_of(db)
    used, _, _ = access.unlock_slot(settings.root, keyring, settings.key)
    return tuple(KeySlot(slot.id, slot.kind, slot.label, slot.id == used.id) for slot in keyring.slots)


def add_slot(db: LocalDatabase, settings: Settings, provider: KeyProvider, label: str) -> str:
    """Let another key open a repository, and return the id of its slot."""

    def with_slot(keyring: Keyring) -> Keyring:
        bundle, _ = access.unlock(settings.root, keyring, settings.key)
        return keyring.with_slot(provider, bundle, label=label, random=os.urandom)

    return _change(db, with_slot)


def rotate_slot(db: LocalDatabase, settings: Settings, provider: KeyProvider, label: str) -> str:
    """Let another key open a repository instead of the one in use, and return the id of its slot."""

    def replaced(keyring: Keyring) -> Keyring:
        slot, bundle, _ = access.unlock_slot(settings.root, keyring, settings.key)
        return keyring.with_slot(provider, bundle, label=label, random=os.urandom).without_slot(slot.id)

    id = _change(db, replaced)
    db.sealer.renew_with(_renewal(db.layout, provider))
    return id


def remove_slot(db: LocalDatabase, slot_id: str) -> None:
    """Close a key slot of a repository."""
    _change(db, lambda keyring: keyring.without_slot(slot_id))


def _change(db: LocalDatabase, change: Callable[[Keyring], Keyring]) -> str:
    """Put what `change` makes of the key slots in their place, and return the id of the last one."""
    keyring_of(db)
    last = ""

    def remembered(keyring: Keyring) -> Keyring:
        nonlocal last
        made = change(keyring)
        last = made.slots[-1].id
        return made

    db.change_keyring(remembered)
    return last


def keyring_of(db: LocalDatabase) -> Keyring:
    """Return the key slots in force.

    Raises:
        NotEncrypted: there are none.
    """
    if not db.sealer.encrypted:
        raise NotEncrypted(f"{db.layout.root} is not encrypted; it has no keys")
    return db.layout.read_keyring()


def _not_encrypted(root: Path, given: str) -> NotEncrypted:
    return NotEncrypted(
        f"{given} was given, but {root} is not encrypted",
        hint="if it should be, somebody replaced it; if not, open it without a key",
    )
