"""Tensors of which a rank has a part: refused by name, wherever in a state they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import chainstore as cs
from chainstore.errors import UnsupportedState
from chainstore.state import flatten


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A mesh of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_a_distributed_tensor_is_refused_with_what_will_take_it(mesh: DeviceMesh, placement: Shard | Replicate) -> None:
    tensor = distribute_tensor(torch.arange(4.0), mesh, [placement])
    with pytest.raises(UnsupportedState) as told:
        flatten({"model": {"a": tensor, "b": nn.Parameter(tensor), "c": torch.zeros(2)}})
    assert set(told.value.paths) == {"model/a", "model/b"}
    for why in told.value.paths.values():
        assert "DTensor" in why and "torch.distributed.checkpoint" in why and "full_tensor()" in why


def test_a_module_whose_parameters_are_distributed_is_refused(mesh: DeviceMesh) -> None:
    model = nn.Linear(2, 3)
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    assert isinstance(model.weight, DTensor)
    with pytest.raises(UnsupportedState, match=r"model/weight: .*: a DTensor"):
        flatten(cs.capture(model))


def test_what_full_tensor_returns_is_stored(mesh: DeviceMesh) -> None:
    tensor = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert [leaf.path for leaf in flatten({"a": tensor.full_tensor()})] == [(), ("a",)]
