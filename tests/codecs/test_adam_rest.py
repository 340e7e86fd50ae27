"""Weights that steps without gradient cannot move: telling them apart changes no bit of what a replay gives."""

import numpy as np
import pytest

from chainstore.codecs.adam import Optimizer
from chainstore.codecs.adam_parameters import (
    MOST_REPLAYED,
    PRODUCT,
    QUOTIENT,
    UNROUNDED,
    Hyper,
    Predictor,
    parameters_for,
    parse,
)
from chainstore.codecs.adam_rest import moves, reach_of
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.planes import WORD_TYPES, Scratch
from tests.codecs.steps import predicted

COUNT = 30_000
HYPERS = {
    "AdamW": Hyper(1e-3, weight_decay=0.01),
    "no decay": Hyper(1e-3),
    "L2": Hyper(1e-3, weight_decay=0.01, decoupled=False),
    "amsgrad": Hyper(1e-3, amsgrad=True),
    "large steps": Hyper(0.5, 0.95, 0.6, 1e-3, 0.5),
    "no eps": Hyper(1e-4, 0.99, 0.9999, 0.0, 0.1),
    "nothing retained": Hyper(1e-3, 0.0, 0.5),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 1.0, 2.0, 3e38, 2.0**-100, 2.0**-99]


def items(seed: int, dtype: type, span: float) -> np.ndarray:
    """Return numbers of all sizes, powers of two among them: below these a unit in the last place is half as much."""
    source = np.random.default_rng(seed)
    found = source.normal(size=COUNT) * 10.0 ** source.uniform(-span, 1, COUNT)
    found[::5] = np.exp2(np.round(np.log2(np.abs(found[::5]))))
    return found.astype(dtype)


def replayed(parameters: bytes, bases: list[np.ndarray]) -> np.ndarray:
    """Return what replaying every step of every item gives, items without first moment aside, which only decay."""
    parsed = parse(parameters)
    optimizer = Optimizer(parsed, bases[0].itemsize, Scratch())
    out = np.empty_like(bases[0])
    with same_everywhere():
        optimizer._replay(out, *bases)
        decayed = np.empty_like(out)
        optimizer._fade(bases[0], optimizer._factors[0], parsed.steps, decayed)
    out[bases[1] == 0] = decayed[bases[1] == 0]
    out[np.isnan(out)] = np.nan
    return out


@pytest.mark.parametrize("k", [2, 10, MOST_REPLAYED])
@pytest.mark.parametrize("name", HYPERS)
@pytest.mark.parametrize("variant", [0, PRODUCT, QUOTIENT, PRODUCT | QUOTIENT | UNROUNDED])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_bit_differs_from_a_replay_of_every_item(dtype, variant, name, k):
    span = 12 if dtype is np.float32 else 25
    weight, first, second = items(1, dtype, 4), items(2, dtype, span), np.abs(items(3, dtype, span))
    # just around where moving begins: first moments that make steps of a few times a unit in the last place, or less
    source = np.random.default_rng(4)
    near = np.abs(weight) * np.finfo(dtype).eps * np.sqrt(second) * 10.0 ** source.uniform(-2, 5, COUNT)
    first[1::2] = near[1::2].astype(dtype)
    parameters = parameters_for(Predictor.WEIGHT_IDLE, HYPERS[name], 500, k, variant)
    found = predicted(parameters, [weight, first, second])
    assert found.tobytes() == replayed(parameters, [weight, first, second]).tobytes(), "seeds 1 to 4"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_at_the_ends_are_replayed_or_do_not_move(dtype):
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL, dtype)
    weight, first, second = (each.reshape(-1).copy() for each in np.meshgrid(special, special, special))
    for k in (2, 16):
        for variant in (0, QUOTIENT):
            parameters = parameters_for(Predictor.WEIGHT_IDLE, HYPERS["AdamW"], 500, k, variant)
            found = predicted(parameters, [weight, first, second])
            assert found.tobytes() == replayed(parameters, [weight, first, second]).tobytes()


def test_what_was_not_touched_for_long_rests():
    """Of rows whose gradient was zero for a hundred steps and more nearly none is replayed."""
    weight = np.random.default_rng(5).uniform(0.02, 0.1, COUNT).astype(np.float32)
    second = np.full(COUNT, 1e-9, np.float32)
    first = np.where(np.arange(COUNT) % 10 == 0, 1e-5, 1e-5 * 0.9**180).astype(np.float32)
    rates = [(np.float32(1e-3), np.float32(0.5))] * 10
    reach = reach_of(rates, 0.99999, 1e-8, 0.9, 0.999, np.dtype(np.float32))
    assert reach is not None
    spares, masks = (np.empty_like(weight), np.empty_like(weight)), (np.empty(COUNT, bool), np.empty(COUNT, bool))
    assert np.flatnonzero(moves(reach, weight, first, second, spares, masks)).tolist() == list(range(0, COUNT, 10))


@pytest.mark.parametrize(
    "changes",
    [
        {"kept": 1.01},
        {"kept": 0.0},
        {"kept": -0.9},
        {"eps": -1e-8},
        {"eps": np.nan},
        {"retained": 1.5},
        {"retained": -0.5},
        {"fading": 1.1},
        {"fading": 0.1},
        {"fading": np.nan},
        {"rates": [(1e-3, 0.0)]},
        {"rates": [(1e-3, 0.5), (1e-3, np.nan)]},
        {"rates": [(1e-3, -0.5)]},
        {"rates": [(np.inf, 0.5)]},
        {"rates": [(1e-3, 0.5), (np.nan, 0.5)]},
    ],
)
def test_hostile_numbers_allow_no_statement(changes):
    sane = {"rates": [(1e-3, 0.5)], "kept": 0.999, "eps": 1e-8, "retained": 0.9, "fading": 0.999}
    assert reach_of(**sane, type=np.dtype(np.float32)) is not None
    assert reach_of(**{**sane, **changes}, type=np.dtype(np.float32)) is None


@pytest.mark.parametrize("size", [1000, 4096, COUNT, 10 * COUNT])
@pytest.mark.parametrize("predictor", [Predictor.FIRST_IDLE, Predictor.WEIGHT_IDLE, Predictor.WEIGHT_MIXED])
def test_a_chunk_at_one_go_is_what_its_blocks_are(predictor, size):
    weight, first, second = items(1, np.float32, 4), items(2, np.float32, 12), np.abs(items(3, np.float32, 12))
    first[::7], weight[::1001] = 0, np.nan
    bases = {
        Predictor.FIRST_IDLE: [first],
        Predictor.WEIGHT_IDLE: [weight, first, second],
        Predictor.WEIGHT_MIXED: [weight, first, (first * 0.35).astype(np.float32), second],
    }[predictor]
    parameters = parameters_for(predictor, HYPERS["AdamW"], 500, 10)
    words = [base.view(WORD_TYPES[4]) for base in bases]
    out = np.empty_like(words[0])
    with same_everywhere():
        Optimizer(parse(parameters), 4, Scratch()).predict_all(words, out, size)
    assert out.tobytes() == predicted(parameters, bases).tobytes()
