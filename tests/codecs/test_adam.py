"""Predictions against torch's own steps, and the arithmetic by itself."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from chainstore.codecs import adam as arithmetic
from chainstore.codecs.adam_parameters import (
    MOST_REPLAYED,
    MOST_STEPS,
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
from chainstore.errors import FormatTooNew, Malformed
from tests.codecs.steps import State, Way, adam, adamw, embedded, exact, predicted, trained

LATE = 80
WAYS = {
    "AdamW": adamw(),
    "AdamW, fused": adamw(fused=True),
    "AdamW, foreach": adamw(foreach=True),
    "Adam": adam(0.0),
    "Adam, L2": adam(0.01),
    "Adam, L2, fused": adam(0.01, fused=True),
    "Adam, L2, foreach": adam(0.01, foreach=True),
    "amsgrad": adamw(amsgrad=True),
    "amsgrad, fused": adamw(amsgrad=True, fused=True),
    "learning rate in a tensor": Way(
        lambda parameters: torch.optim.AdamW(parameters, torch.tensor(1e-3, dtype=torch.float64)),
        Hyper(1e-3, weight_decay=0.01),
    ),
    "other numbers": Way(
        lambda parameters: torch.optim.AdamW(parameters, 3e-4, betas=(0.95, 0.98), eps=1e-6, weight_decay=0.1),
        Hyper(3e-4, 0.95, 0.98, 1e-6, 0.1),
    ),
}
SPARSE = Way(lambda parameters: torch.optim.SparseAdam(parameters, 1e-3), Hyper(1e-3))


@cache
def states(name: str) -> dict[int, State]:
    return trained(WAYS[name], [15, 16, LATE - 1, LATE])


@pytest.mark.parametrize("name", WAYS)
def test_nearly_all_weights_are_what_one_step_makes_of_them(name):
    least = 0.97 if "fused" in name else 0.96
    assert exact(Predictor.WEIGHT, WAYS[name], states(name), LATE).mean() >= least
    assert exact(Predictor.WEIGHT, WAYS[name], states(name), 16).mean() >= least


@pytest.mark.parametrize("name", set(WAYS) - {"other numbers"})
def test_nearly_all_second_moments_follow_from_the_first(name):
    early = 0.86 if "L2" in name else 0.89
    assert exact(Predictor.SECOND, WAYS[name], states(name), 16).mean() >= early
    assert exact(Predictor.SECOND, WAYS[name], states(name), LATE).mean() >= 0.944


def test_second_moments_follow_less_surely_where_they_forget_faster():
    assert exact(Predictor.SECOND, WAYS["other numbers"], states("other numbers"), LATE).mean() >= 0.85


@pytest.mark.parametrize("name", ["amsgrad", "amsgrad, fused"])
def test_the_greatest_second_moment_is_the_greater_one(name):
    assert exact(Predictor.GREATEST, WAYS[name], states(name), LATE).all()


def test_float64_is_predicted_as_well():
    way = WAYS["AdamW"]
    double = trained(way, [LATE - 1, LATE], torch.float64)
    assert exact(Predictor.WEIGHT, way, double, LATE).mean() >= 0.96
    assert exact(Predictor.SECOND, way, double, LATE).mean() >= 0.944


@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_every_weight_of_sgd_with_momentum_is_exact(decay):
    way = Way(
        lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=decay), Hyper(0.01, beta1=0.9)
    )
    assert exact(Predictor.MOMENTUM, way, trained(way, [19, 20]), 20).all()


def test_a_wrong_learning_rate_is_seen_at_once():
    wrong = Way(WAYS["AdamW"].make, Hyper(2e-3, weight_decay=0.01))
    assert exact(Predictor.WEIGHT, wrong, states("AdamW"), LATE).mean() < 0.2


@cache
def rows(name: str, k: int) -> tuple[dict[int, State], np.ndarray]:
    """Return the states of an embedding around `k` steps, and which of its rows none of these touched."""
    found = embedded(WAYS[name], [60, 60 + k])
    before, after = found[60], found[60 + k]
    faded = before["m"].astype(np.float64) * 0.9**k
    idle = np.isclose(after["m"], faded, rtol=1e-5, atol=1e-44).reshape(-1, 16).all(axis=1)
    assert 0.3 < idle.mean() < 1
    return found, np.repeat(idle, 16)


@pytest.mark.parametrize("k", [1, 2, 7, 16])
@pytest.mark.parametrize("name", ["AdamW", "AdamW, fused", "AdamW, foreach", "Adam"])
def test_rows_without_gradient_are_replayed_exactly(name, k):
    found, idle = rows(name, k)
    for predictor in (Predictor.FIRST_IDLE, Predictor.SECOND_IDLE):
        assert exact(predictor, WAYS[name], found, 60 + k, k)[idle].all()
    assert exact(Predictor.WEIGHT_IDLE, WAYS[name], found, 60 + k, k)[idle].mean() > 0.99
    assert exact(Predictor.SECOND_MIXED, WAYS[name], found, 60 + k, k)[idle].all()
    assert exact(Predictor.WEIGHT_MIXED, WAYS[name], found, 60 + k, k)[idle].mean() > 0.99


def test_rows_that_a_sparse_step_touches_follow_from_the_first_moment_and_others_stay():
    found = embedded(SPARSE, [59, 60])
    touched = found[59]["m"] != found[60]["m"]
    assert 0.01 < touched.mean() < 0.05
    assert exact(Predictor.WEIGHT_TOUCHED, SPARSE, found, 60)[touched].mean() > 0.99
    assert exact(Predictor.SECOND_TOUCHED, SPARSE, found, 60)[touched].mean() > 0.5
    for predictor in TOUCHED:
        assert exact(predictor, SPARSE, found, 60)[~touched].all()
    assert exact(Predictor.WEIGHT, SPARSE, found, 60).mean() < 0.9


def test_rows_without_gradient_are_replayed_with_amsgrad():
    found, idle = rows("amsgrad", 7)
    assert exact(Predictor.WEIGHT_IDLE, WAYS["amsgrad"], found, 67, 7)[idle].mean() > 0.99
    assert exact(Predictor.WEIGHT_MIXED, WAYS["amsgrad"], found, 67, 7)[idle].mean() > 0.99


def test_momentum_fades_exactly_in_rows_without_gradient():
    way = Way(lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9), Hyper(0.01, beta1=0.9))
    found = embedded(way, [60, 67])
    parameters = parameters_for(Predictor.FIRST_IDLE, way.hyper, 67, 7, PRODUCT)
    same = predicted(parameters, [found[60]["b"]]) == found[67]["b"]
    assert 0.3 < same.reshape(-1, 16).all(axis=1).mean() < 1


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", [0, PRODUCT])
def test_idle_items_are_told_apart_whatever_their_size(beta1, dtype, variant):
    sizes = 10.0 ** np.random.default_rng(9).uniform(-46, 30, 4000)
    first, second = (some(seed, 4000).astype(np.float64) * sizes for seed in (10, 11))
    first, second = first.astype(dtype), np.abs(second.astype(dtype))
    for k in (2, 16, MOST_STEPS):
        hyper = Hyper(1e-3, beta1, 0.99)
        after = predicted(parameters_for(Predictor.FIRST_IDLE, hyper, 500, k, variant), [first])
        mixed = predicted(parameters_for(Predictor.SECOND_MIXED, hyper, 500, k, variant), [second, first, after])
        assert mixed.tobytes() == predicted(parameters_for(Predictor.SECOND_IDLE, hyper, 500, k), [second]).tobytes()


def bits_lost(guess: np.ndarray, true: np.ndarray) -> float:
    distance = np.abs(guess.view(np.int32).astype(np.int64) - true.view(np.int32))
    return float(np.log2(distance + 1.0).mean())


@pytest.mark.parametrize("k", [2, 5, 20])
def test_a_bridge_comes_nearer_than_the_weight_before(k):
    way = WAYS["AdamW"]
    found = trained(way, [LATE - k, LATE])
    before, after = found[LATE - k], found[LATE]
    bases = [before["w"], before["m"], after["m"], after["v"]]
    guess = predicted(parameters_for(Predictor.WEIGHT_MIXED, way.hyper, LATE, k), bases)
    assert bits_lost(guess, after["w"]) < bits_lost(before["w"], after["w"]) - 0.25
    guess = predicted(
        parameters_for(Predictor.SECOND_MIXED, way.hyper, LATE, k), [before["v"], before["m"], after["m"]]
    )
    idle = predicted(parameters_for(Predictor.SECOND_IDLE, way.hyper, LATE, k), [before["v"]])
    assert bits_lost(guess, after["v"]) < bits_lost(idle, after["v"])


def rounded(value: Fraction) -> np.float32:
    """Return the float32 nearest to `value`, for normal results; ties to even."""
    middle = np.float32(float(value))
    near = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)] + [middle]
    return min(near, key=lambda each: (abs(Fraction(float(each)) - value), int(each.view(np.uint32)) & 1))


def some(seed: int, count: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_a_product_variant_multiplies_by_beta_itself():
    first = some(3)
    for variant, factor in ((0, 1 - Fraction(float(np.float32(1 - 0.9)))), (PRODUCT, Fraction(float(np.float32(0.9))))):
        guess = predicted(parameters_for(Predictor.FIRST_IDLE, Hyper(1e-3), 5, 1, variant), [first])
        assert guess.tolist() == [rounded(Fraction(float(each)) * factor) for each in first]


def test_a_quotient_variant_divides_first_and_adds_unrounded():
    weight, first, second = some(4), some(5), np.square(some(6))
    parameters = parse(parameters_for(Predictor.WEIGHT, Hyper(1e-3, weight_decay=0.1), 9, 1, QUOTIENT))
    kept, eps, size, root = (np.float32(number) for number in parameters.numbers)
    quotient = first / (np.sqrt(second) / root + eps)
    exactly = [
        rounded(Fraction(float(w)) - Fraction(float(size)) * Fraction(float(q)))
        for w, q in zip(weight * kept, quotient, strict=True)
    ]
    assert predicted(parameters, [weight, first, second]).tolist() == exactly


def fused(*terms: np.ndarray | float) -> np.ndarray:
    """Return a * b + c of float32, rounded once but for ties."""
    a, b, c = (np.asarray(term, np.float64) for term in terms)
    return (a * b + c).astype(np.float32)


def gpu_steps(kernel: str, hyper: Hyper, gradients: list[np.ndarray]) -> dict[int, State]:
    """Return the states of the last two steps as torch's kernels for GPUs compute them, by their source.

    "foreach" rounds scalars to float32 and fuses the last addition; "fused" leaves scalars in double precision.
    """
    w, m, v, states = some(20), np.zeros(300, np.float32), np.zeros(300, np.float32), {}
    single = np.float32
    for step, g in enumerate(gradients, 1):
        size, root = hyper.lr / (1 - hyper.beta1**step), (1 - hyper.beta2**step) ** 0.5
        if kernel == "foreach":
            w = w * single(hyper.kept)
            m = fused(single(1 - hyper.beta1), g - m, m)
            v = fused(single(1 - hyper.beta2), g * g, v * single(hyper.beta2))
            d = np.sqrt(v) / single(root) + single(hyper.eps)
            w = fused(single(-size), m / d, w)
        else:
            w, m, v, g = (each.astype(np.float64) for each in (w, m, v, g))
            w = (w - hyper.lr * hyper.weight_decay * w).astype(single)
            m = (hyper.beta1 * m + (1 - hyper.beta1) * g).astype(single)
            v = (hyper.beta2 * v + (1 - hyper.beta2) * g * g).astype(single)
            d = ((np.sqrt(v) / single(root)).astype(np.float64) + hyper.eps).astype(single)
            w = w - single(size) * m / d
        states[step] = {"w": w, "m": m, "v": v}
    return {step: states[step] for step in (len(gradients) - 1, len(gradients))}


@pytest.mark.parametrize(("kernel", "variant"), [("foreach", QUOTIENT), ("fused", PRODUCT | UNROUNDED)])
def test_variants_follow_the_source_of_the_kernels_for_gpus(kernel, variant):
    way = Way(adamw().make, Hyper(0.1, weight_decay=0.1))
    found = gpu_steps(kernel, way.hyper, [some(seed) for seed in range(100, 200)])
    assert exact(Predictor.WEIGHT, way, found, 100, variant=variant).all()
    assert exact(Predictor.SECOND, way, found, 100, variant=variant).mean() > 0.97
    assert exact(Predictor.WEIGHT, way, found, 100).mean() < 0.99
    silent = gpu_steps(kernel, way.hyper, [*(some(seed) for seed in range(50)), np.zeros(300, np.float32)])
    for predictor in (Predictor.FIRST_IDLE, Predictor.SECOND_IDLE, Predictor.WEIGHT_IDLE):
        assert exact(predictor, way, silent, 51, variant=variant).all()


STRANGE = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 1.0], np.float32)
SIGNALLING = np.array([0x7F800001, 0xFF800001, 0xFFC12345], np.uint32).view(np.float32)


@pytest.mark.parametrize("predictor", Predictor)
@pytest.mark.parametrize("variant", range(8))
def test_every_nan_is_the_same_and_nothing_is_said_of_it(predictor, variant, recwarn):
    values = np.concatenate([STRANGE, SIGNALLING])
    parameters = parse(parameters_for(predictor, Hyper(1e-3, weight_decay=0.1), 9, 1, variant))
    count = parameters.bases
    grid = [each.ravel() for each in np.meshgrid(*[values] * count)]
    for numbers in (parameters.numbers, (float("nan"),) * len(parameters.numbers), (-1e300,) * len(parameters.numbers)):
        guess = predicted(Parameters(*parameters[:3], numbers), grid)
        assert set(guess[np.isnan(guess)].view(np.uint32).tolist()) <= {0x7FC00000}
    assert not recwarn


@pytest.mark.parametrize("predictor", Predictor)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_items_are_predicted_alone_and_bases_left_as_they_were(predictor, dtype):
    one = (Predictor.SECOND, Predictor.WEIGHT, Predictor.MOMENTUM, Predictor.GREATEST, *TOUCHED)
    several = 1 if predictor in one else 2
    parameters = parse(parameters_for(predictor, Hyper(1e-3, weight_decay=0.1), 9, several))
    random = np.random.default_rng(8)
    bases = [random.standard_normal(2000).astype(dtype) for _ in range(parameters.bases)]
    if parameters.bases == 4:
        bases[2][::2] = predicted(parameters_for(Predictor.FIRST_IDLE, Hyper(1e-3), 9, 2), [bases[1]])[::2]
    for base in bases[1:]:
        base[::3] = 0
    copies = [base.copy() for base in bases]
    whole = predicted(parameters, bases)
    pieces = [predicted(parameters, [base[start : start + 37] for base in bases]) for start in range(0, 2000, 37)]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()
    assert all(base.tobytes() == copy.tobytes() for base, copy in zip(bases, copies, strict=True))


def test_nothing_but_operations_with_one_right_result_is_called(monkeypatch):
    """What the module may take from numpy: no power, no logarithm, no sum, no product of matrices."""
    allowed = {"add", "subtract", "multiply", "divide", "sqrt", "isnan", "equal", "not_equal", "greater", "less_equal"}
    allowed |= {"copyto", "flatnonzero", "count_nonzero", "float64"}
    called = set()

    class Watched:
        def __getattr__(self, name):
            called.add(name)
            return getattr(np, name)

    monkeypatch.setattr(arithmetic, "np", Watched())
    for predictor in Predictor:
        for variant in range(8):
            parameters = parse(parameters_for(predictor, Hyper(1e-3, weight_decay=0.1), 9, 1, variant))
            predicted(parameters, [some(seed) for seed in range(parameters.bases)])
            predicted(parameters, [np.zeros(9, np.float32)] * parameters.bases)
    assert "sqrt" in called
    assert called <= allowed | {"bool_"}


def test_parameters_come_back():
    hyper = Hyper(3e-4, 0.95, 0.98, 1e-6, 0.1)
    for predictor in Predictor:
        written = parameters_for(predictor, hyper, 40, 1, QUOTIENT)
        parsed = parse(written + b"planes")
        assert parsed.predictor is predictor and parsed.nbytes == len(written) and parsed.to_bytes() == written


def test_predictors_take_as_many_steps_as_they_can_replay():
    hyper = Hyper(1e-3, weight_decay=0.1)
    most = dict.fromkeys(Predictor, 1) | dict.fromkeys((3, 4, 6), MOST_STEPS) | {5: MOST_REPLAYED}
    for predictor in set(Predictor) - {Predictor.WEIGHT_MIXED}:
        assert parse(parameters_for(predictor, hyper, 500, most[predictor])).steps == most[predictor]
        for k in (0, most[predictor] + 1):
            with pytest.raises(ValueError):
                parameters_for(predictor, hyper, 500, k)
    assert parse(parameters_for(Predictor.WEIGHT_MIXED, hyper, 500, 16)).steps == 16
    assert parse(parameters_for(Predictor.WEIGHT_MIXED, hyper, 500, 17)).steps == 0


@pytest.mark.parametrize(
    ("hyper", "step", "k"),
    [
        (Hyper(1e-3, beta1=1.0), 9, 1),
        (Hyper(1e-3, beta1=-0.1), 9, 1),
        (Hyper(1e-3, beta2=0.0), 9, 1),
        (Hyper(1e-3, beta2=1.0), 9, 1),
        (Hyper(1e-3), 0, 1),
        (Hyper(1e-3), 1, 2),
        (Hyper(1e-3, beta2=1e-300), 40, 10),
    ],
)
def test_no_optimizer_is_set_like_that(hyper, step, k):
    with pytest.raises(ValueError):
        parameters_for(Predictor.WEIGHT_MIXED, hyper, step, k)


def test_damaged_parameters_are_malformed_and_unknown_ones_too_new():
    good = parameters_for(Predictor.WEIGHT_IDLE, Hyper(1e-3), 40, 3)
    for cut in range(len(good)):
        with pytest.raises(Malformed):
            parse(good[:cut])
    unknown, contradictory = [(0, 0), (0, 12), (1, 8)], [(2, 0), (2, 17), (2, 255), (3, 1)]
    for error, changes in ((FormatTooNew, unknown), (Malformed, contradictory)):
        for place, value in changes:
            with pytest.raises(error):
                parse(good[:place] + bytes([value]) + good[place + 1 :])
