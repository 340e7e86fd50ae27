"""Captures: the whole state at one moment, whatever is done to it afterwards."""

import copy
import ctypes
import mmap
import random
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import chainstore as cs
from chainstore.errors import MemoryShort, UnsupportedState
from chainstore.manager.capture import Captured, Capturer
from chainstore.manager.memory import Buffer, make_buffer
from chainstore.manager.pinned import DeviceCopies
from chainstore.repository import flatten

BLOCK = 256 << 10
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=[True, False], ids=["shared", "private"])
def buffer(request: pytest.FixtureRequest) -> Iterator[Buffer]:
    made = make_buffer(0, shared=request.param)
    yield made
    made.close()


@pytest.fixture
def shared() -> Iterator[Buffer]:
    made = make_buffer(0, shared=True)
    yield made
    made.close()


def facts(state: object) -> list[tuple[Any, ...]]:
    """Return what a commit of a state would store, with the bytes as they are now."""
    found = []
    for leaf in flatten(state):
        data = b"" if leaf.source is None else bytes(leaf.source.read(0, leaf.source.nbytes))
        found.append((leaf.path, leaf.node, leaf.spec, data))
    return found


def held(buffer: Buffer, captured: Captured) -> list[tuple[Any, ...]]:
    """Return what a capture holds, in the same form."""
    view = buffer.view
    return [
        (leaf.path, leaf.node, leaf.spec, bytes(view[leaf.offset : leaf.offset + leaf.nbytes]) if leaf.nbytes else b"")
        for leaf in captured.leaves
    ]


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small model after a step of AdamW, whose step counters are 0-dimensional tensors of the host."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 50, bias=False))
    model[3].weight = model[0].weight  # tied
    model.register_buffer("mask", torch.ones(16).expand(4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.arange(50)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def everything() -> dict[str, Any]:
    """Return a state with arrays of every kind of memory, the same each time but for the memory."""
    torch.manual_seed(3)
    base = torch.randn(40, 50)
    flat = torch.randn(1000)
    record = np.full(5, 1, np.dtype([("a", "<i4"), ("b", ">f8")]))
    quantized = torch.quantize_per_tensor(torch.randn(4, 5), 0.1, 2, torch.qint8)
    return {
        "zero": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "bool": torch.rand(77) > 0.5,
        "bfloat16": torch.randn(33, dtype=torch.bfloat16),
        "float8": torch.randn(64).to(torch.float8_e4m3fn),
        "complex": torch.randn(9, dtype=torch.complex128),
        "conjugate": torch.randn(3, 300, dtype=torch.complex64).conj(),
        "expanded": torch.randn(1, 6).expand(5, 6),
        "transposed": torch.randn(30, 20).t(),
        "gaps": torch.randn(700, 500)[:, ::3],
        "flipped": np.arange(100.0)[::-2],
        "storage": {"head": flat[:600], "tail": flat[400:], "every other": flat[::2]},
        "tied": [base, base, base.detach()],
        "sparse": torch.eye(20).to_sparse(),
        "csr": torch.eye(9).to_sparse_csr(),
        "quantized": quantized,
        "nested": torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)]),
        "generator": torch.Generator().manual_seed(5),
        "parameter": nn.Parameter(torch.randn(8)),
        "record": record,
        "big endian": np.arange(20, dtype=">i8"),
        "text": np.array(["a", "bcd"]),
        "long": np.frombuffer(b"\1" * 112, np.longdouble).copy(),
        "matrix": np.asfortranarray(np.random.default_rng(1).random((40, 30))),
        "large": torch.randn(3 * BLOCK // 4 + 5),
        "plain": {"step": 3, "lr": 1e-3, "bytes": b"x" * 300_000, "python": random.Random(4).getstate()},
        "rng": {"torch": torch.get_rng_state(), "numpy": np.random.default_rng(2).bit_generator.state},
    }


def arrays_in(state: object) -> Iterator[Tensor | np.ndarray]:
    """Yield every array of a state that can be written in place."""
    if isinstance(state, Tensor):
        if state.layout is torch.sparse_coo:
            yield from (state._indices(), state._values())
        elif state.layout is torch.sparse_csr:
            yield from (state.crow_indices(), state.col_indices(), state.values())
        elif state.is_nested:
            yield from (part.detach() for part in state.unbind())
        else:
            yield state.detach()
    elif isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict):
        for item in state.values():
            yield from arrays_in(item)
    elif isinstance(state, list | tuple):
        for item in state:
            yield from arrays_in(item)


def spoil(state: object, source: random.Random) -> int:
    """Write other bytes into all memory that the arrays of a state show; return how many arrays there were."""
    count = 0
    for array in arrays_in(state):
        count += 1
        if isinstance(array, np.ndarray):
            whole = array if array.base is None else array.base
            memory = np.frombuffer((ctypes.c_ubyte * whole.nbytes).from_address(whole.ctypes.data), np.uint8)
            memory ^= source.randrange(1, 256)
        elif array.numel():
            storage = array.untyped_storage()
            address, nbytes = storage.data_ptr(), storage.nbytes()
            ctypes.memmove(address, source.randbytes(nbytes) if nbytes < 9999 else b"\xa5" * nbytes, nbytes)
    return count


# ---- what is captured is what was there ---------------------------------------------------------------------------


def test_everything_a_commit_would_store_is_in_the_buffer(buffer):
    state, truth = everything(), facts(everything())
    captured = Capturer(buffer).capture(state)
    assert held(buffer, captured) == truth
    assert captured.number == 1 and captured.nbytes == sum(len(each[3]) for each in truth) == captured.copied_bytes
    assert 0 < captured.seconds < 60


def test_nothing_that_is_written_afterwards_shows(buffer):
    state, truth = everything(), facts(everything())
    captured = Capturer(buffer).capture(state)
    assert spoil(state, random.Random(1)) > 25
    assert facts(state) != truth
    assert held(buffer, captured) == truth


def test_leaves_lie_apart_and_on_cache_lines(buffer):
    captured = Capturer(buffer).capture(everything())
    places = sorted((leaf.offset, leaf.nbytes) for leaf in captured.leaves if leaf.nbytes)
    assert all(offset % 64 == 0 for offset, _ in places)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(places))
    assert sum(places[-1]) <= buffer.capacity
    assert {leaf.offset for leaf in captured.leaves if not leaf.nbytes} == {-1}


def test_no_capture_of_training_is_ever_torn(buffer):
    model, optimizer = trained()
    capturer = Capturer(buffer)
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    for number in range(1, 501):
        state = {**cs.capture(model, optimizer), "step": number, "loss": source.random()}
        truth = facts(copy.deepcopy(state))
        captured = capturer.capture(state)
        assert spoil(state, source) > 20
        assert held(buffer, captured) == truth, f"seed {seed}, capture {number}"
        assert captured.number == number


def test_another_number_can_be_asked_for(shared):
    capturer = Capturer(shared)
    assert capturer.capture({"a": 1}, 40).number == 40
    assert capturer.capture({"a": 1}).number == 41


# ---- what is there already is not written again ---------------------------------------------------------------------


def test_equal_bytes_are_not_written_again(buffer):
    capturer = Capturer(buffer)
    first = capturer.capture(everything())
    again = capturer.capture(everything())  # other memory, the same bytes
    assert again.copied_bytes == 0 and again.number == 2
    assert again.leaves == first.leaves


def test_leaves_are_the_same_object_while_only_bytes_change(shared):
    state = {"a": torch.zeros(3), "b": [1.5, torch.ones(2)], "lr": 0.5}
    capturer = Capturer(shared)
    first = capturer.capture(state).leaves
    state["a"].add_(1)
    state["lr"] = 0.25
    assert capturer.capture(state).leaves is first
    state["b"][1].requires_grad_()
    assert capturer.capture(state).leaves is not first


@pytest.mark.parametrize("place", [0, 1, 1024, BLOCK // 4 - 1, BLOCK // 4, 3 * BLOCK // 4 + 4])
@pytest.mark.parametrize("how", ["data", "numpy", "in place", "address"])
def test_a_single_changed_item_is_found_however_it_was_written(shared, how, place):
    state = {"w": torch.zeros(3 * BLOCK // 4 + 5), "other": torch.ones(1000)}
    capturer = Capturer(shared)
    capturer.capture(state)
    match how:
        case "data":
            state["w"].data[place] = 5
        case "numpy":
            state["w"].numpy()[place] = 5
        case "in place":
            state["w"][place] = 5
        case "address":
            ctypes.c_float.from_address(state["w"].data_ptr() + 4 * place).value = 5
    captured = capturer.capture(state)
    assert 0 < captured.copied_bytes <= BLOCK
    assert held(shared, captured) == facts(state)


def test_random_writes_are_all_found(shared):
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    words = torch.zeros(5 * BLOCK + 777, dtype=torch.uint8)
    capturer = Capturer(shared)
    for turn in range(200):
        for _ in range(source.randrange(4)):
            start = source.choice([source.randrange(len(words)), source.randrange(6) * BLOCK])
            words[start : start + source.choice([1, 100, BLOCK, 3 * BLOCK])] = source.randrange(256)
        captured = capturer.capture({"w": words})
        assert held(shared, captured) == facts({"w": words}), f"seed {seed}, turn {turn}"


# ---- frozen -------------------------------------------------------------------------------------------------------


def is_below(*tops: str):
    return lambda path: bool(path) and path[0] in tops


def test_what_is_declared_frozen_is_looked_at_once(shared):
    state = {"still": torch.zeros(1000), "moving": torch.zeros(1000)}
    capturer = Capturer(shared, is_below("still"))
    assert capturer.capture(state).copied_bytes in (0, 8000)  # fresh memory is zeros
    truth = facts(copy.deepcopy(state))
    for tensor in state.values():
        tensor.add_(1)
    captured = capturer.capture(state)
    assert captured.copied_bytes == 4000
    by_path = {path: data for path, _, _, data in held(shared, captured)}
    assert by_path["still",] == {path: data for path, _, _, data in truth}["still",]
    assert by_path["moving",] == state["moving"].numpy().tobytes()


def test_plain_values_are_never_frozen(shared):
    capturer = Capturer(shared, lambda path: True)
    capturer.capture({"step": 1, "w": torch.ones(2)})
    assert held(shared, capturer.capture({"step": 2, "w": torch.ones(2)})) == facts({"step": 2, "w": torch.ones(2)})


@pytest.mark.parametrize("turned", [False, True])
def test_memory_that_something_moving_shows_is_not_frozen(shared, turned):
    base, flat = torch.randn(3000), torch.randn(3000)
    sparse = torch.eye(30).to_sparse()
    still = {"tied": base, "views": [flat[:2000], flat[1000:]], "sparse": sparse}
    moving = {"tied": base.detach(), "view": flat[500:1500], "copy": flat[:2000], "sparse": sparse}
    names = ("moving", "still") if turned else ("still", "moving")
    state = dict(zip(names, (moving, still) if turned else (still, moving), strict=True))
    capturer = Capturer(shared, is_below("still"))
    capturer.capture(state)
    for tensor in (base, flat, sparse._values()):
        tensor.add_(1)
    assert held(shared, capturer.capture(state)) == facts(state)


def test_an_alias_of_a_frozen_view_that_may_change_moves_the_whole_storage(shared):
    flat = torch.zeros(3000)
    state = {"still": [flat[:2000], flat[1000:]], "moving": flat[1000:]}
    capturer = Capturer(shared, is_below("still"))
    capturer.capture(state)
    flat.add_(1)
    assert held(shared, capturer.capture(state)) == facts(state)


def test_views_that_are_all_frozen_are(shared):
    flat = torch.zeros(3000)
    state = {"still": [flat[:2000], flat[1000:]], "w": torch.zeros(5)}
    capturer = Capturer(shared, is_below("still"))
    capturer.capture(state)
    flat.add_(1)
    assert capturer.capture(state).copied_bytes == 0


def test_frozen_arrays_are_looked_at_again_when_the_structure_or_the_memory_changes(shared):
    state = {"still": torch.zeros(1000), "moving": torch.zeros(1000)}
    capturer = Capturer(shared, is_below("still"))
    capturer.capture(state)
    state["still"].add_(1)
    state["more"] = torch.ones(5)
    assert held(shared, capturer.capture(state)) == facts(state)
    state["still"].add_(1)
    shared.ensure(shared.capacity + 1)
    assert held(shared, capturer.capture(state)) == facts(state)


def test_frozen_arrays_are_looked_at_again_after_a_capture_that_failed(shared):
    state = {"still": torch.zeros(1000), "moving": torch.zeros(1000)}
    capturer = Capturer(shared, is_below("still"))
    capturer.capture(state)
    state["still"].add_(1)
    with pytest.raises(UnsupportedState):
        capturer.capture({**state, "moving": torch.zeros(1000, device="meta")})
    assert held(shared, capturer.capture(state)) == facts(state)


# ---- states that change -------------------------------------------------------------------------------------------


def test_structure_may_change_from_capture_to_capture(buffer):
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    torch.manual_seed(seed)
    capturer = Capturer(buffer)
    pool = list(everything().items())
    for turn in range(60):
        state = dict(source.sample(pool, source.randrange(1, len(pool))))
        state["grows"] = torch.randn(source.randrange(1, 200_000))
        state["turn"] = [turn] * source.randrange(50)
        captured = capturer.capture(state)
        assert held(buffer, captured) == facts(state), f"seed {seed}, turn {turn}"


def test_plain_values_that_grow_move_no_array(shared):
    state = {"early": "short", "w": torch.randn(100_000), "late": torch.randn(10)}
    capturer = Capturer(shared)
    first = {leaf.path: leaf.offset for leaf in capturer.capture(state).leaves}
    version = shared.version
    state["early"] = "longer" * 100
    captured = capturer.capture(state)
    second = {leaf.path: leaf.offset for leaf in captured.leaves}
    assert first["w",] == second["w",] and first["late",] == second["late",]
    assert captured.copied_bytes < 1000 and shared.version == version
    assert held(shared, captured) == facts(state)


def test_room_can_be_made_beforehand(shared):
    state = {"w": torch.zeros(4 << 20)}
    capturer = Capturer(shared)
    needed = capturer.prepare(state)
    assert 16 << 20 <= needed <= shared.capacity and shared.version == 1
    state["w"].add_(1)
    captured = capturer.capture(state)
    assert shared.version == 1 and captured.number == 1 and captured.copied_bytes == 16 << 20


# ---- what cannot be captured --------------------------------------------------------------------------------------


def test_a_meta_model_is_refused_and_nothing_else_breaks(shared):
    good = {"w": torch.randn(100)}
    capturer = Capturer(shared)
    capturer.capture(good)
    bad = {"w": torch.randn(100), **nn.Linear(3, 4, device="meta").state_dict()}
    with pytest.raises(UnsupportedState) as caught:
        capturer.capture(bad)
    assert set(caught.value.paths) == {"weight", "bias"}
    good["w"].add_(1)
    captured = capturer.capture(good)
    assert captured.number == 2 and held(shared, captured) == facts(good)


def test_a_freed_tensor_is_refused_and_nothing_else_breaks(shared):
    state = {"a": torch.randn(50), "gone": torch.randn(50), "b": torch.randn(50)}
    capturer = Capturer(shared)
    capturer.capture(state)
    state["gone"].untyped_storage().resize_(0)
    with pytest.raises(UnsupportedState, match="gone"):
        capturer.capture(state)
    state["gone"].untyped_storage().resize_(200)
    state["gone"].fill_(3)
    captured = capturer.capture(state)
    assert captured.number == 2 and held(shared, captured) == facts(state)


def test_a_state_that_does_not_fit_into_memory_is_refused_and_nothing_else_breaks(buffer):
    no_reserve = 0x4000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    huge = np.frombuffer(mmap.mmap(-1, 1 << 42, flags), np.uint8)  # addresses only, no memory
    good = {"w": torch.randn(100)}
    capturer = Capturer(buffer)
    capturer.capture(good)
    with pytest.raises(MemoryShort) as caught:
        capturer.capture({"w": torch.randn(100), "huge": huge})
    assert caught.value.needed >= 1 << 42
    captured = capturer.capture(good)
    assert captured.number == 2 and held(buffer, captured) == facts(good)


class _Interrupted(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come within a callback
def test_an_interrupted_capture_leaves_nothing_that_is_counted_on(shared):
    """Whatever had been done when an exception came from outside, the next capture is whole: frozen arrays included."""
    seed = random.randrange(1 << 32)
    source = random.Random(seed)
    capturer = Capturer(shared, is_below("still"))
    good: dict[str, Any] = {"still": [torch.randn(64) for _ in range(200)], "moving": [torch.randn(64)] * 3}

    def interrupt(*_: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for turn in range(60):
            state = {**good, "turn": torch.full((turn % 3 + 1,), turn)}
            for tensor in [*state["still"], *state["moving"]]:
                tensor.add_(1)
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(0.0001, 0.003))
                capturer.capture(state)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Interrupted:
                interrupted += 1
            for tensor in [*state["still"], *state["moving"]]:
                tensor.add_(1)
            state["turn"] = torch.full((turn % 3 + 4,), turn)
            captured = capturer.capture(state)
            assert held(shared, captured) == facts(state), f"seed {seed}, turn {turn}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 5


def test_other_threads_run_while_a_large_copy_is_made(shared):
    """A thread that keeps the interpreter busy does not make captures of many small tensors wait for it each time."""
    state = {f"p{index}": torch.randn(64) for index in range(1000)}
    capturer = Capturer(shared)
    capturer.capture(state)
    stop = threading.Event()
    spinning = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    spinning.start()
    try:
        seconds = []
        for _ in range(5):
            for tensor in state.values():
                tensor.add_(1)
            seconds.append(capturer.capture(state).seconds)
    finally:
        stop.set()
        spinning.join()
    assert min(seconds) < 1  # a thousand times the 5 ms that a thread waits for the GIL are 5 s


# ---- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(5, 7),
        lambda: torch.tensor(3.0),
        lambda: torch.randn(30, 20).t(),
        lambda: torch.randn(30, 20)[:, ::3],
        lambda: torch.randn(1, 6).expand(5, 6),
        lambda: torch.randn(9, dtype=torch.complex128),
        lambda: torch.randn(9, dtype=torch.bfloat16)[2:],
        lambda: torch.randn(64).to(torch.float8_e5m2),
        lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
        lambda: torch.randn(3, 4, dtype=torch.complex64).imag,
        lambda: torch.rand(9) > 0.5,
    ],
)
def test_a_device_source_copies_all_its_bytes_at_once(make, offset):
    """What runs on a GPU's stream, run on the host: the same calls, without the stream."""
    tensor = make()
    (leaf,) = flatten(tensor)
    source = on_device(tensor)
    out = torch.zeros(source.nbytes + offset, dtype=torch.uint8)[offset:]
    source.copy_to(out)
    assert leaf.source is not None and out.numpy().tobytes() == bytes(leaf.source.read(0, leaf.source.nbytes))


def on_device(tensor: Tensor) -> Any:
    """Return the source that a tensor would have on a device."""
    from chainstore.state.torch_adapter import _facts
    from chainstore.state.torch_device import DeviceSource

    shape = tuple(tensor.shape)
    if tensor.is_conj() or tensor.is_neg():
        return DeviceSource(tensor.detach(), shape, tensor.numel() * tensor.element_size(), False)
    found = _facts(tensor.dtype, shape, tensor.stride())
    return DeviceSource(tensor.detach(), found.spec.shape, found.nbytes, found.packed)


def test_without_device_tensors_no_driver_is_asked(shared):
    copies = DeviceCopies(shared)
    copies.start([])
    copies.wait()
    assert shared.before_release is None


@CUDA
def test_a_state_on_a_gpu_is_captured_before_anything_may_change_it(shared):
    torch.manual_seed(1)
    state = {
        "large": torch.randn(1 << 24, device="cuda"),
        "small": [torch.randn(64, device="cuda") for _ in range(200)],
        "turned": torch.randn(300, 200, device="cuda").t()[::2],
        "host": torch.randn(1 << 20),
        "views": (base := torch.randn(1000, device="cuda"), base[100:200]),
        "step": torch.tensor(3.0),
    }
    capturer = Capturer(shared)
    for turn in range(50):
        state["large"].mul_(1.5).add_(turn)  # on its way when the capture begins
        truth = facts(copy.deepcopy(state))
        captured = capturer.capture(state)
        spoil({"host": state["host"]}, random.Random(turn))
        for tensor in (state["large"], *state["small"], state["turned"], base):
            tensor.zero_().add_(turn)
        torch.cuda.synchronize()
        assert held(shared, captured) == truth, f"turn {turn}"


@CUDA
def test_a_buffer_is_pinned_once_and_given_back_when_it_grows(shared):
    capturer = Capturer(shared)
    for size in (1 << 20, 1 << 24):
        state = {"w": torch.randn(size, device="cuda")}
        assert held(shared, capturer.capture(state)) == facts(state)
        assert shared.before_release is not None
    shared.close()
    assert shared.before_release is None
