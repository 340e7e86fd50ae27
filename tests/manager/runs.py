"""A small training run: a network with dropout, shuffled data, AdamW with its counters on the host."""

from collections.abc import Callable
from typing import Any

import torch

Hook = Callable[[int, "Run", float], None]


class Run:
    """Everything a run consists of; two that were made with one seed compute the same."""

    def __init__(self, seed: int = 0, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)
        )
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        """Do one optimizer step on random data, and return the loss."""
        loss = self.model(torch.randn(8, 16)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def train(self, start: int, stop: int, hook: Hook | None = None) -> None:
        """Do the steps from `start` to `stop`, and call the hook after each with the number of completed ones."""
        for number in range(start, stop):
            loss = self.step()
            if hook is not None:
                hook(number + 1, self, loss)

    def bits(self) -> dict[str, Any]:
        """Return everything that the next step depends on, as bytes."""
        found: dict[str, Any] = {name: value.numpy().tobytes() for name, value in self.model.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                found[f"{number}/{name}"] = value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
        found["rng"] = torch.get_rng_state().numpy().tobytes()
        return found

    def scramble(self) -> None:
        """Change every tensor in place, the counters of the optimizer too."""
        with torch.no_grad():
            for value in self.model.state_dict().values():
                value.mul_(-1.5).add_(1)
            for moments in self.optimizer.state.values():
                for value in moments.values():
                    if isinstance(value, torch.Tensor):
                        value.add_(1)
