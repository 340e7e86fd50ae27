"""Train small models and record every run as a chain: `python record.py MODE FOLDER [RUN...]`.

Makes one repository for each run, named for it, and prints the digests of what was committed: run -> commit -> path.
Whatever package `chainstore` is found first is the one that records.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from modes import enter

import chainstore as cs

COMMITS = 4
WARM_UP = 40  # steps before the first commit
WIDTH = 128


@dataclass(frozen=True)
class Run:
    """A model that learns.

    Attributes:
        make: parameters -> their optimizer.
        every: steps between two commits.
        dtype: of the parameters.
        scale: of the loss.  A tiny one leaves second moments that are denormal numbers, and steps that eps rules.
        embedding: most rows get no gradient.
        at_rest: once commits begin, nothing gets one.
        rounded: commit what inference takes, bfloat16 weights and a mask of the large ones, and nothing else.
    """

    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    every: int = 1
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    embedding: bool = False
    at_rest: bool = False
    rounded: bool = False


class AsOthersCompute(torch.optim.AdamW):
    """AdamW in the arithmetic of other kernels, on this processor.

    Args:
        product: moments are beta m + (1 - beta) g, as torch 1 computed them; else quotients come first and last
            additions are fused, as on a GPU.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, product: bool) -> None:
        super().__init__(parameters, lr, weight_decay=0.01)
        self.product = product

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        (group,) = self.param_groups
        (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
        for weight in group["params"]:
            kept = self.state[weight]
            if not kept:
                kept |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(weight)}
                kept["exp_avg_sq"] = torch.zeros_like(weight)
            kept["step"] += 1
            moment, square, gradient, step = kept["exp_avg"], kept["exp_avg_sq"], weight.grad, int(kept["step"])
            size, root = lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
            weight.mul_(1 - lr * group["weight_decay"])
            if self.product:
                moment.mul_(beta1).add_(gradient * (1 - beta1))
            else:
                moment.copy_(fused(1 - beta1, gradient - moment, moment))
            square.copy_(fused(1 - beta2, gradient * gradient, square * beta2))
            divisor = square.sqrt() / root + eps
            weight.copy_(fused(-size, moment / divisor, weight))


def fused(number: float, product: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
    """Return number * product + term of float32, rounded once."""
    return (product.double() * torch.tensor(number).double() + term.double()).float()


def adamw(lr: float = 1e-3, **options: bool) -> Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr, weight_decay=0.01, **options)


RUNS = {
    "adamw": Run(adamw()),
    "adamw every 5": Run(adamw(), every=5),
    "adamw every 40": Run(adamw(), every=40),  # too many steps to replay
    "amsgrad": Run(adamw(amsgrad=True)),
    "double": Run(adamw(), dtype=torch.float64),
    "double every 3": Run(adamw(), every=3, dtype=torch.float64),
    "denormal": Run(adamw(), scale=1e-18),
    "denormal every 5": Run(adamw(), every=5, scale=1e-18),
    "embedding": Run(adamw(), embedding=True),
    "embedding every 5": Run(adamw(), every=5, embedding=True),
    "sparse embedding": Run(lambda parameters: torch.optim.SparseAdam(parameters, 1e-3), embedding=True),
    "at rest": Run(adamw(), every=3, embedding=True, at_rest=True),
    "as on a GPU": Run(lambda parameters: AsOthersCompute(parameters, 0.1, product=False)),
    "as before": Run(lambda parameters: AsOthersCompute(parameters, 1e-3, product=True), every=3, embedding=True),
    "momentum": Run(lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9)),
    "bfloat16": Run(adamw(1e-4), rounded=True),
    "bfloat16 every 5": Run(adamw(1e-3), every=5, rounded=True),
}


class Learner:
    """Weights on their way to those of a teacher, with noise."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.scale = run.scale
        self.source = torch.Generator().manual_seed(7)
        shapes = [(2048, 16)] if run.embedding else [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)]
        self.parameters = [torch.nn.Parameter(self.noise(*shape) / 4) for shape in shapes]
        self.optimizer = run.make(self.parameters)

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.source, dtype=self.run.dtype)

    def step(self) -> None:
        self.optimizer.zero_grad()
        if self.run.embedding:
            (table,) = self.parameters
            rows = (torch.rand(24, generator=self.source) ** 3 * len(table)).long()
            sparse = isinstance(self.optimizer, torch.optim.SparseAdam)
            found = torch.nn.functional.embedding(rows, table, sparse=sparse)
            loss = (found - self.noise(24, table.shape[1])).square().mean()
        else:
            first, last = self.parameters
            batch = self.noise(16, WIDTH)
            loss = ((batch @ first).tanh() @ last - batch.roll(1) - self.noise(16, WIDTH)).square().mean()
        (loss * self.scale).backward()
        self.optimizer.step()

    def state(self) -> dict[str, object]:
        weights = {f"w{place}": value.detach() for place, value in enumerate(self.parameters)}
        if self.run.rounded:
            model = {name: value.bfloat16() for name, value in weights.items()}
            return {"model": model, "mask": {name: value.abs() > 0.25 for name, value in weights.items()}}
        return {"model": weights, "optimizer": self.optimizer.state_dict()}


def arrays(value: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state with their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from arrays(item, f"{path}/{key}".lstrip("/"))
    elif isinstance(value, torch.Tensor):
        yield path, value


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()


def record(run: Run, folder: Path) -> dict[str, dict[str, str]]:
    """Record a run, and return the digests of its arrays by commit and path."""
    made = {}
    learner = Learner(run)
    for _ in range(WARM_UP):
        learner.step()
    if run.at_rest:
        learner.scale = 0.0
    with cs.init(folder, encrypt=False, codec="small") as repo:
        for _ in range(COMMITS):
            state = learner.state()
            made[str(repo.commit(state).id)] = {path: digest(tensor) for path, tensor in arrays(state)}
            for _ in range(run.every):
                learner.step()
    return made


def main(mode: str, folder: str, *names: str) -> None:
    enter(mode)
    torch.set_num_threads(1)
    print(json.dumps({name: record(RUNS[name], Path(folder, name)) for name in names or RUNS}))


if __name__ == "__main__":
    main(*sys.argv[1:])
