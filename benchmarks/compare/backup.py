"""Peers that keep files: borg and restic, each on what torch.save wrote, encrypted as they are by default."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import ClassVar

import torch

from benchmarks.compare.peer import Peer
from benchmarks.measure import disk_bytes
from benchmarks.workloads import State

POLL_SECONDS = 0.005
FILE = "state.pt"


class BackupPeer(Peer):
    """torch.save to a file, then a backup of it into a repository; back the same way.

    The file is in the page cache when the tool reads it.  Settings, caches and the repository lie in the folder.
    """

    can = frozenset({"commit", "restore", "open"})
    program: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.work, self.repo = folder / "work", folder / "repo"
        self.work.mkdir()
        self.environment = {**os.environ, **self.settings()}
        self.make()

    @classmethod
    def version(cls) -> str | None:
        if not shutil.which(cls.program):
            return None
        flag = "--version" if cls.program == "borg" else "version"
        return subprocess.run([cls.program, flag], capture_output=True, text=True, check=True).stdout.split()[1]

    def settings(self) -> dict[str, str]:
        raise NotImplementedError

    def make(self) -> None:
        raise NotImplementedError

    def store(self) -> None:
        raise NotImplementedError

    def fetch(self) -> Path:
        """Get the newest file back and return where it is."""
        raise NotImplementedError

    def stored(self) -> int:
        return disk_bytes(self.repo)

    def save(self, state: State, step: int, loss: float) -> None:
        self.saves += 1
        torch.save(state, self.work / FILE)
        self.store()

    def ready(self) -> None:
        shutil.rmtree(self.folder / "back", ignore_errors=True)

    def load(self) -> object:
        (self.work / FILE).unlink(missing_ok=True)
        return torch.load(self.fetch())

    def call(self, *arguments: str) -> str:
        """Run the program in the work folder, and note the most memory it had.

        The peak is read while it runs: `ru_maxrss` of a child counts what its parent had when it forked.
        """
        with (self.folder / "output").open("w+") as output:
            child = subprocess.Popen(
                [self.program, *arguments],
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            while child.poll() is None:
                self.child_peak_bytes = max(self.child_peak_bytes, _peak_bytes(child.pid))
                time.sleep(POLL_SECONDS)
            output.seek(0)
            text = output.read()
        if child.returncode:
            raise RuntimeError(f"{self.program} {arguments[0]} ended with {child.returncode}: {text}")
        return text


class Borg(BackupPeer):
    """borg: `repokey` encryption, lz4, content-defined chunks."""

    name = program = "borg"

    def settings(self) -> dict[str, str]:
        return {"BORG_BASE_DIR": str(self.folder / "settings"), "BORG_PASSPHRASE": "benchmark"}

    def make(self) -> None:
        self.call("init", "--encryption=repokey", str(self.repo))

    def store(self) -> None:
        self.call("create", f"{self.repo}::{self.saves:06d}", FILE)

    def fetch(self) -> Path:
        self.call("extract", f"{self.repo}::{self.saves:06d}")
        return self.work / FILE

    def names(self) -> int:
        assert len(json.loads(self.call("list", "--json", str(self.repo)))["archives"]) == self.saves
        return -1


class Restic(BackupPeer):
    """restic: encrypted as always, zstd by default, content-defined chunks."""

    name = program = "restic"

    def settings(self) -> dict[str, str]:
        return {
            "RESTIC_CACHE_DIR": str(self.folder / "cache"),
            "RESTIC_PASSWORD": "benchmark",
            "RESTIC_REPOSITORY": str(self.repo),
        }

    def make(self) -> None:
        self.call("init", "--quiet")

    def store(self) -> None:
        self.call("backup", "--quiet", FILE)

    def fetch(self) -> Path:
        back = self.folder / "back"
        self.call("restore", "latest", "--quiet", "--target", str(back))
        return back / FILE

    def names(self) -> int:
        assert len(json.loads(self.call("snapshots", "--json", "--quiet"))) == self.saves
        return -1


def _peak_bytes(pid: int) -> int:
    """Return the most memory a running process had, 0 where it just ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = text.split("VmHWM:")
    return int(found[1].split()[0]) * 1024 if len(found) == 2 else 0
