"""Settings: how a repository was asked to be opened, checked once, and what the engine is told of the world.

A forked child and a pickled handle open the repository again with the same settings.  Clock, random bytes and the
host's name enter here and are handed down; nothing below asks for them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from chainstore import config
from chainstore.crypto.keys import KeyProvider
from chainstore.observe import Observer, silent
from chainstore.odb.layout import Layout
from chainstore.odb.surroundings import Surroundings
from chainstore.settings import parse_codec, parse_memory, parse_threads, resolve

CHAIN_DIR = ".chain"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a repository was opened; what a forked child or a pickled handle opens it with again."""

    root: Path
    key: KeyProvider | None = None
    readonly: bool = False
    threads: int = 0  # 0: as `in_force` says
    max_memory_bytes: int = 0
    index_dir: Path | None = None
    codec: str | None = None
    observer: Observer = silent
    take_over: bool = False

    @property
    def layout(self) -> Layout:
        return Layout(self.root, self.index_dir, config.index_dirs())

    @property
    def around(self) -> Surroundings:
        """What the engine may know of the world, and whom it tells."""
        return replace(surroundings(), observer=self.observer)


def make_settings(
    path: str | os.PathLike[str],
    *,
    key: KeyProvider | None = None,
    readonly: bool = False,
    threads: int | None = None,
    max_memory: int | str | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    codec: str | None = None,
    observer: Observer = silent,
    take_over: bool = False,
) -> Settings:
    """Return settings from what a user said.

    Raises:
        ConfigError: a number of threads, an amount of memory or a codec that makes no sense.
    """
    return Settings(
        Path(path).expanduser().absolute(),
        key,
        readonly,
        parse_threads(threads) if threads is not None else 0,
        parse_memory(max_memory) if max_memory is not None else 0,
        Path(index_dir).expanduser().absolute() if index_dir is not None else None,
        parse_codec(codec) if codec is not None else None,
        observer,
        take_over,
    )


def where_it_is(settings: Settings) -> Settings:
    """Return settings for `.chain` below the path, where the repository is there and not at the path itself."""
    below = settings.root / CHAIN_DIR
    if not Layout(settings.root).exists() and Layout(below).exists():
        return replace(settings, root=below)
    return settings


def in_force(settings: Settings, own: Mapping[str, str]) -> Settings:
    """Return settings with what was not given filled in: by the environment, the repository (`own`), or the user.

    Raises:
        ConfigError: what one of them says makes no sense.
    """
    threads = resolve("threads", settings.threads or None, own)
    memory = resolve("max_memory", settings.max_memory_bytes or None, own)
    return replace(settings, threads=int(threads.value), max_memory_bytes=int(memory.value))


def surroundings() -> Surroundings:
    """Return what the engine may know of the world."""
    return Surroundings(now_us, os.urandom, config.host_name(), f"process {os.getpid()}")


def now_us() -> int:
    """Return microseconds since 1970 UTC."""
    return int(config.now().timestamp() * 1e6)
