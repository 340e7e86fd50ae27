"""The torch adapter, by the suite that other libraries' adapters can use."""

import torch

from chainstore.state import torch_adapter
from chainstore.testing.conformance import AdapterConformance


class TestTorch(AdapterConformance):
    def make(self):
        return torch_adapter.ADAPTER

    def values(self):
        plain = [
            torch.zeros(3, 0),
            torch.tensor(7.5),
            torch.arange(12.0).reshape(3, 4),
            torch.arange(6).reshape(3, 2).t(),
        ]
        images = torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        special = [torch.ones(5, dtype=torch.bfloat16), torch.tensor([True, False]), torch.tensor([1 + 2j])]
        return [*plain, images, *special, torch.nn.Parameter(torch.arange(4.0))]

    def same(self, a, b):
        alike = (a.dtype, a.shape, a.stride(), type(a)) == (b.dtype, b.shape, b.stride(), type(b))
        return alike and a.requires_grad == b.requires_grad and torch.equal(a, b)

    def changed(self, value):
        other = value.detach().clone()
        if other.numel():
            first = (0,) * other.dim()
            other[first] = 0 if other[first] else 1
        return torch.nn.Parameter(other) if isinstance(value, torch.nn.Parameter) else other
