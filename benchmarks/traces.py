"""The runs whose chains are measured: real models, real losses on made-up data, real optimizer steps.

Each is seeded, trains until its moments are those of training under way, and from there on records its state every
`every` steps (`benchmarks.recorded`).  docs/benchmarks.md says what each stands for.
"""

import copy
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.recorded import Recorder, Trace
from benchmarks.workloads import State

SEED = 0
CONTEXT = 32  # tokens of one line of text
RANK = 8
EXPERTS, TOP = 64, 2
FOLLOWERS = 4  # words that may come after a word
Part = tuple[str, str]


class Training:
    """A run.

    Args:
        width, depth, rows: what they mean is up to the run.
        lr: learning rate.

    Attributes:
        warm_up: steps before the first state is recorded.
        part: path of one array, and of the part of the state that it is in.
    """

    warm_up: ClassVar[int] = 200
    part: Part

    def __init__(self, width: int, depth: int, rows: int, lr: float) -> None:
        torch.manual_seed(SEED)
        self.width, self.depth, self.rows, self.lr = width, depth, rows, lr
        self.source = torch.Generator().manual_seed(SEED + 1)
        self.make()

    def make(self) -> None:
        raise NotImplementedError

    def warm(self, steps: int) -> None:
        """Train until what follows is training under way."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        raise NotImplementedError

    def state(self) -> State:
        raise NotImplementedError


class Attention(nn.Module):
    """Causal self-attention with a matrix each for queries, keys, values and what comes out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        split = [part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Predicts the next of some words; learns the positions, ties nothing."""

    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def ranks(count: int, size: tuple[int, ...], source: torch.Generator, exponent: float = 1.0) -> Tensor:
    """Draw numbers below `count`, of which the n-th is drawn with a probability of about n to the -`exponent`."""
    chance = torch.rand(size, generator=source, dtype=torch.float64)
    if exponent == 1.0:
        drawn = torch.exp(chance * torch.log(torch.tensor(count + 1.0, dtype=torch.float64))) - 1
    else:
        power = 1 - exponent
        drawn = (1 + chance * ((count + 1.0) ** power - 1)) ** (1 / power) - 1
    return drawn.long().clamp(max=count - 1)


class Text:
    """Lines of words: the first one as often as words are, each other one of those that may follow."""

    def __init__(self, words: int, source: torch.Generator) -> None:
        self._words, self._source = words, source
        self._next = ranks(words, (words, FOLLOWERS), source)

    def lines(self, count: int) -> tuple[Tensor, Tensor]:
        """Return [count, CONTEXT] words, and for each the one after it."""
        line = [ranks(self._words, (count,), self._source)]
        for _ in range(CONTEXT):
            choice = ranks(FOLLOWERS, (count,), self._source)
            line.append(self._next[line[-1], choice])
        text = torch.stack(line, 1)
        return text[:, :-1], text[:, 1:]


class DenseGpt(Training):
    """Pre-training: every weight and both its moments in fp32, AdamW."""

    part = "model/blocks.0.up.weight", "model/blocks.0.*"
    lines: ClassVar[int] = 4

    def make(self) -> None:
        self.text = Text(self.rows, self.source)
        self.model = Gpt(self.rows, self.width, self.depth)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=0.1)

    def step(self) -> None:
        text, following = self.text.lines(self.lines)
        _learn(self.optimizer, functional.cross_entropy(self.model(text).flatten(0, 1), following.flatten()))

    def state(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Bf16Rl(DenseGpt):
    """Late fine-tuning: bf16 weights of an fp32 master that AdamW moves a little, by a reward; only the weights."""

    warm_up = 100  # steps of each of the two
    lines = 2

    def warm(self, steps: int) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        for _ in range(steps):
            super().step()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=0.0)
        super().warm(steps)

    def step(self) -> None:
        text, following = self.text.lines(self.lines)
        rounded = {name: value.bfloat16().float() for name, value in self.model.named_parameters()}
        scores = torch.func.functional_call(self.model, rounded, (text,))
        loss = functional.cross_entropy(scores.transpose(1, 2), following, reduction="none").mean(1)
        gain = torch.rand(len(text), generator=self.source) - 0.5
        _learn(self.optimizer, (gain * loss).sum())

    def state(self) -> State:
        return {"model": {name: value.bfloat16() for name, value in self.model.state_dict().items()}}


class Adapted(nn.Module):
    """A frozen matrix and a small one of rank 8 beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(RANK, base.in_features) * base.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + functional.linear(functional.linear(x, self.a), self.b)


class Lora(DenseGpt):
    """Fine-tuning of adapters at queries and values; the rest of the model is frozen and in every state."""

    warm_up = 20
    part = "model/blocks.0.attention.q.b", "model/blocks.0.*"

    def make(self) -> None:
        self.text = Text(self.rows, self.source)
        self.model = Gpt(self.rows, self.width, self.depth).requires_grad_(False)
        for block in self.model.blocks:
            block.attention.q, block.attention.v = Adapted(block.attention.q), Adapted(block.attention.v)
        adapters = [value for name, value in self.model.named_parameters() if name.endswith((".a", ".b"))]
        for adapter in adapters:
            adapter.requires_grad_(True)
        for block in self.model.blocks:
            block.attention.q.base.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(adapters, lr=self.lr)


class ZipfEmbedding(Training):
    """One large embedding, of which a step touches few rows; pairs of words that occur together are drawn closer.

    Dense AdamW changes every row at every step all the same: by its momentum, and by decay.
    """

    part = "model/weight", "model/*"
    touch: ClassVar[int] = 1024  # rows for each pair of a step

    def make(self) -> None:
        self.table = nn.Embedding(self.rows, self.width, sparse=self.sparse)
        nn.init.normal_(self.table.weight, std=0.05)
        self.partner = torch.randint(self.rows, (self.rows,), generator=self.source)
        kind = torch.optim.SparseAdam if self.sparse else torch.optim.AdamW
        self.optimizer = kind(self.table.parameters(), lr=self.lr)
        for part in torch.arange(self.rows).chunk(8):  # every row was met once
            self._meet(part[torch.randperm(len(part), generator=self.source)])

    sparse: ClassVar[bool] = False

    def step(self) -> None:
        self._meet(ranks(self.rows, (max(16, self.rows // self.touch),), self.source, 1.1))

    def _meet(self, words: Tensor) -> None:
        for part in words.split(512):
            scores = self.table(part) @ self.table(self.partner[part]).T * 8
            loss = functional.cross_entropy(scores, torch.arange(len(part))) * (len(part) / len(words))
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> State:
        return {"model": self.table.state_dict(), "optimizer": self.optimizer.state_dict()}


class SparseZipf(ZipfEmbedding):
    """The same with SparseAdam, which leaves alone what a step does not touch."""

    sparse = True


class Moe(Training):
    """64 experts, of which each token is sent to two; experts that nobody is sent to get a gradient of zero.

    Which experts a batch goes to is skewed: few of them are popular, and the tokens of a batch are alike.
    """

    part = "model/up", "model/*"
    tokens: ClassVar[int] = 16

    def make(self) -> None:
        self.router = nn.Linear(self.width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 4 * self.width, self.width) * self.width**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, self.width, 4 * self.width) * (4 * self.width) ** -0.5)
        self.popular = -1.2 * torch.log(1.0 + torch.randperm(EXPERTS, generator=self.source))
        self.goal = torch.randn(self.width, self.width, generator=self.source) * self.width**-0.5
        self.optimizer = torch.optim.AdamW([self.router.weight, self.up, self.down], lr=self.lr)
        for part in torch.arange(EXPERTS).chunk(8):  # every expert was met once
            x = torch.randn(2 * len(part), self.width, generator=self.source)
            self._learn(x, part.repeat(2, 1).T.reshape(-1, 1), torch.ones(len(x), 1))

    def step(self) -> None:
        topic = torch.randn(1, self.width, generator=self.source)
        x = topic + 0.5 * torch.randn(self.tokens, self.width, generator=self.source)
        chance = torch.softmax(self.router(x) + self.popular, -1)
        share, chosen = chance.topk(TOP, -1)
        self._learn(x, chosen, share / share.sum(-1, keepdim=True))

    def _learn(self, x: Tensor, chosen: Tensor, share: Tensor) -> None:
        hidden = functional.gelu(torch.einsum("nkhw,nw->nkh", self.up[chosen], x))
        out = torch.einsum("nkwh,nkh->nkw", self.down[chosen], hidden)
        _learn(self.optimizer, functional.mse_loss((share[..., None] * out).sum(1), torch.tanh(x @ self.goal)))

    def state(self) -> State:
        model = {"router": self.router.weight.detach(), "up": self.up.detach(), "down": self.down.detach()}
        return {"model": model, "optimizer": self.optimizer.state_dict()}


class FrozenCnn(Training):
    """Transfer learning: frozen convolutions, BatchNorm statistics that move, a head under SGD with momentum."""

    warm_up = 10
    part = "model/head.weight", "model/body.0.*"

    def make(self) -> None:
        channels = [3, *(self.width << stage for stage in range(self.depth))]
        stages = [self._stage(*pair) for pair in pairwise(channels)]
        self.body = nn.Sequential(*stages).requires_grad_(False)
        self.head = nn.Linear(channels[-1], 100)
        self.model = nn.ModuleDict({"body": self.body, "head": self.head})
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=self.lr, momentum=0.9)

    @staticmethod
    def _stage(before: int, after: int) -> nn.Sequential:
        parts = (nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU())
        return nn.Sequential(*parts, nn.Conv2d(after, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU())

    def step(self) -> None:
        label = torch.randint(100, (8,), generator=self.source)
        image = torch.randn(8, 3, 32, 32, generator=self.source) + label[:, None, None, None] / 100
        _learn(self.optimizer, functional.cross_entropy(self.head(self.body(image).mean((2, 3))), label))

    def state(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def _learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use so many threads."""
    had = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(had)


Size = tuple[int, int, int]  # width, depth, rows


@dataclass(frozen=True, slots=True)
class Chain:
    """A run and how it is recorded.

    Attributes:
        name, id: to ask for it by; several share an id.
        every: optimizer steps from one state to the next.
        sizes: of the model, by "quick", "default" and "full".
        states: how many, by the same; those of one branch, where there are several.
        branches: that begin where the first state is, with a learning rate each.
        target: raw / stored that is meant to be reached, None for none.
    """

    name: str
    id: str
    what: str
    kind: type[Training]
    lr: float
    every: int
    sizes: Mapping[str, Size]
    states: Mapping[str, int]
    target: float | None = None
    branches: int = 0

    def key(self, size: str) -> str:
        """Return what a trace is known by."""
        parts = (self.name, self.lr, self.every, self.sizes[size], self.states[size], self.branches, self.warm_up(size))
        return f"{parts} seed {SEED} torch {torch.__version__}"

    def warm_up(self, size: str) -> int:
        return 8 if size == "quick" else self.kind.warm_up

    def record(self, size: str, folder: Path) -> Trace:
        """Train, and return the trace, which `folder` then holds instead of what was there."""
        shutil.rmtree(folder, ignore_errors=True)
        with _threads(os.cpu_count() or 1 if size == "full" else 1):  # small matrices are multiplied faster by one
            return self._record(size, folder)

    def _record(self, size: str, folder: Path) -> Trace:
        training = self.kind(*self.sizes[size], self.lr)
        training.warm(self.warm_up(size))
        recorder, steps = Recorder(folder), self.warm_up(size)
        recorder.add(training.state(), steps)
        if self.branches:
            self._fork(training, size, recorder, steps)
        for _ in range(0 if self.branches else self.states[size] - 1):
            for _ in range(self.every):
                training.step()
            steps += self.every
            recorder.add(training.state(), steps)
        return recorder.close(self.key(size), self.what, training.part)

    def _fork(self, training: Training, size: str, recorder: Recorder, steps: int) -> None:
        """Let branches go on from where a run is, in turns, each with its own rate and its own data."""
        runs = [copy.deepcopy(training) for _ in range(self.branches)]
        tips = [0] * len(runs)
        for number, run in enumerate(runs):
            run.source.manual_seed(SEED + 2 + number)
            for group in run.optimizer.param_groups:  # type: ignore[attr-defined]
                group["lr"] = self.lr * 2 ** (number % 4 - 2)
        for turn in range(1, self.states[size] + 1):
            for number, run in enumerate(runs):
                for _ in range(self.every):
                    run.step()
                tips[number] = recorder.add(run.state(), steps + turn * self.every, f"run-{number}", tips[number])


GPT: Mapping[str, Size] = {"quick": (48, 2, 256), "default": (128, 4, 1024), "full": (512, 3, 1024)}
BF16: Mapping[str, Size] = {"quick": (96, 2, 256), "default": (256, 4, 1024), "full": (768, 8, 2048)}
LORA: Mapping[str, Size] = {"quick": (128, 1, 256), "default": (640, 1, 1024), "full": (2048, 5, 1024)}
ZIPF: Mapping[str, Size] = {"quick": (16, 1, 4096), "default": (32, 1, 1 << 16), "full": (64, 1, 1 << 20)}
MOE: Mapping[str, Size] = {"quick": (16, 1, 1), "default": (64, 1, 1), "full": (352, 1, 1)}
CNN: Mapping[str, Size] = {"quick": (16, 2, 1), "default": (64, 4, 1), "full": (140, 4, 1)}
MANY = {"quick": 10, "default": 25, "full": 25}
FEW = {"quick": 3, "default": 25, "full": 25}

_DENSE = Chain("dense-gpt-k1", "W1", "dense AdamW fp32, k = 1", DenseGpt, 1e-3, 1, GPT, MANY, 2.9)
_BF16 = Chain("bf16-rl-k1", "W2", "bf16 weights, lr 1e-5, k = 1", Bf16Rl, 1e-5, 1, BF16, {**MANY, "full": 51}, 25.0)
_ZIPF = Chain("zipf-dense-k1", "W4", "Zipf embedding, dense AdamW, k = 1", ZipfEmbedding, 1e-3, 1, ZIPF, MANY, 200.0)
_CHAINS = (
    _DENSE,
    replace(_DENSE, name="dense-gpt-k10", what="dense AdamW fp32, k = 10", every=10, target=1.40),
    replace(_DENSE, name="dense-gpt-k100", what="dense AdamW fp32, k = 100", every=100, states=FEW, target=1.34),
    _BF16,
    replace(_BF16, name="bf16-rl-k10", what="bf16 weights, lr 1e-5, k = 10", every=10, target=8.0),
    replace(_BF16, name="bf16-rl-slow", what="bf16 weights, lr 1e-6, k = 1", lr=1e-6, target=None),
    Chain(
        *("lora", "W3", "LoRA on a frozen base, k = 1", Lora, 1e-4, 1, LORA),
        {"quick": 12, "default": 101, "full": 101},
        100.0,
    ),
    replace(_ZIPF, name="zipf-sparse", what="Zipf embedding, SparseAdam, k = 1", kind=SparseZipf, target=None),
    _ZIPF,
    replace(_ZIPF, name="zipf-dense-k10", what="Zipf embedding, dense AdamW, k = 10", every=10, target=20.0),
    Chain("moe", "W5", "64 experts, top-2, skewed, k = 1", Moe, 1e-3, 1, MOE, MANY, 20.0),
    Chain(
        *("frozen-cnn", "W6", "frozen convolutions, moving BatchNorm, k = 1", FrozenCnn, 1e-2, 1, CNN),
        {"quick": 10, "default": 40, "full": 40},
    ),
    Chain(
        *(
            "fork-tree",
            "W7",
            "8 branches of dense AdamW, k = 10",
            DenseGpt,
            1e-3,
            10,
            {**GPT, "default": (96, 3, 1024), "full": (400, 3, 1024)},
        ),
        {"quick": 2, "default": 5, "full": 5},
        branches=8,
    ),
)
CHAINS: Mapping[str, Chain] = {chain.name: chain for chain in _CHAINS}
