"""chainstore itself: encrypted with a key file, codecs on, as `cs.open(path, create=True)` makes it."""

import os
from pathlib import Path

import torch

import chainstore as cs
from benchmarks.compare.peer import Peer
from benchmarks.measure import disk_bytes
from benchmarks.workloads import State, flat


class Chain(Peer):
    """One repository; the handle stays open while a run commits, as in training."""

    name = "chainstore"
    can = frozenset({"commit", "restore", "open", "log", "diff", "partial", "rows"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        key = folder / "key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        self.key = cs.KeyFile(key)
        self.repo = folder / "repo"
        self.handle: cs.Repository | None = None
        cs.init(self.repo, key=self.key).close()

    @classmethod
    def version(cls) -> str | None:
        return cs.__version__

    def open(self) -> cs.Repository:
        return cs.open(self.repo, key=self.key)

    def ready(self) -> None:
        self.handle = self.handle or self.open()

    def rest(self) -> None:
        if self.handle:
            self.handle.close()
        self.handle = None

    def stored(self) -> int:
        return disk_bytes(self.repo)

    def save(self, state: State, step: int, loss: float) -> None:
        assert self.handle is not None
        self.saves += 1
        self.handle.commit(state, "benchmark", step=step, metrics={"loss": loss})

    def load(self) -> object:
        assert self.handle is not None
        return self.handle.checkout()

    def names(self) -> int:
        with self.open() as repo:
            return sum(entry.spec is not None for entry in repo.snapshot().manifest.values())

    def tensor(self, path: str) -> torch.Tensor:
        with self.open() as repo:
            return flat(repo.checkout(select=path))[path]

    def rows(self, path: str, start: int, stop: int) -> torch.Tensor:
        with self.open() as repo:
            found: torch.Tensor = repo.snapshot().slice(path)[start:stop]
            return found

    def history(self) -> list[tuple[int, float]]:
        with self.open() as repo:
            commits = list(repo.log())
        return [(commit.step or 0, commit.metrics["loss"]) for commit in reversed(commits)]

    def changed(self) -> set[str]:
        with self.open() as repo:
            found = repo.diff("HEAD~1", "HEAD", norms=False)
        return {tensor.path for tensor in found.changed}
