"""Where trials take place: in memory, where there is a file system in memory; a trial is thousands of small files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM_BYTES = 512 << 20


@pytest.fixture(scope="module")
def shared_ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for what the tests of a module prepare once."""
    yield from _ground(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for the trials of one test."""
    yield from _ground(tmp_path)


def _ground(otherwise: Path) -> Iterator[Path]:
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield otherwise
        return
    folder = Path(tempfile.mkdtemp(prefix="chainstore-", dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
