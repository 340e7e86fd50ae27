"""The few small files that say what a repository directory is.

format, format.bak      plain JSON: version, repository id, suite, chunk size, extensions, checksum
keyring, keyring.bak    key slots
index.owner             which index is in force: {uuid, inode, host}; the index lies in index/<uuid>/, or on a disk of
                        that host where this directory is on a network disk (`places`)
log/ packs/ leases/ quarantine/ reserve
"""

import json
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from chainstore.crypto.keyring import Keyring
from chainstore.errors import AlreadyExists, Damaged, FormatTooNew, Malformed, NotEncrypted, RepositoryNotFound
from chainstore.ids import fingerprint
from chainstore.model.frame import MAX_PAYLOAD, crc32c
from chainstore.odb.record import SUITE_NONE, SUITE_V1
from chainstore.storage import fs

VERSION = 1
CHUNK_BYTES = 1 << 20
KNOWN_EXTENSIONS: frozenset[str] = frozenset()
RESERVE_BYTES = 1 << 20
_LIMIT = 1 << 20
_HEAL = "restore it from format.bak or from a copy of the repository"

_UUID = re.compile("[0-9a-f]{32}")
# what JSON of others leads to
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Format:
    """What the `format` file says.

    Attributes:
        repo_id: 16 bytes, made once.
        suite: SUITE_NONE or SUITE_V1.
        extensions: name -> (read, write, gc): what a client that does not know it must not do.
    """

    repo_id: bytes
    suite: int
    chunk_bytes: int = CHUNK_BYTES
    extensions: tuple[tuple[str, tuple[bool, bool, bool]], ...] = ()
    version: int = VERSION

    @property
    def encrypted(self) -> bool:
        return self.suite != SUITE_NONE

    def to_bytes(self) -> bytes:
        """Return the file's bytes: JSON a person can read, with a checksum over the rest."""
        fields: dict[str, object] = {
            "chainstore": self.version,
            "repo": self.repo_id.hex(),
            "suite": self.suite,
            "chunk": self.chunk_bytes,
            "extensions": {name: list(flags) for name, flags in self.extensions},
        }
        return json.dumps({**fields, "check": _check(fields)}, indent=1).encode() + b"\n"

    @property
    def hash(self) -> bytes:
        """32 bytes that the commit log remembers this file by."""
        return fingerprint("format", self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Format":
        """Return what a `format` file says.

        Raises:
            Malformed: it is damaged.
            FormatTooNew: a version that we do not know.
        """
        try:
            fields = json.loads(data)
            if fields.pop("check") != _check(fields):
                raise Malformed("format", "checksum")
            version, suite = fields["chainstore"], fields.get("suite")
            if version != VERSION or suite not in (SUITE_NONE, SUITE_V1):
                raise FormatTooNew(f"format {version}, suite {suite}", "read")
            extensions = tuple((str(name), _flags(flags)) for name, flags in fields["extensions"].items())
            repo, chunk = fields["repo"], fields["chunk"]
            if not _UUID.fullmatch(repo) or type(chunk) is not int or not 0 < chunk <= MAX_PAYLOAD:
                raise ValueError("the repository's id or the size of its chunks")
            return cls(bytes.fromhex(repo), suite, chunk, extensions, version)
        except _NOT_OURS as error:
            raise Malformed("format", f"not the JSON it should be ({error})") from error

    def check_extensions(self, *, writing: bool) -> None:
        """Refuse what an extension that we do not know forbids.

        Raises:
            FormatTooNew: names the extension and the operation.
        """
        for name, (read, write, _gc) in self.extensions:
            if name in KNOWN_EXTENSIONS:
                continue
            if read or (write and writing):
                raise FormatTooNew(name, "read" if read else "write to")


@dataclass(frozen=True, slots=True)
class Owner:
    """Which index is in force.

    Attributes:
        uuid: names its folder.  inode: of its data file, so that a copy is noticed.  host: shown to people only.
        outside: whether it lies outside of the repository's directory, so that others may not see it.
    """

    uuid: str
    inode: int
    host: str
    outside: bool = False

    def to_bytes(self) -> bytes:
        fields = {"uuid": self.uuid, "inode": self.inode, "host": self.host}
        return json.dumps(fields | ({"outside": True} if self.outside else {})).encode() + b"\n"


class Layout:
    """Paths and small files of one repository directory.

    Args:
        root: the directory.
        index_dir: where the index lives instead of `root/index`.
        local_dirs: where an index may be kept that can lie in neither, best first.

    Attributes:
        index_root: where the index in force lies, if it is one of this machine.
        index_roots: where it is looked for; `index_root` comes first.
        owner: the file that says which index is in force.
    """

    def __init__(self, root: Path, index_dir: Path | None = None, local_dirs: Sequence[Path] = ()) -> None:
        self.root, self.index_dir, self.local_dirs = root, index_dir, tuple(local_dirs)
        self.index_root = index_dir if index_dir is not None else root / "index"
        self.index_roots: tuple[Path, ...] = (self.index_root,)
        self.owner = root / "index.owner"
        self.log = root / "log"
        self.packs = root / "packs"
        self.leases = root / "leases"
        self.quarantine = root / "quarantine"

    def exists(self) -> bool:
        return fs.is_file(self.root / "format") or fs.is_file(self.root / "format.bak")

    @property
    def on_network(self) -> bool:
        """Whether the repository's directory is on a network disk, where an index cannot live."""
        return fs.is_network_file_system(self.root)

    @property
    def outside(self) -> bool:
        """Whether the index in force lies, or would lie, outside of the repository's directory."""
        return self.index_root != self.root / "index"

    def with_index(self, roots: Sequence[Path], owner: Path | None = None) -> "Layout":
        """Return a layout whose indexes lie in `roots`, a new one in the first; `owner` names the one in force."""
        other = copy(self)
        other.index_root, other.index_roots = roots[0], tuple(roots)
        other.owner = owner or self.owner
        return other

    def index(self, uuid: str) -> Path:
        """Return the folder of an index: where it is, else where it would be made."""
        there = (root / uuid for root in self.index_roots if fs.exists(root / uuid / "data.mdb"))
        return next(there, self.index_root / uuid)

    def has_index(self, uuid: str) -> bool:
        """Whether an index is on a disk that this machine sees."""
        return fs.exists(self.index(uuid) / "data.mdb")

    def create(self) -> None:
        """Make the folders."""
        index = () if self.on_network and not self.outside else (self.index_root,)
        for folder in (self.root, self.log, self.packs, self.leases, self.quarantine, *index):
            try:
                fs.make_dirs(folder)
            except FileExistsError as error:
                raise AlreadyExists(f"{error.filename} is not a directory", hint="choose another directory") from None
        with fs.open_file(self.root / "reserve", write=True, create=True) as file:
            file.preallocate(RESERVE_BYTES)

    def read_format(self) -> Format:
        """Return what `format` says, or `format.bak` where that is damaged.

        Raises:
            RepositoryNotFound: there is neither.
            Malformed: both are damaged.
            NotEncrypted: it claims that nothing is encrypted, yet key slots lie beside it.
        """
        if not self.exists():
            raise RepositoryNotFound(str(self.root))
        found = self._either("format", Format.from_bytes)
        if not found.encrypted and fs.exists(self.root / "keyring"):
            raise NotEncrypted(
                f"{self.root} has key slots, but its format file says that it is not encrypted",
                hint="somebody changed `format`; " + _HEAL,
            )
        return found

    def write_format(self, format: Format) -> None:
        fs.write_atomic(self.root / "format", format.to_bytes(), backup=self.root / "format.bak")

    def read_keyring(self) -> Keyring:
        """Return the newer intact one of `keyring` and `keyring.bak`.

        Raises:
            Malformed, Damaged: there is none.
        """
        found = []
        problem: Exception | None = None
        for name in ("keyring", "keyring.bak"):
            try:
                found.append(self.parse_keyring(fs.read_all(self.root / name, _LIMIT)))
            except (FileNotFoundError, Malformed) as error:
                problem = problem or error
        if not found:
            raise Damaged(
                f"the key slots of {self.root} are missing or damaged ({problem})",
                hint="restore `keyring` from a copy of the repository: without it nothing can be read",
            )
        return max(found, key=lambda keyring: keyring.number)

    @staticmethod
    def parse_keyring(data: bytes) -> Keyring:
        """Return the key slots in a `keyring` file; Malformed where it is damaged."""
        return Keyring.from_bytes(data)

    def write_keyring(self, keyring: Keyring) -> None:
        fs.write_atomic(self.root / "keyring", keyring.to_bytes(), backup=self.root / "keyring.bak")

    def read_owner(self) -> Owner:
        """Return which index is in force.

        Raises:
            Damaged: there is none; `rebuild-index` makes one.
        """
        hint = "`chain rebuild-index` makes it anew from the log and the packs"
        try:
            fields = json.loads(fs.read_all(self.owner, _LIMIT))
            if not _UUID.fullmatch(fields["uuid"]):
                raise ValueError("the name of the index")
            return Owner(fields["uuid"], int(fields["inode"]), str(fields["host"]), bool(fields.get("outside", False)))
        except FileNotFoundError:
            raise Damaged(f"{self.root} has no index", hint=hint) from None
        except _NOT_OURS as error:
            raise Damaged(f"index.owner is malformed ({error})", hint=hint) from error

    def complete(self) -> None:
        """Write the file or the backup that a process which died did not come to; a damaged one is left to be seen."""
        for name in ("format", "keyring"):
            found = [path for path in (self.root / name, self.root / f"{name}.bak") if fs.exists(path)]
            if len(found) == 1:
                missing = self.root / (name if found[0].suffix else f"{name}.bak")
                fs.write_atomic(missing, fs.read_all(found[0], _LIMIT))

    def owner_stamp(self) -> object:
        """Return what changes whenever another index is put in force; cheap."""
        try:
            return fs.inode_of(self.owner)
        except FileNotFoundError:
            return None

    def owned_since(self) -> datetime:
        """Return when the index in force was put there, by the clock of the disk (UTC)."""
        return datetime.fromtimestamp(self.owner.stat().st_mtime, UTC)

    def write_owner(self, owner: Owner) -> None:
        fs.write_atomic(self.owner, owner.to_bytes())

    def _either(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(fs.read_all(self.root / name, _LIMIT))
        except (FileNotFoundError, Malformed) as error:
            try:
                return parse(fs.read_all(self.root / f"{name}.bak", _LIMIT))
            except (FileNotFoundError, Malformed):
                raise Malformed(name, f"{error}; its backup is no better", -1) from error


def _flags(flags: object) -> tuple[bool, bool, bool]:
    match flags:
        case [bool(read), bool(write), bool(gc)]:
            return read, write, gc
    raise ValueError("an extension says what it forbids with three booleans")


def _check(fields: dict[str, object]) -> str:
    return f"{crc32c(json.dumps(fields, sort_keys=True).encode()):08x}"
