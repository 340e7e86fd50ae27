"""The states that are saved: each seeded, each moved on by real optimizer steps, each comparable bit by bit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

LAYER = 1 << 20  # parameters of one layer: 4 MiB each of weight and moments
WIDTH = 1024
RANK = 8  # of a LoRA adapter

State = dict[str, object]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the workloads are.

    Attributes:
        dense_mb: weights and moments, 10^6 bytes.  lora_mb: the frozen base.
        tensors: how many small ones.  commits: of the history.
    """

    dense_mb: int = 600
    lora_mb: int = 250
    tensors: int = 10_000
    commits: int = 200


QUICK = Sizes(dense_mb=24, lora_mb=12, tensors=500, commits=20)


class Workload:
    """A state that training moves on.

    Attributes:
        name: to ask for it by.  what: for a table.
        first: whether a first, untimed save comes before the timed ones, which then are about what changed.
        slow_for: peers that take ten times as long here, and so take part in the last turns only.
    """

    name: ClassVar[str]
    what: str = ""
    first: ClassVar[bool] = False
    slow_for: ClassVar[frozenset[str]] = frozenset({"borg", "restic"})

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.steps = 0
        self.make(sizes)
        self.tensor = next(iter(flat(self.state())))

    def make(self, sizes: Sizes) -> None:
        raise NotImplementedError

    def state(self) -> State:
        """Return the live state; it changes at the next step."""
        raise NotImplementedError

    def step(self) -> None:
        """Change what one training step changes."""
        raise NotImplementedError

    def moved(self) -> set[str]:
        """Return the names of the arrays that differ from one step to the next."""
        return set(flat(self.state()))


class Dense(Workload):
    """Every value changes at every step: pre-training with AdamW in fp32."""

    name, what = "dense", "dense AdamW state, every value new"

    def make(self, sizes: Sizes) -> None:
        layers = max(1, round(sizes.dense_mb * 1e6 / (12 * LAYER)))
        self.parameters = [torch.nn.Parameter(torch.randn(WIDTH, LAYER // WIDTH) * 0.02) for _ in range(layers)]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)
        for _ in range(3):
            self.step()

    def state(self) -> State:
        model = {f"layer.{i}.weight": parameter.detach() for i, parameter in enumerate(self.parameters)}
        return {"model": model, "optimizer": self.optimizer.state_dict()}

    def step(self) -> None:
        _train(self.parameters, self.optimizer)
        self.steps += 1


class Lora(Workload):
    """A frozen fp32 base with rank-8 adapters and their moments: the second and later commits of fine-tuning."""

    name, what, first = "lora", "LoRA on a frozen base", True

    def make(self, sizes: Sizes) -> None:
        layers = max(1, round(sizes.lora_mb * 1e6 / (4 * LAYER)))
        self.base = {f"layer.{i}.weight": torch.randn(WIDTH, LAYER // WIDTH) * 0.02 for i in range(layers)}
        self.adapters = {
            f"layer.{i}.{name}": torch.nn.Parameter(torch.randn(*shape) * 0.02)
            for i in range(layers)
            for name, shape in (("a", (RANK, LAYER // WIDTH)), ("b", (WIDTH, RANK)))
        }
        self.optimizer = torch.optim.AdamW(self.adapters.values(), lr=1e-4)
        self.step()

    def state(self) -> State:
        adapters = {name: parameter.detach() for name, parameter in self.adapters.items()}
        return {"base": self.base, "adapters": adapters, "optimizer": self.optimizer.state_dict()}

    def step(self) -> None:
        _train(list(self.adapters.values()), self.optimizer)
        self.steps += 1

    def moved(self) -> set[str]:
        return {name for name in flat(self.state()) if not name.startswith("base/")}


class Small(Workload):
    """Many tensors of 64 floats, all new at each step: what one tensor costs apart from its bytes."""

    name = "small"
    slow_for = frozenset({*Workload.slow_for, "DCP"})

    def make(self, sizes: Sizes) -> None:
        self.tensors = {f"tensor.{i}": torch.randn(64) for i in range(sizes.tensors)}
        count = f"{sizes.tensors:,}".replace(",", " ")
        self.what = f"{count} tensors of 64 floats, every value new"

    def state(self) -> State:
        return {"model": self.tensors}

    def step(self) -> None:
        for tensor in self.tensors.values():
            tensor.add_(torch.randn(64), alpha=0.01)
        self.steps += 1


class History(Workload):
    """A tiny state saved many times."""

    name = "history"

    def make(self, sizes: Sizes) -> None:
        self.commits = sizes.commits
        self.what = f"{sizes.commits} saves of a tiny state"
        self.weight = torch.randn(16)

    def state(self) -> State:
        return {"model": {"weight": self.weight}, "step": self.steps, "loss": self.loss}

    def step(self) -> None:
        self.weight.mul_(0.99)
        self.steps += 1

    @property
    def loss(self) -> float:
        """The metric of the present step."""
        return 1 / (1 + self.steps)


WORKLOADS: Mapping[str, type[Workload]] = {kind.name: kind for kind in (Dense, Lora, Small, History)}


def dense_state(megabytes: int) -> State:
    """Return weights and AdamW moments of about so many MB (10^6 bytes), as a training run has them."""
    return Dense(Sizes(dense_mb=megabytes)).state()


def flat(state: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a state by their path, `/` between keys."""
    return {name: value for name, value in leaves(state) if isinstance(value, torch.Tensor)}


def leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield everything in a state that is not a container, with its path."""
    if isinstance(value, Mapping):
        pairs: Iterator[tuple[object, object]] = iter(value.items())
    elif isinstance(value, list | tuple):
        pairs = iter(enumerate(value))
    else:
        yield name, value
        return
    for key, item in pairs:
        yield from leaves(item, f"{name}/{key}" if name else str(key))


def raw_bytes(state: object) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in flat(state).values())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors have the same dtype, shape and bytes; NaNs and signs of zero count."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bytes(a), _bytes(b))


def differences(state: object, back: object, *, whole: bool = True) -> list[str]:
    """Return the paths at which two states differ.

    Args:
        whole: False compares the tensors only, for formats that keep nothing else.
    """
    pairs, others = dict(leaves(state)), dict(leaves(back))
    if not whole:
        pairs, others = dict(flat(state)), dict(flat(back))
    return [
        name
        for name in pairs.keys() | others.keys()
        if name not in pairs or name not in others or not _same(pairs[name], others[name])
    ]


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and same_bits(a, b)
    return type(a) is type(b) and a == b


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _train(parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
