"""Records: commits and refs as every command shows them, in JSON and in text."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from chainstore.cli.output import Output
from chainstore.cli.wording import number, size
from chainstore.model.change import MarkLine
from chainstore.model.commit import Commit
from chainstore.repository import Repository


def commit_fields(commit: Commit, refs: list[str] | None = None, mark: MarkLine | None = None) -> dict[str, object]:
    """Return a commit for `--json`; a metric that is no finite number is null, and named in `nonfinite`.

    Args:
        mark: where its snapshot was forgotten; `forgotten` says so.
    """
    stats = commit.stats
    fields: dict[str, object] = {
        "id": str(commit.id),
        "parents": [str(parent) for parent in commit.parents],
        "refs": refs or [],
        "step": commit.step,
        "epoch": commit.epoch,
        "time": commit.time.isoformat(),
        "author": commit.author,
        "message": commit.message,
        "metrics": {},
        "meta": _finite(commit.meta),
        "raw_bytes": stats.raw_bytes,
        "new_bytes": stats.new_bytes,
        "stored_bytes": stats.stored_bytes,
    }
    return fields | metric_fields(commit.metrics) | (forgotten_fields(mark) if mark is not None else {})


def forgotten_fields(mark: MarkLine) -> dict[str, object]:
    """Return `forgotten`: when and by which policy, and whether gc has taken the snapshot."""
    time = datetime.fromtimestamp(mark.time_us / 1e6, UTC)
    return {"forgotten": {"time": time.isoformat(), "policy": mark.policy, "swept": mark.swept}}


def mark_of(repo: Repository, commit: Commit) -> MarkLine | None:
    """Return the mark of a commit whose snapshot was forgotten, or None."""
    return repo.marks([commit]).get(commit.id)


def metric_fields(metrics: Mapping[str, float]) -> dict[str, object]:
    """Return `metrics`, with null for what is no finite number, and `nonfinite` with the names of those."""
    odd = {name: str(value) for name, value in metrics.items() if not math.isfinite(value)}
    fields: dict[str, object] = {"metrics": {name: None if name in odd else value for name, value in metrics.items()}}
    return {**fields, "nonfinite": odd} if odd else fields


def _finite(value: object) -> object:
    """Return JSON without the NaN and Infinity that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def names_of_commits(repo: Repository) -> dict[bytes, list[str]]:
    """Return commit id -> what points at it, as people read it: `HEAD -> main`, `dev`, `tag: best`."""
    names: defaultdict[bytes, list[str]] = defaultdict(list)
    for label, target in _labels(repo):
        names[target].append(label)
    return names


def _labels(repo: Repository) -> Iterator[tuple[str, bytes]]:
    current = repo.branch_name
    branches = repo.branches()
    if current is None and repo.head is not None:
        yield "HEAD", repo.head.id
    if current in branches:
        yield f"HEAD -> {current}", branches[current]
    yield from ((name, target) for name, target in branches.items() if name != current)
    yield from ((f"tag: {name}", target) for name, target in repo.tags().items())


def refs_text(out: Output, names: list[str]) -> str:
    """Return `(HEAD -> main, tag: best)`, "" where nothing points here."""
    return out.style(f"({', '.join(names)})", "yellow") if names else ""


def metrics_text(commit: Commit) -> str:
    """Return `loss 1.84  acc 0.7`."""
    return "  ".join(f"{name} {number(value)}" for name, value in commit.metrics.items())


def step_text(commit: Commit) -> str:
    """Return `step 1200`, with the epoch where there is one."""
    parts = [f"{word} {value}" for word, value in (("step", commit.step), ("epoch", commit.epoch)) if value is not None]
    return " ".join(parts)


def bytes_text(commit: Commit) -> str:
    """Return how much of the state had to be stored: `12 MB of 480 MB`."""
    return f"{size(commit.stats.new_bytes)} of {size(commit.stats.raw_bytes)}"


def plain_json(value: object) -> object:
    """Return a plain value as JSON can hold it; what it cannot, as `{"repr": ...}`."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"repr": repr(value)}
    if type(value) in (list, tuple):
        return [plain_json(item) for item in value]  # type: ignore[attr-defined]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain_json(item) for key, item in value.items()}
    return {"repr": repr(value)}
