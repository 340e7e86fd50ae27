"""How well and how fast each predictor does on real optimizer steps, one thread.

Run from the repository root: `python -m benchmarks.micro.adam [--seconds 0.3]`.

Two models, 600 steps of AdamW in: one that learns dense weights from noisy data, and an embedding most of whose rows
see no gradient (words by a power law).  "exact" is the share of items that are predicted to the bit, "ratio" raw bytes
over payload (against "alone", byte planes without a base, and "diff.", the integer difference to the first base).  GB/s
are of raw state per second of processor time, over chunks of 1 MiB, each decoded and compared first.  The last lines
are whole states: of each part the smallest that is offered.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch

from chainstore.codecs.adam import FLOAT_TYPES, Optimizer
from chainstore.codecs.adam_codec import make
from chainstore.codecs.adam_parameters import MOST_REPLAYED, MOST_STEPS, Hyper, Predictor, parameters_for, parse
from chainstore.codecs.base import ADAM, DIFFERENCE, EFFORTS, NOT_SHORTER, Against, Hint
from chainstore.codecs.chain import Encoder
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.planes import WORD_TYPES, Scratch
from chainstore.model.spec import Spec

CHUNK = 1 << 20
FLOAT = Spec("float32", (1,))
HYPER = Hyper(1e-3, weight_decay=0.01)
START, APART = 600, (1, 10, 100)
SNAPSHOTS = {START, *(START + k for k in APART)}
WIDTH, WORDS = 384, 40_000

State = dict[str, np.ndarray]
Step = Callable[[], torch.Tensor]


def dense() -> tuple[list[torch.nn.Parameter], Step]:
    """Return the parameters of a model, all of which every batch changes, and what computes its loss."""
    layers = [torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)]
    model, teacher = torch.nn.Sequential(*layers), torch.randn(WIDTH, WIDTH) / WIDTH**0.5

    def loss() -> torch.Tensor:
        batch = torch.randn(16, WIDTH)
        error: torch.Tensor = model(batch) - batch @ teacher - torch.randn(16, WIDTH)
        return error.square().mean()

    return list(model.parameters()), loss


def embedding() -> tuple[list[torch.nn.Parameter], Step]:
    """Return the table of an embedding, of which a batch changes few rows, and what computes its loss."""
    table = torch.nn.Parameter(torch.randn(WORDS, 64))

    def loss() -> torch.Tensor:
        rows = (torch.rand(64) ** 6 * WORDS).long()
        return (table[rows] - torch.randn(64, 64)).square().mean()

    return [table], loss


def snapshots(make_model: Callable[[], tuple[list[torch.nn.Parameter], Step]]) -> dict[int, State]:
    """Return weights and moments after each step of `SNAPSHOTS`, each as one flat array."""
    torch.manual_seed(0)
    parameters, loss = make_model()
    optimizer, states = torch.optim.AdamW(parameters, HYPER.lr, weight_decay=HYPER.weight_decay), {}
    for step in range(1, max(SNAPSHOTS) + 1):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
        if step in SNAPSHOTS:
            state = {"w": [p.detach() for p in parameters]}
            for name, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                state[name] = [optimizer.state[p][key] for p in parameters]
            states[step] = {name: torch.cat([p.flatten() for p in parts]).numpy() for name, parts in state.items()}
    return states


def offers(before: State, after: State, k: int) -> Iterator[tuple[str, Predictor, list[np.ndarray]]]:
    """Yield (part of the state, predictor, bases)."""
    w, m, v = before["w"], before["m"], before["v"]
    if k <= MOST_STEPS:
        yield "m", Predictor.FIRST_IDLE, [m]
        yield "v", Predictor.SECOND_IDLE, [v]
    if k == 1:
        yield "v", Predictor.SECOND, [v, m, after["m"]]
        yield "w", Predictor.WEIGHT, [w, after["m"], after["v"]]
    elif k <= MOST_STEPS:
        yield "v", Predictor.SECOND_MIXED, [v, m, after["m"]]
    if k <= MOST_REPLAYED:
        yield "w", Predictor.WEIGHT_IDLE, [w, m, v]
    if k > 1:
        yield "w", Predictor.WEIGHT_MIXED, [w, m, after["m"], after["v"]]


def pieces(array: np.ndarray) -> list[memoryview]:
    """Return at most four whole chunks, or all there is of less than one."""
    raw = memoryview(array.tobytes())
    starts = range(0, max(1, len(raw) // CHUNK * CHUNK), CHUNK)[:4]
    return [raw[start : start + CHUNK] for start in starts]


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """Return the median processor time of `call`, repeated for about `seconds`."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def guess(parameters: bytes, bases: Iterable[memoryview]) -> np.ndarray:
    """Return the bits of a prediction."""
    words = [np.frombuffer(base, WORD_TYPES[4]) for base in bases]
    out = np.empty_like(words[0])
    with same_everywhere():
        Optimizer(parse(parameters), FLOAT_TYPES[4].itemsize, Scratch()).predict(words, out)
    return out


def row(title: str, true: np.ndarray, bases: list[np.ndarray], parameters: bytes, seconds: float) -> str:
    """Return a line of the table."""
    codec, encoder = make(EFFORTS["auto"]), Encoder("auto")
    raw = stored = alone = near = exact = 0
    encode = decode = 0.0
    for place, data in enumerate(pieces(true)):
        parts = [pieces(base)[place] for base in bases]
        out, back = memoryview(bytearray(len(data))), memoryview(bytearray(len(data)))
        code = partial(codec.encode, data, FLOAT, parts, Hint(parameters=parameters), out)
        length = code()
        assert length != NOT_SHORTER, title
        payload = memoryview(bytes(out[:length]))
        read = partial(codec.decode, payload, None, parts, back)
        read()
        assert back == data, "a chunk did not come back"
        exact += int((guess(parameters, parts) == np.frombuffer(data, WORD_TYPES[4])).sum())
        raw, stored = raw + len(data), stored + length
        alone += len(encoder.encode(data, FLOAT).payload)
        near += len(encoder.encode(data, FLOAT, [Against(DIFFERENCE, (parts[0],))]).payload)
        encode, decode = encode + seconds_of(code, seconds), decode + seconds_of(read, seconds)
    return (
        f"{title:36s} {100 * exact * 4 / raw:6.2f} % {raw / stored:9.2f}x {raw / alone:6.2f}x {raw / near:6.2f}x"
        f" {raw / encode / 1e9:7.2f} {raw / decode / 1e9:7.2f}"
    )


def whole(before: State, after: State, k: int) -> float:
    """Return the ratio of a whole state against the one `k` steps before."""
    encoder, raw, stored = Encoder("auto"), 0, 0
    for name, true in after.items():
        ways = [(DIFFERENCE, [before[name]], b"")]
        for part, predictor, bases in offers(before, after, k):
            if part == name:
                ways.append((ADAM, bases, parameters_for(predictor, HYPER, START + k, k)))
        for place, data in enumerate(pieces(true)):
            against = [Against(tag, tuple(pieces(b)[place] for b in bases), written) for tag, bases, written in ways]
            raw, stored = raw + len(data), stored + len(encoder.encode(data, FLOAT, against).payload)
    return raw / stored


def sgd() -> tuple[np.ndarray, list[np.ndarray], bytes]:
    """Return weights after a step of SGD with momentum, bases and parameters."""
    torch.manual_seed(0)
    parameters, loss = dense()
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    for _ in range(20):
        before = torch.cat([p.detach().flatten() for p in parameters]).numpy()
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
    momentum = torch.cat([optimizer.state[p]["momentum_buffer"].flatten() for p in parameters]).numpy()
    after = torch.cat([p.detach().flatten() for p in parameters]).numpy()
    return after, [before, momentum], parameters_for(Predictor.MOMENTUM, Hyper(0.01, 0.9), 20, 1)


def table(seconds: float) -> None:
    """Print one line for each predictor and distance, then whole states."""
    heads = ("exact", "ratio", "alone", "diff.", "encode", "decode GB/s")
    print(f"{'predictor':36s} {heads[0]:>8s} {heads[1]:>10s} {heads[2]:>7s} {heads[3]:>7s} {heads[4]:>7s} {heads[5]}")
    wholes = []
    for name, make_model in (("dense", dense), ("embedding", embedding)):
        states = snapshots(make_model)
        for k in APART:
            before, after = states[START], states[START + k]
            for part, predictor, bases in offers(before, after, k):
                parameters = parameters_for(predictor, HYPER, START + k, k)
                title = f"{name}, {part}, k={k}: {predictor.name.lower()}"
                print(row(title, after[part], bases, parameters, seconds), flush=True)
            wholes.append(f"{name}, w, m and v, k={k}: {whole(before, after, k):.2f}x")
    print(row("dense, w of SGD, k=1: momentum", *sgd(), seconds), *wholes, sep="\n")


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.15, help="processor time spent on each figure of each chunk")
    torch.set_num_threads(1)
    table(parser.parse_args().seconds)


if __name__ == "__main__":
    main()
