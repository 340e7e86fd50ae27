"""The demo's judge: equal digests mean equal bits, and nothing less."""

import struct

import numpy as np
import pytest
import torch

from chainstore.demo.bits import digests

WEIGHTS = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def test_equal_states_have_equal_digests_whatever_the_memory_layout():
    transposed = WEIGHTS.T.contiguous().T
    assert digests({"w": WEIGHTS, "n": [1, (2.0, None)]}) == digests({"w": transposed, "n": [1, (2.0, None)]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, 1.0 + 2**-52),
        (WEIGHTS, WEIGHTS.double()),
        (WEIGHTS, WEIGHTS.reshape(3, 2)),
        (WEIGHTS, WEIGHTS.T),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (np.zeros(2, np.uint32), np.zeros(2, np.int32)),
    ],
)
def test_values_that_differ_in_one_bit_or_in_type_differ(one, other):
    assert digests({"x": one}) != digests({"x": other})


def test_one_flipped_bit_of_a_tensor_shows_at_its_path():
    flipped = WEIGHTS.clone()
    flipped.view(torch.int32)[1, 2] ^= 1
    ours, theirs = digests({"a": WEIGHTS, "b": WEIGHTS}), digests({"a": WEIGHTS, "b": flipped})
    assert [path for path in ours if ours[path] != theirs[path]] == ["b"]


def test_payloads_of_nan_are_told_apart():
    quiet, other = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0x7FF8 << 48 | 1))
    assert digests([quiet]) != digests([other])


def test_tensors_without_elements_or_dimensions_have_digests():
    assert digests([torch.empty(0, 3)]) != digests([torch.empty(3, 0)])
    assert digests([torch.tensor(1.5)]) != digests([torch.tensor([1.5])])
