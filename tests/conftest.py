"""What every test gets: its own settings, so that no key and no index is made in anybody's home."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the user's settings and key into a directory of this test, and no key into the environment."""
    folder = tmp_path_factory.mktemp("settings")
    monkeypatch.setenv("CHAIN_CONFIG_DIR", str(folder))
    monkeypatch.setenv("CHAIN_CACHE_DIR", str(folder / "cache"))
    for name in ("CHAIN_KEY_FILE", "CHAIN_KEY_COMMAND", "CHAIN_PASSPHRASE", "CHAIN_REPO"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CHAIN_INDEX_DIR", "SLURM_TMPDIR", "TMPDIR"):  # where an index goes from a network disk
        monkeypatch.delenv(name, raising=False)
    yield folder
