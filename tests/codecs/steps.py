"""Real optimizer steps on small models, for the tests of predictors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from chainstore.codecs.adam import FLOAT_TYPES, Optimizer
from chainstore.codecs.adam_parameters import Hyper, Parameters, Predictor, parameters_for, parse
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.planes import WORD_TYPES, Scratch

State = dict[str, np.ndarray]
NAMES = {"m": "exp_avg", "v": "exp_avg_sq", "x": "max_exp_avg_sq", "b": "momentum_buffer"}


@dataclass(frozen=True)
class Way:
    """How to make an optimizer, and what to tell a predictor of it."""

    make: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
    hyper: Hyper


@contextmanager
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other on several cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def adamw(**options) -> Way:
    hyper = Hyper(1e-3, weight_decay=0.01, amsgrad=options.get("amsgrad", False))
    return Way(lambda parameters: torch.optim.AdamW(parameters, 1e-3, **options), hyper)


def adam(weight_decay: float, **options) -> Way:
    hyper = Hyper(1e-3, weight_decay=weight_decay, decoupled=False)
    return Way(lambda parameters: torch.optim.Adam(parameters, 1e-3, weight_decay=weight_decay, **options), hyper)


def state_of(parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> State:
    """Return weights and moments, each as one flat array."""
    parameters = list(parameters)
    state = {"w": np.concatenate([p.detach().numpy().ravel() for p in parameters])}
    for name, key in NAMES.items():
        if key in optimizer.state[parameters[0]]:
            state[name] = np.concatenate([optimizer.state[p][key].numpy().ravel() for p in parameters])
    return state


@one_thread()
def trained(way: Way, steps: Iterable[int], dtype: torch.dtype = torch.float32) -> dict[int, State]:
    """Return the states after `steps` of a model that learns from noisy data, dense in every parameter."""
    steps, width = list(steps), 48
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, 2 * width)]
        model = torch.nn.Sequential(*layers).to(dtype)
    teacher, optimizer, states = noise(width, 2 * width) / 8, way.make(model.parameters()), {}
    for step in range(1, max(steps) + 1):
        batch = noise(8, width)
        optimizer.zero_grad()
        (model(batch) - batch @ teacher - noise(8, 2 * width)).square().mean().backward()
        optimizer.step()
        if step in steps:
            states[step] = state_of(model.parameters(), optimizer)
    return states


@one_thread()
def embedded(way: Way, steps: Iterable[int], length: int = 600, width: int = 16) -> dict[int, State]:
    """Return the states after `steps` of an embedding whose gradient is zero, or is not there, in most rows."""
    steps, generator, states = list(steps), torch.Generator().manual_seed(2), {}
    table = torch.nn.Parameter(torch.randn(length, width, generator=generator))
    optimizer = way.make([table])
    for step in range(1, max(steps) + 1):
        words = (torch.rand(12, generator=generator) ** 3 * length).long()
        optimizer.zero_grad()
        rows = torch.nn.functional.embedding(words, table, sparse=isinstance(optimizer, torch.optim.SparseAdam))
        (rows - torch.randn(12, width, generator=generator)).square().mean().backward()
        optimizer.step()
        if step in steps:
            states[step] = state_of([table], optimizer)
    return states


def predicted(parameters: Parameters | bytes, bases: Iterable[np.ndarray]) -> np.ndarray:
    """Return the prediction as floats."""
    parameters = parse(parameters) if isinstance(parameters, bytes) else parameters
    bases = list(bases)
    width = bases[0].itemsize
    out = np.empty(bases[0].size, WORD_TYPES[width])
    with same_everywhere():
        Optimizer(parameters, width, Scratch()).predict([base.view(WORD_TYPES[width]) for base in bases], out)
    return out.view(FLOAT_TYPES[width])


def bases_of(predictor: Predictor, before: State, after: State) -> list[np.ndarray]:
    """Return what a predictor computes from."""
    w, m, v = (before.get(name, before["w"]) for name in "wmv")
    greatest = after.get("x", after.get("v"))
    return {
        Predictor.SECOND: lambda: [v, m, after["m"]],
        Predictor.WEIGHT: lambda: [w, after["m"], greatest],
        Predictor.FIRST_IDLE: lambda: [before.get("b", m)],
        Predictor.SECOND_IDLE: lambda: [v],
        Predictor.WEIGHT_IDLE: lambda: [w, m, before.get("x", v)],
        Predictor.SECOND_MIXED: lambda: [v, m, after["m"]],
        Predictor.WEIGHT_MIXED: lambda: [w, m, after["m"], greatest],
        Predictor.MOMENTUM: lambda: [w, after["b"]],
        Predictor.GREATEST: lambda: [before["x"], after["v"]],
        Predictor.WEIGHT_TOUCHED: lambda: [w, m, after["m"], greatest],
        Predictor.SECOND_TOUCHED: lambda: [v, m, after["m"]],
    }[predictor]()


TARGETS = {
    Predictor.SECOND: "v",
    Predictor.WEIGHT: "w",
    Predictor.FIRST_IDLE: "m",
    Predictor.SECOND_IDLE: "v",
    Predictor.WEIGHT_IDLE: "w",
    Predictor.SECOND_MIXED: "v",
    Predictor.WEIGHT_MIXED: "w",
    Predictor.MOMENTUM: "w",
    Predictor.GREATEST: "x",
    Predictor.WEIGHT_TOUCHED: "w",
    Predictor.SECOND_TOUCHED: "v",
}


def exact(
    predictor: Predictor, way: Way, states: dict[int, State], step: int, k: int = 1, variant: int = 0
) -> np.ndarray:
    """Return which items come out of a prediction over the `k` steps before `step` as they are."""
    before, after = states[step - k], states[step]
    parameters = parameters_for(predictor, way.hyper, step, k, variant)
    bits = WORD_TYPES[after["w"].itemsize]
    return predicted(parameters, bases_of(predictor, before, after)).view(bits) == after[TARGETS[predictor]].view(bits)
