"""Handing on: what another process needs to go on with a repository where a handle of this one stands."""

from dataclasses import dataclass
from pathlib import Path

from chainstore.crypto.keys import KeyProvider
from chainstore.repository.face import Repository, open_with
from chainstore.repository.settings import Settings


@dataclass(frozen=True, slots=True)
class Handed:
    """How a handle was opened, and where it stands.

    Attributes:
        root, key, threads, max_memory_bytes, index_dir: as given, or as the settings in force have them.
        branch: full name of the one that its commits go to; None where HEAD is detached.
        moves: how often that had moved before it had a tip; -1 where it had one.
    """

    root: Path
    key: KeyProvider | None
    threads: int
    max_memory_bytes: int
    index_dir: Path | None
    branch: str | None
    moves: int


def hand_on(repo: Repository) -> Handed:
    """Return what `take_up` opens the same repository with, on the same branch."""
    handle = repo._handle
    settings, (branch, moves) = handle.settings, handle.standing
    return Handed(
        settings.root,
        settings.key,
        settings.threads,
        settings.max_memory_bytes,
        settings.index_dir,
        branch,
        moves,
    )


def take_up(handed: Handed) -> Repository:
    """Open a repository where another handle stands, wherever HEAD is by now.

    Raises:
        As `open`.
    """
    settings = Settings(
        handed.root,
        handed.key,
        threads=handed.threads,
        max_memory_bytes=handed.max_memory_bytes,
        index_dir=handed.index_dir,
    )
    repo = open_with(settings)
    repo._handle.stand_as(handed.branch, handed.moves)
    return repo
