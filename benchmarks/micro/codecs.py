"""How fast and how small each codec makes real training state, one thread; and the primitives behind its choices.

Run from the repository root: `python -m benchmarks.micro.codecs [--seconds 0.3] [--primitives | --deltas]`.

The state is that of a small transformer after 60 steps of torch's AdamW; "low bits" rows are the same numbers kept in
fewer bits.  GB/s are of raw state, medians over chunks of 1 MiB; every chunk is decoded and compared first.  The last
two columns are plain zstd on the same chunks.  `--deltas` codes the state against itself k steps before, with each of
the codecs that know nothing of optimizers, and says for how many chunks `Encoder.choose` takes it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import zstandard

from chainstore.codecs.base import DIFFERENCE, XOR, Against
from chainstore.codecs.chain import Decoder, Encoder
from chainstore.codecs.planes import Scratch, read_field
from chainstore.codecs.positions import gather
from chainstore.codecs.zstd import Frames
from chainstore.model.spec import Spec

CHUNK = 1 << 20
CHUNKS_OF_EACH = 8
WIDTH, WORDS, STEPS = 256, 2048, 60
DELTAS = {XOR: "xor", DIFFERENCE: "difference"}


Trained = tuple[torch.nn.Module, torch.optim.AdamW]
State = dict[str, torch.Tensor]


def started() -> Trained:
    """Return a model and its optimizer before the first step."""
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0)
    model = torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), block, torch.nn.Linear(WIDTH, WORDS))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(run: Trained, steps: int) -> None:
    """Take that many steps."""
    model, optimizer = run
    for _ in range(steps):
        tokens = (torch.rand(8, 64) ** 2 * WORDS).long()
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), ((tokens * 7 + 1) % WORDS).flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def state_of(run: Trained) -> State:
    """Return the weights and both moments, each as one flat float32 tensor of its own."""
    model, optimizer = run
    parameters = list(model.parameters())
    moments = {"m": "exp_avg", "v": "exp_avg_sq"}
    state = {"w": torch.cat([p.detach().flatten() for p in parameters])}
    for name, key in moments.items():
        state[name] = torch.cat([optimizer.state[p][key].flatten() for p in parameters])
    return state


def trained() -> State:
    """Return weights and moments after `STEPS` steps."""
    run = started()
    train(run, STEPS)
    return state_of(run)


def pairs() -> Iterator[tuple[str, Spec, bytes, bytes]]:
    """Yield (name, spec, raw bytes before, raw bytes after) of state some steps apart."""
    run = started()
    train(run, STEPS)
    for rate, dtypes in ((1e-3, [torch.float32]), (1e-5, [torch.float32, torch.bfloat16, torch.float16])):
        run[1].param_groups[0]["lr"] = rate
        train(run, 1)
        for k in (1, 10):
            before = state_of(run)
            train(run, k)
            after = state_of(run)
            for name in before:
                for dtype in dtypes if name == "w" else dtypes[:1] if rate == 1e-3 else []:
                    spec = Spec(str(dtype).removeprefix("torch."), tuple(before[name].shape))
                    old, new = (state[name].to(dtype).view(torch.uint8).numpy().tobytes() for state in (before, after))
                    yield f"{name} {spec.dtype} lr {rate:.0e} k={k}", spec, old, new


def rows() -> Iterator[tuple[str, Spec, bytes]]:
    """Yield (name, spec, raw bytes) of every kind of data that is measured."""
    state = trained()
    random = torch.Generator().manual_seed(1)
    kinds = {
        **{f"{name} float32": tensor for name, tensor in state.items()},
        "w bfloat16": state["w"].bfloat16(),
        "w float16": state["w"].half(),
        "w float8_e4m3fn": (state["w"] * 64).to(torch.float8_e4m3fn),
        "w int8 (quantized)": (state["w"] / state["w"].abs().max() * 127).round().to(torch.int8),
        "w float64": state["w"].double(),
        "m float32, 9 of 10 rows zero": state["m"].reshape(-1, 64)
        * (torch.rand(len(state["m"]) // 64, 1, generator=random) < 0.1),
        "m float32, 9 of 10 values zero": state["m"] * (torch.rand(len(state["m"]), generator=random) < 0.1),
        "zeros float32": torch.zeros(1 << 20),
        "token ids int64": (torch.rand(1 << 20, generator=random) ** 4 * 50_000).long(),
        "random bits int32": torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=random, dtype=torch.int32),
    }
    for name, tensor in kinds.items():
        raw = (tensor + 0 if tensor.dtype == torch.float32 else tensor).contiguous().flatten().view(torch.uint8)
        yield name, Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)), raw.numpy().tobytes()


def chunks_of(raw: bytes) -> list[memoryview]:
    """Return at most `CHUNKS_OF_EACH` whole chunks spread over `raw`."""
    count = len(raw) // CHUNK
    starts = np.linspace(0, count - 1, min(count, CHUNKS_OF_EACH)).astype(int)
    return [memoryview(raw)[start * CHUNK : (start + 1) * CHUNK] for start in starts.tolist()]


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """Return the median time of `call`, repeated for about `seconds`."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(choice: str, spec: Spec, chunks: list[memoryview], seconds: float) -> tuple[int, float, float]:
    """Return stored bytes, encode and decode seconds for all `chunks`."""
    encoder, decoder, out = Encoder(choice), Decoder(), memoryview(bytearray(CHUNK))
    stored, encode, decode = 0, 0.0, 0.0
    for chunk in chunks:
        tags, scratch, _ = encoder.encode(chunk, spec)
        payload = memoryview(bytes(scratch))
        decoder.decode(tags, payload, out)
        assert out == chunk, "a chunk did not come back"
        stored += len(payload)
        encode += seconds_of(partial(encoder.encode, chunk, spec), seconds / len(chunks))
        decode += seconds_of(partial(decoder.decode, tags, payload, out), seconds / len(chunks))
    return stored, encode, decode


def plain(level: int, chunks: list[memoryview], seconds: float) -> str:
    """Return ratio and speed of zstd at `level`, as text."""
    compressor = zstandard.ZstdCompressor(level=level)
    stored = sum(len(compressor.compress(chunk)) for chunk in chunks)
    spent = sum(seconds_of(partial(compressor.compress, chunk), seconds / len(chunks)) for chunk in chunks)
    raw = CHUNK * len(chunks)
    return f"{raw / stored:9.2f}x {raw / spent / 1e9:5.2f}"


def table(seconds: float) -> None:
    """Print one line for each kind of data and choice of codec, and the sum over AdamW's float32 state."""
    heads = "".join(f"{head:>16s}" for head in ("zstd-1  GB/s", "zstd-3  GB/s"))
    print(f"{'data':32s} {'codec':6s} {'ratio':>10s} {'encode':>7s} {'decode':>7s} {heads}")
    dense: dict[str, list[tuple[int, int, float, float]]] = {}
    for name, spec, raw in rows():
        chunks = chunks_of(raw)
        rivals = " ".join(plain(level, chunks, seconds) for level in (1, 3))
        for choice in ("fast", "auto", "small"):
            stored, encode, decode = measure(choice, spec, chunks, seconds)
            size = CHUNK * len(chunks)
            if name in ("w float32", "m float32", "v float32"):
                dense.setdefault(choice, []).append((size, stored, encode, decode))
            print(line(name, choice, size, stored, encode, decode), rivals if choice == "fast" else "", flush=True)
    for choice, parts in dense.items():
        size, stored, encode, decode = (sum(column) for column in zip(*parts, strict=True))
        print(line("w, m, v float32 together", choice, int(size), int(stored), encode, decode))


def deltas(seconds: float) -> None:
    """Print one line for each pair of states and codec; the last column says how many chunks `choose` gives to it."""
    print(f"{'data':32s} {'codec':10s} {'ratio':>8s} {'encode':>7s} {'decode':>7s} chosen")
    encoder, decoder, out = Encoder("auto"), Decoder(), memoryview(bytearray(CHUNK))
    for name, spec, before, after in pairs():
        chunks = list(zip(chunks_of(before), chunks_of(after), strict=True))
        every = [[Against(tag, (base,)) for tag in DELTAS] for base, _ in chunks]
        chosen = [encoder.choose(chunk, spec, ways) for (_, chunk), ways in zip(chunks, every, strict=True)]
        for tag, codec in (None, "alone"), *DELTAS.items():
            stored, encode, decode = 0, 0.0, 0.0
            for base, chunk in chunks:
                ways = [] if tag is None else [Against(tag, (base,))]
                tags, scratch, against = encoder.encode(chunk, spec, ways)
                payload, bases = memoryview(bytes(scratch)), against.bases if against is not None else ()
                decoder.decode(tags, payload, out, bases)
                assert out == chunk, "a chunk did not come back"
                stored += len(payload)
                encode += seconds_of(partial(encoder.encode, chunk, spec, ways), seconds / len(chunks))
                decode += seconds_of(partial(decoder.decode, tags, payload, out, bases), seconds / len(chunks))
            size, votes = CHUNK * len(chunks), sum(tag == (way.tag if way is not None else None) for way in chosen)
            speeds = f"{size / encode / 1e9:7.2f} {size / decode / 1e9:7.2f}"
            print(f"{name:32s} {codec:10s} {size / stored:7.2f}x {speeds} {votes:4d}", flush=True)


def line(name: str, choice: str, size: int, stored: int, encode: float, decode: float) -> str:
    """Return a row of the table."""
    return f"{name:32s} {choice:6s} {size / stored:9.2f}x {size / encode / 1e9:7.2f} {size / decode / 1e9:7.2f}"


def primitives(seconds: float) -> None:
    """Print what the constants in the codecs rest on: microseconds for 262 144 items."""
    random = np.random.default_rng(0)
    words = np.frombuffer(chunks_of(trained()["w"].numpy().tobytes())[-1], np.uint32)
    exponents = ((words >> 23) & 255).astype(np.uint8)
    half, byte = np.empty(words.size, np.uint16), np.empty(words.size, np.uint8)
    mask = random.integers(0, 2, words.size).astype(np.bool_)
    kept, frames = Scratch().take("kept", int(mask.sum())), Frames(3)
    level = {n: zstandard.ZstdCompressor(level=n) for n in (1, 3)}
    calls: dict[str, Callable[[], object]] = {
        "low half by cast": lambda: read_field(words, 0, half),
        "low half by stride": lambda: np.copyto(half, words.view(np.uint16)[::2]),
        "top byte by shift": lambda: read_field(words, 3, byte),
        "top byte by stride": lambda: np.copyto(byte, words.view(np.uint8)[3::4]),
        "half chosen by mask": lambda: exponents[mask],
        "half chosen by gather": lambda: gather(exponents, mask, kept),
        "exponents, Huffman-like zstd": lambda: frames.huffman(exponents.data),
        "exponents, zstd-1": lambda: level[1].compress(exponents.data),
        "exponents, zstd-3": lambda: level[3].compress(exponents.data),
    }
    for name, call in calls.items():
        result = call()
        ratio = f"{exponents.size / len(result):6.2f}x" if isinstance(result, bytes) else ""
        print(f"{name:32s} {seconds_of(call, seconds) * 1e6:8.1f} us {ratio}")


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.15, help="time spent on each figure")
    parser.add_argument("--primitives", action="store_true", help="print the primitives instead of the codecs")
    parser.add_argument("--deltas", action="store_true", help="print what codes a chunk against an earlier one instead")
    arguments = parser.parse_args()
    (primitives if arguments.primitives else deltas if arguments.deltas else table)(arguments.seconds)


if __name__ == "__main__":
    main()
