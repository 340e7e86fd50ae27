"""Descriptions: what a state is, as JSON that stays the same whatever library prints it."""

import dataclasses
import hashlib
import json
import random
import struct
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from chainstore.model.paths import format_path
from chainstore.repository import Repository
from tests.golden.states import Point

Described = dict[str, object]


def described(state: Mapping[Any, object]) -> dict[str, str]:
    """Return what is below each key of a state, as a hash of its description."""
    texts = {format_path((key,)): json.dumps(describe(value), sort_keys=True) for key, value in state.items()}
    return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}


def describe(value: object) -> Described:
    """Return type and content of a value, arrays by the hash of their bytes."""
    if isinstance(value, Point):
        return {"type": "Point", "items": [describe(value.x), describe(value.y)]}
    if isinstance(value, torch.Generator):
        return {"type": "torch.Generator", "state": describe(value.get_state())}
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        return {
            "type": "coo",
            "parts": [describe(value.indices()), describe(value.values())],
            "shape": list(value.shape),
        }
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_csr:
        parts = [describe(part) for part in (value.crow_indices(), value.col_indices(), value.values())]
        return {"type": "csr", "parts": parts, "shape": list(value.shape)}
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        told = _array(value, str(value.dtype), value.stride(), raw.tobytes())
        return {**told, "requires_grad": value.requires_grad}
    if isinstance(value, np.ndarray):
        told = _array(value, repr(value.dtype.descr), value.strides, value.tobytes())
        return {**told, "writeable": value.flags.writeable}
    if isinstance(value, np.generic):
        return {"type": "scalar", "dtype": value.dtype.str, "bytes": value.tobytes().hex()}
    if isinstance(value, dict):
        told = {"type": type(value).__name__, "items": [[describe(key), describe(each)] for key, each in value.items()]}
        return {**told, "factory": repr(value.default_factory)} if isinstance(value, defaultdict) else told
    if isinstance(value, list | tuple | deque):
        told = {"type": type(value).__name__, "items": [describe(item) for item in value]}
        return {**told, "maxlen": value.maxlen} if isinstance(value, deque) else told
    if isinstance(value, set | frozenset):
        return {"type": type(value).__name__, "items": sorted((describe(item) for item in value), key=repr)}
    if isinstance(value, float):
        return {"type": "float", "bytes": struct.pack(">d", value).hex()}
    if isinstance(value, random.Random):
        return {"type": "Random", "state": repr(value.getstate())}
    if isinstance(value, np.random.Generator):
        return {"type": "Generator", "state": repr(value.bit_generator.state)}
    return {"type": type(value).__name__, "text": repr(value)}


def _array(value: Any, dtype: str, strides: tuple[int, ...], data: bytes) -> Described:
    told = {"type": type(value).__name__, "dtype": dtype, "shape": list(value.shape), "strides": list(strides)}
    return {**told, "sha256": hashlib.sha256(data).hexdigest()}


def surroundings(repo: Repository) -> Described:
    """Return what a repository says of itself besides its states: refs, reflogs, settings, commits, marks, slots."""
    refs = {name: str(id) for name, id in repo.branches().items()}
    tags = {name: str(id) for name, id in repo.tags().items()}
    commits = [
        {
            "id": str(commit.id),
            "tree": str(commit.tree),
            "parents": [str(parent) for parent in commit.parents],
            "step": commit.step,
            "epoch": commit.epoch,
            "time": commit.time.isoformat(),
            "author": commit.author,
            "message": commit.message,
            "metrics": {name: struct.pack(">d", value).hex() for name, value in commit.metrics.items()},
            "meta": dict(commit.meta),
            "stats": [value for name, value in dataclasses.asdict(commit.stats).items() if name != "seconds"],
        }
        for commit in repo.log(all_refs=True)
    ]
    lines = {
        ref: [[str(line.old), str(line.new), line.time_us, line.reason] for line in repo.reflog(ref)]
        for ref in (*refs, *tags, "HEAD", "deleted")
    }
    marks = {str(id): [mark.policy, mark.time_us, mark.swept] for id, mark in repo.marks().items()}
    slots = [[slot.kind, slot.label] for slot in repo.list_keys()] if repo.encrypted else []
    told = {"id": repo.id, "encrypted": repo.encrypted, "branch": repo.branch_name, "settings": repo.settings()}
    return {
        **told,
        "branches": refs,
        "tags": tags,
        "commits": commits,
        "reflogs": lines,
        "marks": marks,
        "slots": slots,
    }
