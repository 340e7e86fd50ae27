"""Opening: repositories made, opened, found, and rebuilt where they cannot be opened."""

import os
from dataclasses import dataclass
from pathlib import Path

from chainstore import access
from chainstore.crypto.keys import KeyProvider
from chainstore.errors import AlreadyExists, InvalidInput
from chainstore.leases import publish_lock
from chainstore.observe import Observer, silent
from chainstore.odb.layout import Format, Layout
from chainstore.odb.opening import create_local
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import SUITE_NONE, SUITE_V1, Sealer
from chainstore.refs import DEFAULT_BRANCH, HEADS
from chainstore.repository.face import Repository, open_with
from chainstore.repository.settings import CHAIN_DIR, Settings, make_settings, surroundings, where_it_is
from chainstore.repository.slots import make_keyring
from chainstore.repository.upkeep import rebuild_at
from chainstore.storage import fs


def init(
    path: str | os.PathLike[str],
    *,
    key: KeyProvider | None = None,
    encrypt: bool = True,
    codec: str = "auto",
    threads: int | None = None,
    max_memory: int | str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    exist_ok: bool = False,
    observer: Observer = silent,
) -> Repository:
    """Make a repository in the directory `path` and open it.

    Args:
        key: `Passphrase`, `KeyFile` or `KeyCommand`; by default the user's key, made on first use.
        encrypt: False stores everything readable.
        codec: "auto", "none", "fast" or "small".
        threads: workers of the pipeline; by default what the settings say, else one a core, at most 8.
        max_memory: of the pipeline, bytes or text such as "1GiB"; by default what the settings say, else 256 MiB.
        index_dir: a local directory for the index; by default it lies in `path`, or where that is on a network disk
            below SLURM_TMPDIR, TMPDIR or the user's cache directory.
        exist_ok: open what is there instead of refusing.
        observer: called with progress and notices.

    Raises:
        AlreadyExists: there is one.  InvalidInput: a key was given, and `encrypt` is False.
    """
    settings = make_settings(
        path, key=key, threads=threads, max_memory=max_memory, index_dir=index_dir, codec=codec, observer=observer
    )
    given = access.given(key)
    if given is not None and not encrypt:
        raise InvalidInput(f"{given} was given for a repository that is not to be encrypted", hint="leave one out")
    layout = settings.layout
    if not layout.exists():
        layout.create()
        with publish_lock(layout.leases, surroundings().who):  # of processes racing for it, one makes it
            if not layout.exists():
                _create(layout, settings, encrypt)
                exist_ok = True
    if not exist_ok:
        raise AlreadyExists(f"there is a repository at {settings.root}", hint="open it, or choose another directory")
    return open_with(settings)


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    readonly: bool = False,
    key: KeyProvider | None = None,
    threads: int | None = None,
    max_memory: int | str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    take_over: bool = False,
    observer: Observer = silent,
) -> Repository:
    """Open the repository at `path` (or at `path/.chain`).

    Opening a path twice in one process shares what is behind it.

    Args:
        create: make it if it is not there.
        readonly: change nothing, not even what a crash left behind.
        key, threads, max_memory, index_dir, observer: as for `init`.
        take_over: write, although another machine has the index and its locks may not be seen here. Make sure that
            nothing writes there any more: what it commits afterwards is refused, not lost.

    Raises:
        RepositoryNotFound: there is none.
        IndexElsewhere: another machine writes to it, as far as can be known.
        KeyRequired, WrongKey: it is encrypted and the key is missing or another.
        Damaged: log or index are not what they were; says what heals them.
    """
    if create and readonly:
        raise InvalidInput("create and readonly contradict each other")
    settings = where_it_is(
        make_settings(
            path,
            key=key,
            readonly=readonly,
            threads=threads,
            max_memory=max_memory,
            index_dir=index_dir,
            observer=observer,
            take_over=take_over,
        )
    )
    if create and not Layout(settings.root).exists():
        return init(
            path,
            key=key,
            threads=threads,
            max_memory=max_memory,
            index_dir=index_dir,
            exist_ok=True,
            observer=observer,
        )
    return open_with(settings)


def rebuild(
    path: str | os.PathLike[str],
    *,
    key: KeyProvider | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    take_over: bool = False,
    observer: Observer = silent,
) -> RebuildReport:
    """Make the index of the repository at `path` anew from its log and packs, and heal its log from the index.

    Args:
        key, index_dir, take_over, observer: as for `open`.

    Raises:
        RepositoryNotFound; KeyRequired, WrongKey; Damaged: neither log nor index can be read.
        IndexElsewhere: another machine writes to it, as far as can be known.
    """
    settings = make_settings(path, key=key, index_dir=index_dir, take_over=take_over, observer=observer)
    return rebuild_at(where_it_is(settings))


def locate(path: str | os.PathLike[str]) -> Path | None:
    """Return the directory of the repository at `path` or at `path/.chain`, or None where there is none."""
    root = Path(path)
    return next((place for place in (root, root / CHAIN_DIR) if Layout(place).exists()), None)


def key_kinds(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return what kinds of keys ("file", "passphrase", "command") open the repository at `path`; none if it needs none.

    Raises:
        RepositoryNotFound; Damaged: its format or key slots cannot be read.
    """
    layout = Layout(Path(path))
    slots = layout.read_keyring().slots if layout.read_format().encrypted else ()
    return frozenset(slot.kind for slot in slots)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a repository would stand on at some path.

    Attributes:
        file_system: its type, such as "ext4"; "" where the system does not tell.
        network: whether it is on another machine, where the index cannot live.
        free_bytes: for this user.
        shares_locks: whether locks are known to be seen by every machine that has it mounted.
    """

    file_system: str
    network: bool
    free_bytes: int
    shares_locks: bool = True


def survey(path: str | os.PathLike[str]) -> Ground:
    """Return what lies under a path, or will once it is made.

    Raises:
        StorageError: nothing can be learned of it.
    """
    place = Path(path).absolute()
    mount = fs.find_mount(place)
    existing = next(each for each in (place, *place.parents) if each.exists())
    return Ground(mount.type, mount.network, fs.free_bytes(existing), mount.shares_locks)


def _create(layout: Layout, settings: Settings, encrypt: bool) -> None:
    """Make a repository in folders that exist; the caller holds the publish lock."""
    format = Format(os.urandom(16), SUITE_V1 if encrypt else SUITE_NONE)
    keyring, bundle = make_keyring(layout, settings, format.repo_id) if encrypt else (None, None)
    create_local(
        layout,
        format,
        Sealer(format.repo_id, bundle, os.urandom),
        keyring.number if keyring is not None else 0,
        settings.around,
        head=HEADS + DEFAULT_BRANCH,
        config={"codec": settings.codec or "auto"},
    ).close()
    layout.write_format(format)  # last: before it, there is no repository
