"""Two decoders that share no line agree on tag 5: ours, and the one written after docs/format.md."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs.adam_codec import make
from chainstore.codecs.adam_parameters import TOUCHED, Hyper, Parameters, Predictor, parameters_for, parse
from chainstore.codecs.base import EFFORTS, NOT_SHORTER, Hint
from chainstore.codecs.plane_codec import Planes
from chainstore.model.spec import Spec
from tests.adam_reader import Predictor as Reader
from tests.adam_reader import adam
from tests.codecs.steps import predicted

ONE_STEP = (Predictor.SECOND, Predictor.WEIGHT, Predictor.MOMENTUM, Predictor.GREATEST, *TOUCHED)
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, 1e-45, -3e-44, 1e-38, 3e38], np.float32)


def bases_for(parameters: Parameters, dtype: type, seed: int, strange: float = 0.1) -> list[np.ndarray]:
    """Return bases of which some items were idle and some are no ordinary numbers."""
    random = np.random.default_rng(seed)
    items = 400
    sizes = 10.0 ** random.integers(-6, 3, items)
    bases = [(random.standard_normal(items) * sizes).astype(dtype) for _ in range(parameters.bases)]
    if parameters.predictor in (Predictor.SECOND_MIXED, Predictor.WEIGHT_MIXED):
        hyper = Hyper(1e-3, 0.9, 0.99)
        idle = parameters_for(Predictor.FIRST_IDLE, hyper, 40, max(parameters.steps, 1), parameters.variant)
        bases[2][::2] = predicted(idle, [bases[1]])[::2]
    if parameters.predictor in TOUCHED:
        bases[2][::2] = bases[1][::2]
    for base in bases:
        odd = random.random(items) < strange
        base[odd] = random.choice(SPECIAL, int(odd.sum())).astype(dtype)
    return bases


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", range(8))
@pytest.mark.parametrize("predictor", Predictor)
def test_both_predict_the_same(predictor, variant, dtype):
    hyper = Hyper(1e-3, 0.9, 0.99, weight_decay=0.1)
    for k in (1,) if predictor in ONE_STEP else (1, 2, 9, 40):
        if predictor == Predictor.WEIGHT_IDLE and k > 16:
            continue
        parameters = parse(parameters_for(predictor, hyper, 40, k, variant))
        bases = bases_for(parameters, dtype, seed=k)
        ours = predicted(parameters, bases)
        words = Reader(parameters.to_bytes(), ours.itemsize).words([base.tobytes() for base in bases])
        assert ours.view(np.uint32 if ours.itemsize == 4 else np.uint64).tolist() == words


@given(st.sampled_from(list(Predictor)), st.integers(0, 7), st.integers(0, 1 << 30), st.data())
def test_both_make_the_same_of_numbers_that_no_optimizer_wrote(predictor, variant, seed, data):
    parameters = parse(parameters_for(predictor, Hyper(1e-3), 40, 1 if predictor in ONE_STEP else 3, variant))
    numbers = data.draw(st.tuples(*[st.floats()] * len(parameters.numbers)))
    parameters = Parameters(*parameters[:3], numbers)
    bases = bases_for(parameters, np.float32, seed, strange=0.5)
    words = Reader(parameters.to_bytes(), 4).words([base.tobytes() for base in bases])
    assert predicted(parameters, bases).view(np.uint32).tolist() == words


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("predictor", Predictor)
def test_both_read_the_same_chunk(predictor, dtype):
    parameters = parameters_for(predictor, Hyper(1e-3, 0.9, 0.99), 40, 1 if predictor in ONE_STEP else 3)
    width = np.float64 if dtype == "float64" else np.float32
    arrays = bases_for(parse(parameters), width, seed=4)
    made = predicted(parameters, arrays).copy()
    made[::5] *= 1.01
    bases = [array.tobytes() + b"end" for array in arrays]
    data, out = made.tobytes() + b"END", memoryview(bytearray(len(bases[0])))
    codec = make(EFFORTS["auto"])
    hint = Hint(parameters=parameters)
    length = codec.encode(memoryview(data), Spec(dtype, (1,)), [*map(memoryview, bases)], hint, out)
    assert length != NOT_SHORTER

    def planes(payload: bytes, size: int) -> bytes:
        room = memoryview(bytearray(size))
        Planes(EFFORTS["auto"]).decode(memoryview(payload), None, (), room)
        return bytes(room)

    assert adam(bytes(out[:length]), bases, planes) == data
