"""The states of the golden repositories; their bytes depend on nothing but a number."""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import torch

from chainstore.state.values import register

NAN_WITH_PAYLOAD = float(np.frombuffer(bytes.fromhex("efbeaddefec0f87f"), "<f8")[0])


@dataclass(frozen=True)
class Point:
    """Something that only its user knows how to store."""

    x: object
    y: object


register(Point, lambda point: (point.x, point.y), lambda stored: Point(*stored), name="golden.Point")


def numbers(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return numbers between -1 and 1 that need no random generator of a library: a linear congruence."""
    found, at = np.empty(count), seed * 2654435761 + 1
    for i in range(count):
        at = (at * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found[i] = (at >> 11) / (1 << 52) - 1
    return found


def readable_state(seed: int) -> dict[str, object]:
    """Return a state that tests/reader.py reads whole: dense arrays, one of bfloat16, plain values."""
    return {
        "weight": numbers(seed, 600).reshape(20, 30).astype(np.float32),
        "half": torch.from_numpy(numbers(seed + 1, 200)).bfloat16(),
        "counted": np.arange(500, dtype=np.int64),
        "rare": np.where(numbers(seed + 2, 3000) > 0.98, 1.5, 0).astype(np.float32),
        "mask": numbers(seed + 3, 77) > 0,
        "zeros": np.zeros(300_000, np.float32),
        "nothing": np.zeros((0, 3)),
        "step": seed,
        "names": ["a", "b"],
    }


def plain_values() -> dict[object, object]:
    """Return a value of every kind that needs no array."""
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, -1, 1 << 63, -(1 << 64), 1 << 200],
        "floats": [0.5, -0.0, float("inf"), NAN_WITH_PAYLOAD],
        "one float": 1e-300,
        "tuple of floats": (0.5, 2.5),
        "text": ["", "größe", "\U0001f600", "half \ud800"],
        "bytes": [b"", bytes(range(256)), bytearray(b"xy")],
        "complex": 1 - 2j,
        "nested": (1, (2, [3, {"a": (4,)}])),
        "keys": {1: "int", "1": "str", 2.5: "float", None: 0, b"k": 1, (1, "a"): 2, False: 3},
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "counter": Counter("abca"),
        "default": defaultdict(list, {"a": [1]}),
        "sets": [{1, "a", (2,)}, frozenset({b"x"})],
        "deque": deque([1, 2], 5),
        "range": [range(1, 9, 2), slice(1, None, 2), ...],
        "times": [
            datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=UTC),
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
            datetime(2000, 1, 1, tzinfo=timezone(timedelta(hours=5.5), "IST")),
            date(1999, 12, 31),
            time(23, 59, 59, 1),
            timedelta(days=-1, microseconds=5),
        ],
        "exact": [Decimal("-1.50"), Fraction(1, 3), UUID(int=5)],
        "path": PurePosixPath("a/b"),
        "numpy scalars": [np.float32(0.5), np.int8(-3), np.bool_(True), np.complex64(1j), np.datetime64("2024-01-01")],
        "dtypes": [np.dtype("<f4"), np.dtype([("a", "<i4"), ("b", "<f8", (2,))]), torch.bfloat16, torch.Size([1, 2])],
    }


def training_state(number: int) -> dict[object, object]:
    """Return a state with every kind of entry; from number to number one layer and one moment change."""
    shared = numbers(1, 300).reshape(15, 20).astype(np.float32)
    base = numbers(2, 400)
    frozen = np.arange(6.0)
    frozen.flags.writeable = False
    generator = random.Random(5)
    layers = {
        f"layer.{i}": {"weight": numbers(10 + i + 100 * number * (i == 3), 64).astype(np.float32)} for i in range(80)
    }
    whole = torch.arange(10.0)
    torch_part: dict[str, object] = {
        "parameter": torch.nn.Parameter(torch.from_numpy(numbers(3, 12).reshape(3, 4))),
        "half": torch.from_numpy(numbers(4, 50)).bfloat16(),
        "turned": torch.arange(12).reshape(3, 4).t(),
        "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 5),
        "scalar": torch.tensor(1.5),
        "views": [whole, whole[2:5], whole[::2]],
        "sparse": torch.sparse_coo_tensor([[0, 2], [1, 0]], [1.5, 2.5], (3, 3), check_invariants=True).coalesce(),
        "rows": torch.sparse_csr_tensor([0, 1, 2], [1, 0], [0.5, 1.5], (2, 2), check_invariants=True),
        "generator": torch.Generator().manual_seed(7),
    }
    return {
        "model": layers,
        "optimizer": OrderedDict(
            state={0: {"exp_avg": numbers(50 + number, 300)}}, param_groups=[{"lr": 0.1, "params": [0]}]
        ),
        "tied": [shared, shared],
        "view": [base, base[10:20], base[::2]],
        "fortran": np.asfortranarray(numbers(5, 24).reshape(4, 6)),
        "expanded": np.broadcast_to(np.arange(4), (3, 4)),
        "frozen": frozen,
        "foreign": np.arange(5, dtype=">i4"),
        "texts": np.array(["a", "größe"]),
        "records": np.array([(1, 0.5), (2, 1.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
        "dtypes": {
            name: np.arange(3).astype(name) for name in ("bool", "int8", "uint16", "float16", "complex64", "M8[s]")
        },
        "big": np.zeros(300_000, np.float32),
        "containers": [deque([shared.copy()], 3), (np.arange(2),), defaultdict(int, {"a": np.arange(3)}), [], {}],
        (1, "key"): {2.5: {b"k": {None: np.arange(2)}}, "@odd/name*": 1},
        "values": plain_values(),
        "registered": [Point(1, 2), {"with an array": Point(np.arange(3), 0)}],
        "random": [generator, np.random.default_rng(3), np.random.PCG64(4).state],
        "torch": torch_part,
        "step": number,
    }
