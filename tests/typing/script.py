"""A training script as its author types it: `mypy --strict` must have nothing to say about it.

tests/typing/test_typing.py checks that; nobody runs it.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch
from torch import nn

import chainstore as cs


def train(path: Path, total: int) -> cs.Commit | None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    ema = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    scaler = torch.amp.GradScaler("cpu")
    commit: cs.Commit | None = None
    with cs.open(path, create=True, key=cs.Passphrase("correct horse"), max_memory="64MiB") as repo:
        start = resume(repo, model, optimizer, scheduler, scaler)
        for step in range(start, total):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            state = cs.capture(model, optimizer, scheduler, scaler, ema=ema)
            state["epoch"] = 1
            commit = repo.commit(state, "step", step=step + 1, metrics={"loss": loss}, tags=["good"])
            print(commit.short, commit.step, commit.metrics["loss"], commit.stats.stored_bytes)
    return commit


def resume(
    repo: cs.Repository,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    scaler: torch.amp.GradScaler,
) -> int:
    if repo.head is None:
        return 0
    result: cs.LoadResult = repo["latest"].load_into(model, optimizer, scheduler, scaler, rng=True)
    return result.step or 0


def look(repo: cs.Repository) -> dict[str, torch.Tensor]:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    steps: list[int | None] = [commit.step for commit in repo.log("main", max_count=10, since=yesterday)]
    snapshot: cs.Snapshot = repo.snapshot(f"step:{steps[0]}")
    info: cs.TensorInfo = snapshot.info("model/0.weight")
    rows: torch.Tensor = snapshot.slice("model/0.weight")[: info.shape[0] // 2]
    weight: torch.Tensor = snapshot["model"]["0.weight"]
    parts: dict[str, torch.Tensor] = {name: snapshot["model"][name] for name in snapshot["model"].keys("model/*")}
    report: cs.VerifyReport = repo.verify("data")
    stats: cs.RepositoryStats = repo.stats()
    print(report.ok, stats.stored_bytes, rows.shape, weight.shape, repo.resolve("HEAD").short)
    return parts


def go_back(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    try:
        with cs.open(path, readonly=True) as repo:
            state = repo.checkout("main~2", exclude="ema/**", map_location="cpu")
            result = cs.restore(state, model, optimizer, strict=False)
            repo.snapshot("main").load_into(generator=model, rng=False, at=None)
            print(result.missing_keys, result.mismatched)
    except cs.errors.StateMismatch as error:
        print(error.missing, error.hint)
    except cs.ChainError as error:
        raise SystemExit(error.exit_code) from error


class Tokenizer:
    def __init__(self, words: list[str]) -> None:
        self.words = words


cs.register(Tokenizer, lambda tokenizer: tokenizer.words, Tokenizer, version=2)
