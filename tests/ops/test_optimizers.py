"""Whatever optimizer moves a state: a chain of it is never larger than its snapshots by themselves."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.testing.same import assert_same
from tests.ops.optimizers import EightBit, Lion, Muon

STEPS, FIRST = 10, 3
WORDS, WIDTH = 1200, 96  # arrays of 37 to 460 kB
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3),
    "AdamW fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "AdamW amsgrad": partial(torch.optim.AdamW, lr=1e-3, amsgrad=True),
    "RAdam": partial(torch.optim.RAdam, lr=1e-3),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "Adafactor": partial(torch.optim.Adafactor, lr=1e-2),
    "Lion": Lion,
    "Muon": Muon,
    "8-bit AdamW": EightBit,
}


def states(make: Make, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield the state of a model of words after each step of training."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    net.to(dtype)
    optimizer = make(net.parameters())
    for step in range(FIRST + STEPS):
        words = torch.randint(0, WORDS // 2, (64,))  # the others are never met
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(words).float(), words * 7 % WIDTH).backward()
        optimizer.step()
        if step >= FIRST:
            yield {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_chain_is_never_larger_than_its_snapshots_alone(name: str, dtype: torch.dtype, tmp_path: Path):
    """Alone: byte planes and zstd, as hard as `small` tries; the first snapshot of a repository has no other way."""
    with cs.init(tmp_path / "chain", encrypt=False, codec="small") as chain:
        kept = []
        for number, state in enumerate(states(OPTIMIZERS[name], dtype)):
            with cs.init(tmp_path / str(number), encrypt=False, codec="small") as alone:
                by_itself = alone.commit(state).stats.stored_bytes
            done = chain.commit(state, step=number)
            assert done.stats.stored_bytes <= by_itself, f"snapshot {number}"
            kept.append((done, deepcopy(state)))
        for done, state in reversed(kept):
            assert_same(state, chain.checkout(done))
