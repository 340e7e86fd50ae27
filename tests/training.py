"""A training script that the tests of `capture` start as a process of its own.

    python tests/training.py REPOSITORY train                three steps, a commit, three more
    python tests/training.py REPOSITORY restore load_into    from that commit three more, once each way

Prints for each run the losses of its last three steps, bit for bit, and a digest of what training has become.
"""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn

import chainstore as cs


def run(path: str, how: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    parts = (model, optimizer, scheduler)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8) + random.random() + np.random.rand()).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.item()

    with cs.open(path, create=True) as repo:
        if how == "train":
            for _ in range(3):
                step()
            repo.commit(cs.capture(*parts), step=3)
        elif how == "restore":
            cs.restore(repo.checkout(), *parts)
        else:
            repo["main"].load_into(*parts, rng=True)
    for _ in range(3):
        print(step().hex())
    digest = hashlib.sha256()
    for tensor in [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]:
        digest.update(tensor.detach().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes() + repr(scheduler.state_dict()).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    for how in sys.argv[2:]:
        run(sys.argv[1], how)
