"""How long training waits for a capture, next to a copy of the same bytes and to what people use instead.

    python -m benchmarks.capture [--mb 600] [--turns 9] [--captures 1000]

Every turn does each thing once, after an optimizer step that changes all bytes; times are medians, with the least and
the most, and the ratio is the median of the turns' ratios to memcpy.  What is compared:

    capture       Capturer.capture, shared memory: walk, comparison, copy
    memcpy        memmove of each array into warm memory, and nothing else: the least that it can take
    clone         every tensor cloned into fresh memory
    DCP staging   DefaultStager of torch.distributed.checkpoint into shared memory: what its async_save waits for
    torch.save    to a new file in memory (/dev/shm)
"""

import argparse
import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks.measure import rss_mb
from chainstore.manager.capture import Capturer, never
from chainstore.manager.memory import make_buffer
from chainstore.repository import flatten

State = dict[str, Any]
SHARED = Path("/dev/shm")


class Training:
    """Linear layers of one width under AdamW; gradients are made once, so a step is the optimizer's alone."""

    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.step()

    def step(self) -> None:
        self.optimizer.step()

    def state(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Small:
    """1 000 tensors of 64 floats."""

    def __init__(self) -> None:
        self.tensors = {f"layer{index}.weight": torch.randn(64) for index in range(1000)}

    def step(self) -> None:
        torch._foreach_add_(list(self.tensors.values()), 1.0)

    def state(self) -> State:
        return {"model": self.tensors}


def tensors_in(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for item in state.values():
            yield from tensors_in(item)
    elif isinstance(state, list | tuple):
        for item in state:
            yield from tensors_in(item)


class Memcpy:
    """The least that a copy can take: warm memory, one call for each array."""

    def __init__(self, state: State) -> None:
        total = sum(tensor.nbytes + 64 for tensor in tensors_in(state))
        self.buffer = make_buffer(total, shared=True)
        self.move = ctypes.CDLL(None).memmove
        self.move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def __call__(self, state: State) -> None:
        where = self.buffer.address
        for tensor in tensors_in(state):
            nbytes = tensor.nbytes
            self.move(where, tensor.data_ptr(), nbytes)
            where += nbytes


def contenders(state: State) -> dict[str, Callable[[State], object]]:
    capturer = Capturer(make_buffer(0, shared=True))
    capturer.prepare(state)
    memcpy = Memcpy(state)
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
    )
    file = SHARED / f"chainstore-benchmark-{os.getpid()}.pt"

    def save(state: State) -> None:
        try:
            torch.save(state, file)
        finally:
            file.unlink(missing_ok=True)

    return {
        "capture": capturer.capture,
        "memcpy": memcpy,
        "clone": lambda state: [tensor.clone() for tensor in tensors_in(state)],
        "DCP staging": stager.stage,
        "torch.save": save,
        "(walk alone)": flatten,
    }


def stall(training: Training | Small, turns: int) -> None:
    state = training.state()
    size = sum(tensor.nbytes for tensor in tensors_in(state))
    jobs = contenders(state)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            training.step()
            state = training.state()
            gc.collect()
            started = time.perf_counter()
            job(state)
            if turn:  # the first is for warming up
                seconds[name].append(time.perf_counter() - started)
    print(f"\n{size / 1e6:,.1f} MB in {sum(1 for _ in tensors_in(state)):,} tensors, {turns} turns")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        ratio = statistics.median(mine / theirs for mine, theirs in zip(taken, seconds["memcpy"], strict=True))
        spread = f"({min(taken) * 1e3:.1f} - {max(taken) * 1e3:.1f})"
        print(f"  {name:13} {median * 1e3:8.2f} ms {spread:20} {ratio:6.2f} x memcpy {size / median / 1e9:6.1f} GB/s")
    for name in ("DCP staging", "torch.save"):
        ratio = statistics.median(a / b for a, b in zip(seconds["capture"], seconds[name], strict=True))
        print(f"  capture is {ratio:.3f} x {name}")


def frozen(mb: int, turns: int) -> None:
    """Half of the tensors never change: declared so, or found to be so."""
    print(f"\nhalf of {mb} MB frozen")
    width, count = 1024, mb * 10**6 // 8 // 1024**2
    cases: dict[str, Callable[[tuple[Any, ...]], bool]] = {
        "nothing is frozen": never,
        "equal, undeclared": never,
        "declared frozen": lambda path: path[:1] == ("base",),
    }
    states = {
        name: {half: [torch.randn(width, width) for _ in range(count)] for half in ("base", "head")} for name in cases
    }
    capturers = {name: Capturer(make_buffer(0, shared=True), frozen) for name, frozen in cases.items()}
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, state in states.items():
            torch._foreach_add_(state["head"] + (state["base"] if name == "nothing is frozen" else []), 1.0)
            captured = capturers[name].capture(state)
            if turn:
                results[name].append((captured.seconds, captured.copied_bytes))
    for name, found in results.items():
        seconds = sorted(each[0] * 1e3 for each in found)
        copied = sorted(each[1] / 1e6 for each in found)
        spread = f"({seconds[0]:.1f} - {seconds[-1]:.1f})"
        print(
            f"  {name:18} {statistics.median(seconds):7.1f} ms {spread:16} {statistics.median(copied):7.1f} MB copied"
        )


def drift(captures: int) -> None:
    """Resident memory and descriptors over many captures of a small model in training."""
    training = Training(8, 128)
    capturer = Capturer(make_buffer(0, shared=True))
    marks = []
    for number in range(captures + 101):
        training.step()
        capturer.capture({**training.state(), "step": number, "loss": 1 / (number + 1)})
        if number >= 100 and (number - 100) % max(1, captures // 4) == 0:
            marks.append((rss_mb(), len(os.listdir("/proc/self/fd"))))
    shown = ", ".join(f"{resident:.1f}" for resident, _ in marks)
    print(f"\n{captures:,} captures of a small model: {shown} MiB resident")
    print(f"  drift {(marks[-1][0] / marks[0][0] - 1) * 100:+.2f} %, descriptors {marks[0][1]} -> {marks[-1][1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=600, help="of the large state, 10^6 bytes")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--captures", type=int, default=1000)
    asked = parser.parse_args()
    drift(asked.captures)
    layers = max(1, round(asked.mb * 1e6 / (3 * 4 * 1024**2)))
    stall(Training(layers, 1024), asked.turns)
    gc.collect()
    stall(Small(), 5 * asked.turns)
    frozen(asked.mb, asked.turns)


if __name__ == "__main__":
    main()
