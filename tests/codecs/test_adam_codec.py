"""What optimizers made, stored as the difference to a prediction: how small it gets, and that it always comes back."""

import hashlib
import math
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from chainstore.codecs.adam_codec import make
from chainstore.codecs.adam_parameters import (
    PRODUCT,
    QUOTIENT,
    TOUCHED,
    UNROUNDED,
    Hyper,
    Parameters,
    Predictor,
    parameters_for,
    parse,
)
from chainstore.codecs.base import ADAM, DIFFERENCE, EFFORTS, NOT_SHORTER, RAW_TAGS, Against, Hint
from chainstore.codecs.chain import Decoder, Encoder
from chainstore.errors import FormatTooNew, Malformed
from chainstore.model.spec import Spec
from tests.codecs.steps import TARGETS, State, adamw, bases_of, embedded, trained

ROOT = Path(__file__).resolve().parents[2]
AUTO = make(EFFORTS["auto"])
FLOAT = Spec("float32", (1,))
DTYPES = {"float32": np.float32, "float64": np.float64, "complex64": np.complex64, "complex128": np.complex128}
BLOCK = 1 << 15  # items of float32 that are predicted together


def several(predictor: Predictor) -> int:
    """Return over how many steps to predict."""
    one = (Predictor.SECOND, Predictor.WEIGHT, Predictor.MOMENTUM, Predictor.GREATEST, *TOUCHED)
    return 1 if predictor in one else 3


def parameters_of(predictor: Predictor, variant: int = 0) -> bytes:
    return parameters_for(predictor, Hyper(1e-3, eps=1e-41, weight_decay=0.1), 12, several(predictor), variant)


def coded(data: bytes, bases: list[bytes], parameters: bytes, spec: Spec | None = FLOAT) -> bytes | None:
    out = bytearray(len(data))
    length = AUTO.encode(
        memoryview(data), spec, [*map(memoryview, bases)], Hint(parameters=parameters), memoryview(out)
    )
    return None if length == NOT_SHORTER else bytes(out[:length])


def decoded(payload: bytes, bases: list[bytes], length: int, shift: int = 0) -> bytes:
    room = bytearray(b"\xaa" * (length + 64))
    inside = memoryview(room)[32 + shift :][:length]
    try:
        AUTO.decode(memoryview(payload), None, [*map(memoryview, bases)], inside)
    finally:
        assert room[: 32 + shift] == b"\xaa" * (32 + shift) and room[32 + shift + length :] == b"\xaa" * (32 - shift)
    return bytes(inside)


def ways(predictor: Predictor, before: State, after: State, k: int, step: int) -> Against:
    bases = tuple(memoryview(base.tobytes()) for base in bases_of(predictor, before, after))
    return Against(ADAM, bases, parameters_for(predictor, adamw().hyper, step, k))


def stored(before: State, after: State, k: int, step: int, predictors: list[Predictor]) -> dict[str, int]:
    """Return the bytes that each part of a state takes against the state before, once they have been read back."""
    sizes = {}
    for name in "mvw":
        offers = [Against(DIFFERENCE, (memoryview(before[name].tobytes()),))]
        offers += [ways(predictor, before, after, k, step) for predictor in predictors if TARGETS[predictor] == name]
        plain = after[name].tobytes()
        tags, payload, against = Encoder("auto").encode(memoryview(plain), FLOAT, offers)
        out = bytearray(len(plain))
        bases = against.bases if against else ()
        Decoder().decode(tags, memoryview(bytes(payload)), memoryview(out), bases)
        assert out == plain
        sizes[name] = len(payload)
    return sizes


def test_one_step_of_a_dense_model_takes_less_than_a_third_of_its_state():
    found = trained(adamw(), [149, 150])
    sizes = stored(found[149], found[150], 1, 150, [Predictor.SECOND, Predictor.WEIGHT, Predictor.FIRST_IDLE])
    raw = found[150]["w"].nbytes
    assert 3 * raw / sum(sizes.values()) >= 3.4
    assert raw / sizes["w"] > 30 and raw / sizes["v"] > 30


def test_rows_without_gradient_take_next_to_nothing():
    found = embedded(adamw(), [200, 201, 210], length=5000)
    idle = [Predictor.FIRST_IDLE, Predictor.SECOND_MIXED, Predictor.WEIGHT_MIXED]
    raw = 3 * found[200]["w"].nbytes
    sizes = stored(found[200], found[201], 1, 201, [Predictor.SECOND, Predictor.WEIGHT, Predictor.FIRST_IDLE])
    assert raw / sum(sizes.values()) > 150
    for names in ([], idle):
        ratio = raw / sum(stored(found[200], found[210], 10, 210, names).values())
        assert ratio > 20 if names else ratio < 10


@st.composite
def chunks(draw: st.DrawFn, bases: int) -> tuple[bytes, list[bytes]]:
    """Data and bases of one length: tame numbers, strange ones or any bytes; data near the first base or not at all."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    length = draw(st.integers(0, 4000) | st.integers(0, 40))

    def one() -> np.ndarray:
        tame = (random.standard_normal(length // 4 + 1) * 10.0 ** draw(st.integers(-45, 37))).astype(np.float32)
        strange = random.choice(
            np.array([0, 0x80000000, 1, 0x7F800000, 0x7F800001, 0xFFC00001, 0x3F800000], np.uint32), tame.size
        )
        words = {
            "tame": tame.view(np.uint32),
            "strange": strange.astype(np.uint32),
            "any": random.integers(0, 1 << 32, tame.size, dtype=np.uint32),
            "some of each": np.where(random.random(tame.size) < 0.5, tame.view(np.uint32), strange).astype(np.uint32),
        }
        return words[draw(st.sampled_from(sorted(words)))].view(np.uint8)[:length]

    sources = [one() for _ in range(bases)]
    data = sources[0].copy()
    moved = random.random(length) < draw(st.sampled_from([0, 0.05, 1]))
    data[moved] = random.integers(0, 256, int(moved.sum()))
    return data.tobytes(), [source.tobytes() for source in sources]


@given(st.data())
def test_any_chunk_comes_back_from_any_bases(data):
    predictor = data.draw(st.sampled_from(list(Predictor)))
    parameters = parse(parameters_of(predictor, data.draw(st.integers(0, 7))))
    if data.draw(st.booleans()):
        numbers = data.draw(st.tuples(*[st.floats()] * len(parameters.numbers)))
        parameters = Parameters(*parameters[:3], numbers)
    plain, bases = data.draw(chunks(parameters.bases))
    payload = coded(plain, bases, parameters.to_bytes(), Spec(data.draw(st.sampled_from(sorted(DTYPES))), (1,)))
    if payload is not None:
        assert len(payload) < len(plain)
        assert decoded(payload, bases, len(plain), data.draw(st.integers(0, 9))) == plain


def smooth(length: int, dtype: type, count: int, seed: int = 5) -> list[bytes]:
    """Return `count` chunks of `length` bytes that an optimizer might hold, the last of them small and positive."""
    random = np.random.default_rng(seed)
    items = length // np.dtype(dtype).itemsize + 1
    arrays = [random.standard_normal(items).astype(dtype) for _ in range(count - 1)]
    arrays.append((np.abs(random.standard_normal(items)) * 1e-3).astype(dtype))
    return [array.tobytes()[:length] for array in arrays]


@pytest.mark.parametrize("items", [1, 7, 8, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("tail", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_and_tails_of_every_length_come_back(items, tail, dtype):
    length = items * np.dtype(dtype).itemsize + tail
    bases = smooth(length, DTYPES[dtype], 4)
    payload = coded(bases[0], bases, parameters_of(Predictor.WEIGHT_MIXED), Spec(dtype, (1,)))
    assert payload is not None or items < BLOCK // 2
    assert payload is None or decoded(payload, bases, length) == bases[0]


@pytest.mark.parametrize("predictor", Predictor)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bases_payload_and_destination_may_lie_at_any_address(predictor, dtype):
    parameters = parameters_of(predictor)
    length, room = 8 * BLOCK + 3, bytearray(8 * BLOCK + 10)
    bases = smooth(length, DTYPES[dtype], parse(parameters).bases)
    shifted = []
    for base in bases:
        shifted.append(memoryview(bytearray(b"x" + base))[1:])
    room[3 : 3 + length] = bases[0]
    out = memoryview(bytearray(length + 7))[5:][:length]
    spec, hint = Spec(dtype, (1,)), Hint(parameters=parameters)
    size = AUTO.encode(memoryview(room)[3:][:length], spec, shifted, hint, out)
    payload = coded(bases[0], bases, parameters, spec)
    assert size != NOT_SHORTER and bytes(out[:size]) == payload
    assert decoded(payload, shifted, length, shift=1) == decoded(payload, bases, length) == bases[0]


def test_the_encoder_gives_up_where_no_optimizer_counts():
    bases = smooth(4096, np.float32, 3)
    parameters = parameters_of(Predictor.WEIGHT)
    assert coded(bases[0], bases, parameters) is not None
    for dtype in ("bfloat16", "float16", "int32", "int64", "uint8", "bool", "raw4"):
        assert coded(bases[0], bases, parameters, Spec(dtype, (1,))) is None
    assert coded(bases[0], bases, parameters, None) is None
    assert coded(bases[0], bases[:2], parameters) is None
    assert coded(bases[0], [*bases, bases[0]], parameters) is None
    assert coded(bases[0], [*bases[:2], bases[2][:-4]], parameters) is None
    for wrong in (b"", b"\x01", parameters[:-1], parameters + b"\0", b"\xff" + parameters[1:]):
        assert coded(bases[0], bases, wrong) is None
    assert coded(b"", [b"", b"", b""], parameters) is None


def test_the_chain_keeps_a_prediction_only_where_it_is_smallest():
    bases = smooth(1 << 16, np.float32, 3)
    offers = [Against(ADAM, tuple(map(memoryview, bases)), parameters_of(Predictor.WEIGHT))]
    assert Encoder("auto").encode(memoryview(bytes(1 << 16)), FLOAT, offers).against is None
    noise = memoryview(np.random.default_rng(1).bytes(1 << 16))
    assert Encoder("auto").encode(noise, FLOAT, offers).tags == RAW_TAGS


@cache
def payloads() -> list[tuple[bytes, list[bytes], bytes]]:
    """Return plain bytes, bases and payload for every predictor and variant, denormals among them."""
    made = []
    for predictor in Predictor:
        for variant in (0, PRODUCT, QUOTIENT, PRODUCT | UNROUNDED):
            parameters = parameters_of(predictor, variant)
            bases = smooth(4 * BLOCK + 400, np.float32, parse(parameters).bases, seed=int(predictor))
            scale = np.repeat(10.0 ** np.arange(-45, 1, dtype=np.float64), len(bases[0]) // 4 // 46 + 1)
            bases = [
                (np.frombuffer(base, np.float32) * scale[: len(base) // 4]).astype(np.float32).tobytes()
                for base in bases
            ]
            payload = coded(bases[0], bases, parameters)
            assert payload is not None
            made.append((bases[0], bases, payload))
    return made


def test_flushed_denormals_change_neither_payloads_nor_what_they_decode_to():
    before = payloads()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        for plain, bases, payload in before:
            assert coded(plain, bases, payload[: parse(payload).nbytes]) == payload
            assert decoded(payload, bases, len(plain)) == plain
    finally:
        torch.set_flush_denormal(False)


def test_no_power_is_taken_by_whoever_reads_or_codes(monkeypatch):
    made = payloads()

    def refuse(*arguments, **named):
        raise AssertionError("a function whose last bit differs between machines")

    for name in ("pow", "exp", "log", "log2", "log1p", "expm1"):
        monkeypatch.setattr(math, name, refuse)
    for name in ("power", "float_power", "exp", "expm1", "log", "log1p", "dot", "matmul", "einsum", "vdot", "inner"):
        monkeypatch.setattr(np, name, refuse)
    for plain, bases, payload in made:
        assert decoded(payload, bases, len(plain)) == plain


CHILD = """
import hashlib, sys
sys.modules["torch"] = None  # importing it fails
sys.path[:0] = [sys.argv[1]]
from chainstore.codecs.chain import Decoder
from chainstore.codecs.base import ADAM, TAG_BYTES
source, plain = sys.stdin.buffer, hashlib.sha256()
def piece():
    return source.read(int.from_bytes(source.read(4), "little"))
for _ in range(int(sys.argv[2])):
    length = int.from_bytes(source.read(4), "little")
    bases = [memoryview(piece()) for _ in range(int.from_bytes(source.read(1), "little"))]
    out = bytearray(length)
    Decoder().decode(bytes([ADAM]).ljust(TAG_BYTES, b"\\0"), memoryview(piece()), memoryview(out), bases)
    plain.update(out)
print(plain.hexdigest())
"""


NUMPY = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
LOOPS = " ".join(name for name in NUMPY.__cpu_dispatch__ if NUMPY.__cpu_features__[name])


@pytest.mark.parametrize(
    "environment", [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, {"NPY_DISABLE_CPU_FEATURES": LOOPS}]
)
def test_other_processes_without_torch_decode_the_same(environment):
    made = payloads()

    def sized(piece: bytes) -> bytes:
        return len(piece).to_bytes(4, "little") + piece

    message = b"".join(
        len(plain).to_bytes(4, "little") + bytes([len(bases)]) + b"".join(map(sized, bases)) + sized(payload)
        for plain, bases, payload in made
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(ROOT), str(len(made))],
        input=message,
        capture_output=True,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == hashlib.sha256(b"".join(plain for plain, _, _ in made)).hexdigest()


@given(st.integers(0, 1 << 60))
@example(0)
def test_damaged_payloads_are_malformed_or_decode_to_something_else(seed):
    random = Random(seed)
    plain, bases, payload = random.choice(payloads())
    head = parse(payload).nbytes + 8
    hostile = bytearray(payload)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(head) if random.random() < 0.7 else random.randrange(len(hostile))
        hostile[place] = random.randrange(256)
    if random.random() < 0.3:
        del hostile[random.randrange(len(hostile)) :]
    with suppress(Malformed, FormatTooNew):
        decoded(bytes(hostile), bases, len(plain))


def test_wrong_bases_widths_and_cuts_are_malformed():
    for plain, bases, payload in payloads():
        for wrong in (bases[:-1], [*bases, bases[0]], [*bases[:-1], bases[-1][:-4]]):
            with pytest.raises(Malformed):
                decoded(payload, wrong, len(plain))
        with pytest.raises(Malformed):
            decoded(payload, [base[:-4] for base in bases], len(plain) - 4)
        head = parse(payload).nbytes
        for width in (0, 1, 2, 3, 5, 16, 31):
            with pytest.raises(Malformed):
                decoded(payload[:head] + bytes([payload[head] & ~31 | width]) + payload[head + 1 :], bases, len(plain))
        for cut in (0, 3, head - 1, head, head + 1, len(payload) - 1):
            with pytest.raises(Malformed):
                decoded(payload[:cut], bases, len(plain))
