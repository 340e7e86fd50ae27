"""Floats of one byte, next to torch's."""

import math

import pytest
import torch

from chainstore.model.minifloats import MINIFLOATS, minifloat_values


@pytest.mark.parametrize("name", sorted(MINIFLOATS))
def test_every_code_stands_for_what_torch_says(name):
    theirs = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).to(torch.float32).tolist()
    for code, (ours, other) in enumerate(zip(minifloat_values(name), theirs, strict=True)):
        same = (
            math.isnan(ours)
            if math.isnan(other)
            else (ours, math.copysign(1, ours)) == (other, math.copysign(1, other))
        )
        assert same, f"code {code:#x} of {name} is {other}, not {ours}"


def test_torch_has_no_float_of_one_byte_that_we_lack():
    whole = {
        name for name in dir(torch) if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
    }
    assert whole == MINIFLOATS
