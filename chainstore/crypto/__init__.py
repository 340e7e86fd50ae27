"""Crypto: keys, and the sealing of records, rows and log records with them.

Its main noun is the `Bundle`, a repository's own keys, which a `Keyring` keeps wrapped for each `KeyProvider`.

    ring = Keyring.from_bytes(stored)
    bundle = ring.open(Passphrase("correct horse battery staple"))
    key = object_key(bundle.data[1], suite, repo_id, kind, object_id)
    length = seal_into(key, nonce, header, payload, out)

Pure but for key files and key commands: nonces and random bytes are given by the caller.
"""

from chainstore.crypto.aead import (
    KEY_BYTES,
    NONCE_BYTES,
    OVERHEAD,
    ROW_OVERHEAD,
    TagMismatch,
    object_key,
    open_into,
    open_row,
    ref_key,
    row_header,
    seal_into,
    seal_row,
)
from chainstore.crypto.bundle import FIRST_GENERATION, Bundle, new_bundle
from chainstore.crypto.keyring import MAX_KEYRING_BYTES, Keyring, Slot
from chainstore.crypto.keys import Argon2Cost, KeyCommand, KeyFile, KeyProvider, Passphrase, generate_key_file

__all__ = [
    "FIRST_GENERATION",
    "KEY_BYTES",
    "MAX_KEYRING_BYTES",
    "NONCE_BYTES",
    "OVERHEAD",
    "ROW_OVERHEAD",
    "Argon2Cost",
    "Bundle",
    "KeyCommand",
    "KeyFile",
    "KeyProvider",
    "Keyring",
    "Passphrase",
    "Slot",
    "TagMismatch",
    "generate_key_file",
    "new_bundle",
    "object_key",
    "open_into",
    "open_row",
    "ref_key",
    "row_header",
    "seal_into",
    "seal_row",
]
