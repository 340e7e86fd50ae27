"""The grounds of trials, as fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.grounds import fast_folder


@pytest.fixture(scope="module")
def shared_ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for what the tests of a module prepare once."""
    with fast_folder(tmp_path_factory.mktemp("shared")) as folder:
        yield folder


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for the trials of one test."""
    with fast_folder(tmp_path) as folder:
        yield folder
