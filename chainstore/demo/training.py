"""The training program of the demo: an ordinary loop, with a commit every few steps.

    python -m chainstore.demo.training REPOSITORY        train, or go on from the last commit
    python -m chainstore.demo.training --no-commits      the same training, never interrupted, without chainstore
    python -m chainstore.demo.training REPOSITORY --inspect    only say what the last commit holds, bit for bit

It tells what it does in lines of JSON on standard output, for `chainstore.demo.story` to read.
"""

import argparse
import json
import random
import time

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

import chainstore as cs
from chainstore.demo.bits import digests
from chainstore.demo.gpt import GPT, HelpPages, ShuffledBatches

SEED = 20_26
THREADS = 1  # fixed, because sums over another number of threads round differently


class Training:
    """Everything a run consists of; `state` and `load_state` are what makes it resumable to the bit.

    Attributes:
        step: completed optimizer steps.
        losses: one per step, in nats per character.
    """

    def __init__(self, steps: int) -> None:
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(THREADS)
        random.seed(SEED)
        np.random.seed(SEED)
        torch.manual_seed(SEED)
        pages = HelpPages()
        self.characters = pages.characters
        self.model = GPT(pages.characters)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)
        self.loader = ShuffledBatches(pages.windows, SEED)
        self.step = 0
        self.losses: list[float] = []

    def state(self) -> dict[str, object]:
        """Return the whole of the run: weights, optimizer, schedule, random numbers, place in the data, losses."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loader": self.loader.state_dict(),
            "random": {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()},
            "step": self.step,
            "losses": self.losses,
        }

    def load_state(self, state: object) -> None:
        """Become the run that `state` was taken from."""
        assert isinstance(state, dict)
        for name in ("model", "optimizer", "scheduler", "loader"):
            getattr(self, name).load_state_dict(state[name])
        numbers = state["random"]
        random.setstate(numbers["python"])
        np.random.set_state(numbers["numpy"])
        torch.set_rng_state(numbers["torch"])
        self.step, self.losses = state["step"], state["losses"]

    def noisy(self, text: torch.Tensor) -> torch.Tensor:
        """Return `text` with a few characters replaced, so that the run also depends on Python's and NumPy's chance."""
        share = random.uniform(0.0, 0.1)
        hit = torch.from_numpy(np.random.random_sample(text.shape) < share)
        return torch.where(hit, torch.randint(self.characters, text.shape), text)

    def learn(self, batch: torch.Tensor) -> None:
        """Do one optimizer step on `batch`, [BATCH, CONTEXT + 1] integers."""
        loss = self.model(self.noisy(batch[:, :-1]), batch[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        self.losses.append(loss.item())


def tell(event: str, **facts: object) -> None:
    """Say one thing to whoever watches."""
    print(json.dumps({"event": event, **facts}), flush=True)


def commit(repo: cs.Repository, training: Training) -> None:
    """Commit the run as it stands, telling when it begins and when it is durable."""
    loss = training.losses[-1]
    tell("committing", step=training.step)
    start = time.perf_counter()
    message = f"learning rate {training.scheduler.get_last_lr()[0]:.2e}"
    done = repo.commit(training.state(), message, step=training.step, metrics={"loss": loss})
    tell("committed", step=training.step, id=done.id.short, seconds=time.perf_counter() - start)


def train(steps: int, every: int, repo: cs.Repository | None) -> Training:
    """Train for `steps` steps in all, committing to `repo` every `every` steps and going on from its last commit."""
    training = Training(steps)
    if repo is not None and repo.head is not None:
        training.load_state(repo.checkout("HEAD"))
    weights = sum(parameter.numel() for parameter in training.model.parameters())
    tell("started", step=training.step, weights=weights)
    batches = iter(training.loader)
    while training.step < steps:
        training.learn(next(batches))
        tell("step", step=training.step, loss=training.losses[-1])
        if repo is not None and training.step % every == 0:
            commit(repo, training)
    return training


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chainstore.demo.training")
    parser.add_argument("repository", nargs="?")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--no-commits", action="store_true")
    parser.add_argument("--inspect", action="store_true")
    options = parser.parse_args()
    if options.no_commits:
        tell("final", digests=digests(train(options.steps, options.every, None).state()))
        return
    with cs.open(options.repository, create=not options.inspect) as repo:
        if options.inspect:
            tell("final", digests=digests(repo.checkout("HEAD")))
        else:
            train(options.steps, options.every, repo)
            tell("finished")


if __name__ == "__main__":
    main()
