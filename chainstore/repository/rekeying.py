"""Rekeying: new keys for the data of a repository, and everything rewritten with them."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from chainstore import access, config
from chainstore.crypto.keyring import Bundle, Keyring
from chainstore.errors import InvalidInput
from chainstore.leases import collector_lock
from chainstore.ops.gc import collect
from chainstore.ops.rekey import find_outdated, rewrite
from chainstore.repository.handles import Handle
from chainstore.repository.slots import keyring_of


@dataclass(frozen=True, slots=True)
class RekeyReport:
    """What new keys did, or would do (`dry_run`).

    Attributes:
        generation: number of the keys that seal everything new.
        resumed: whether an earlier run was gone on with, instead of making new keys once more.
        keys_removed: ids of the key slots that were closed: nobody could give them the new keys.
        outdated_bytes: of records that older keys open; before, and with `dry_run` all there is.
        rewritten_bytes: of records sealed again.
        complete: whether older keys open nothing here any more.
        left: what could not be rewritten, and why.
    """

    dry_run: bool
    generation: int
    resumed: bool
    keys_removed: tuple[str, ...]
    outdated_bytes: int
    rewritten_bytes: int = 0
    complete: bool = False
    left: tuple[str, ...] = ()


def rekey(handle: Handle, reencrypt: bool, drop_other_keys: bool, dry_run: bool) -> RekeyReport:
    """Make new keys and rewrite what older ones sealed; see `Repository.rekey`."""
    db, observer = handle.db, handle.settings.observer
    keyring = keyring_of(db)
    resumed = reencrypt and find_outdated(db, db.sealer.generation).records > 0
    used, bundle, _ = access.unlock_slot(handle.settings.root, keyring, handle.settings.key)
    others = [slot for slot in keyring.slots if slot.id != used.id]
    if others and not (drop_other_keys or resumed):
        raise InvalidInput(
            f"{len(others)} other keys open this repository ({', '.join(slot.describe() for slot in others)}), and "
            "nobody can give them the new keys without their secrets",
            hint="--drop-other-keys closes their slots; add them again with `chain key add` afterwards",
        )
    generation = bundle.generation if resumed else bundle.next_generation(os.urandom).generation
    outdated = find_outdated(db, generation)
    removed = () if resumed else tuple(slot.id for slot in others)
    report = RekeyReport(dry_run, generation, resumed, removed, outdated.stored_bytes)
    if dry_run:
        return report
    since = f"{config.now():%Y-%m-%d %H:%M:%S}"
    if reencrypt:
        collect(db, dry_run=False, since=since, observer=observer)  # what nothing leads to is not worth rewriting
    with handle.turn(), collector_lock(db.layout.leases, db.around.who, since):
        if not resumed:
            db.change_keyring(lambda current: _renewed(handle, current), renewed=True)
        rewritten, left = rewrite(db, find_outdated(db, generation), observer) if reencrypt else (0, [])
        with db.turn() as turn:
            turn.start_segment()
        complete = not find_outdated(db, generation).records and not left
        if complete:
            db.change_keyring(lambda current: _newest_only(handle, current))
    return replace(report, rewritten_bytes=rewritten, complete=complete, left=tuple(left))


def _renewed(handle: Handle, keyring: Keyring) -> Keyring:
    return _only(handle, keyring, lambda bundle: bundle.next_generation(os.urandom))


def _newest_only(handle: Handle, keyring: Keyring) -> Keyring:
    return _only(handle, keyring, lambda bundle: bundle.newest_only())


def _only(handle: Handle, keyring: Keyring, change: Callable[[Bundle], Bundle]) -> Keyring:
    """Return a keyring with one slot, that of the key in use, which holds what `change` makes of the keys."""
    slot, bundle, chosen = access.unlock_slot(handle.settings.root, keyring, handle.settings.key)
    made = keyring.with_slot(chosen.provider, change(bundle), label=slot.label, random=os.urandom)
    for old in keyring.slots:
        made = made.without_slot(old.id)
    return made
