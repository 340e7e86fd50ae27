"""Key files: a repository's key, or every repository's, in a file that only its owner reads."""

import os
from binascii import Error as HexError
from binascii import unhexlify
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from chainstore.crypto.aead import KEY_BYTES
from chainstore.crypto.provider import RandomBytes
from chainstore.errors import AlreadyExists, KeyRequired, Malformed, StorageError, WrongKey

KEY_FORM = "64 hexadecimal digits or 32 raw bytes"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key in a file: 32 raw bytes, or 64 hexadecimal digits as `chain key export` prints them.

    The file is read at each use, so the object itself holds no secret.

    Args:
        path: of the file; it need not exist before it is used.
    """

    path: Path

    kind: ClassVar[str] = "file"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "path", Path(path))

    @property
    def id(self) -> str:
        return f"key file {self.path}"

    def wrap(self, repo_id: bytes, random: RandomBytes) -> tuple[bytes, bytes]:
        return self._read(), b""

    def unwrap(self, repo_id: bytes, stored: bytes) -> bytes:
        if stored:
            raise Malformed("key file slot", "it stores what no key file needs")
        return self._read()

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                content = file.read(256)
        except OSError as error:
            raise KeyRequired(
                f"no key can be read from {self.path}: {error.strerror}",
                hint="name the key file with --key-file or CHAIN_KEY_FILE; without it the data cannot be read",
            ) from None
        key = parse_key(content)
        if key is None:
            raise WrongKey(f"{self.path} is no key file", hint=f"a key file holds {KEY_FORM}")
        return key


def parse_key(content: bytes) -> bytes | None:
    """Return the 32 bytes of a key given as KEY_FORM says, None if `content` is no key.

    32 bytes that read as text are none: that is a password somebody saved in a file, and unstretched it would be weak.
    Random bytes read as text less than once in 10^9 keys; `generate_key_file` never makes such a one.
    """
    if len(content) == KEY_BYTES:
        return None if _is_text(content) else content
    digits = content.strip()
    if len(digits) != 2 * KEY_BYTES:
        return None
    try:
        return unhexlify(digits)
    except HexError:
        return None


def _is_text(content: bytes) -> bool:
    try:
        return content.strip().decode().isprintable()
    except UnicodeDecodeError:
        return False


def export_key(file: KeyFile) -> str:
    """Return the key in a file as 64 hexadecimal digits, which are a key file's content too.

    Raises:
        KeyRequired, WrongKey: there is no key in it.
    """
    return file._read().hex()


def generate_key_file(path: str | os.PathLike[str], random: RandomBytes = os.urandom) -> KeyFile:
    """Make a new key file, readable by its owner only, durable and whole once it can be seen.

    Missing directories are made (0700).  A key that exists is never replaced, so of processes racing for the first use
    one wins, and the others get AlreadyExists and read its key.

    Raises:
        AlreadyExists: something lies at `path`.  StorageError: it cannot be written there.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{random(8).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            _write_durably(draft, _new_key(random))
            _move_unless_taken(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except FileExistsError:
        raise AlreadyExists(f"{path} exists already", hint="a key file is never replaced, use it as it is") from None
    except OSError as error:
        raise StorageError(f"no key file can be made at {path}: {error.strerror}") from None
    return KeyFile(path)


def _new_key(random: RandomBytes) -> bytes:
    key = random(KEY_BYTES)
    while _is_text(key):
        key = random(KEY_BYTES)
    return key


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _move_unless_taken(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: a race of two processes is possible, a lost key is not
        if os.path.lexists(path):
            raise FileExistsError from None
        os.rename(draft, path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
