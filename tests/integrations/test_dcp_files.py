"""Checkpoints of torch.distributed.checkpoint: read without a process group, and never by running what is in them."""

import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from chainstore.errors import InvalidInput
from chainstore.integrations.dcp_files import read_dcp
from chainstore.testing.same import assert_same

STATE = {
    "model": {"a.b": torch.arange(20.0).reshape(4, 5), "half": torch.ones(3).bfloat16()},
    "list": [torch.ones(2), torch.zeros(3)],
    "optimizer": {"param_groups": [{"lr": 0.1, "params": [0, 1]}], "step": torch.tensor(3.0)},
    "f8": torch.arange(4.0).to(torch.float8_e4m3fn),
    "step": 7,
    "name": "run",
}


def save(path: Path, state: dict) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def test_a_checkpoint_comes_back_nested_as_it_was_saved(tmp_path):
    assert_same(STATE, read_dcp(save(tmp_path / "c", STATE)), sharing=False)


def test_keys_that_were_numbers_come_back_as_the_text_that_is_on_disk(tmp_path):
    found = read_dcp(save(tmp_path / "c", {"state": {0: {"m": torch.ones(2)}}}))
    assert list(found["state"]) == ["0"]


def test_no_warning_reaches_the_user(tmp_path):
    path = save(tmp_path / "c", STATE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_dcp(path)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("hide", ["alone", "inside"])
def test_metadata_that_would_run_something_are_refused_and_run_nothing(tmp_path, hide):
    path = save(tmp_path / "c", STATE)
    bomb = Bomb(tmp_path / "exploded")
    found: object = bomb
    if hide == "inside":
        found = pickle.loads((path / ".metadata").read_bytes())
        found.planner_data = {"x": bomb}
    (path / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InvalidInput, match="mkdir") as refused:
        read_dcp(path)
    assert "--as-file" in refused.value.hint and not bomb.target.exists()


def test_values_that_would_run_something_are_refused_and_run_nothing(tmp_path):
    bomb = Bomb(tmp_path / "exploded")
    path = save(tmp_path / "c", {"w": torch.ones(1), "value": bomb})
    with pytest.raises(InvalidInput, match="value"):
        read_dcp(path)
    assert not bomb.target.exists()


GLOBALS = ["builtins eval", "os system", "torch load", "torch.serialization load", "builtins getattr", "torch hub.load"]


@pytest.mark.parametrize("name", GLOBALS)
def test_nothing_is_found_by_the_unpickler_but_what_a_checkpoint_consists_of(tmp_path, name):
    (tmp_path / ".metadata").write_bytes(f"c{name.replace(' ', chr(10))}\n.".encode())
    with pytest.raises(InvalidInput, match=name.replace(" ", ".")):
        read_dcp(tmp_path)


@pytest.mark.parametrize("place", ["../outside.distcp", "/etc/passwd"])
def test_data_outside_of_the_folder_is_refused(tmp_path, place):
    path = save(tmp_path / "c", {"w": torch.ones(1)})
    found = pickle.loads((path / ".metadata").read_bytes())
    for info in found.storage_data.values():
        info.relative_path = place
    (path / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InvalidInput, match="outside"):
        read_dcp(path)


def test_what_is_missing_or_damaged_is_refused_with_a_way_out(tmp_path):
    path = save(tmp_path / "c", STATE)
    whole = (path / ".metadata").read_bytes()
    (data,) = path.glob("*.distcp")
    kept = data.read_bytes()
    data.unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_dcp(path)
    data.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(InvalidInput):
        read_dcp(path)
    data.write_bytes(kept)
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        (path / ".metadata").write_bytes(whole[:cut])
        with pytest.raises(InvalidInput, match="metadata"):
            read_dcp(path)
    (path / ".metadata").write_bytes(pickle.dumps({"not": "metadata"}))
    with pytest.raises(InvalidInput, match="does not describe"):
        read_dcp(path)
    (path / ".metadata").unlink()
    with pytest.raises(InvalidInput, match="no checkpoint"):
        read_dcp(path)


def test_flipped_bytes_in_the_metadata_are_refused_or_read_but_never_run(tmp_path):
    path = save(tmp_path / "c", {"w": torch.ones(3), "step": 1})
    whole = (path / ".metadata").read_bytes()
    for at in range(0, len(whole), 3):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        (path / ".metadata").write_bytes(data)
        try:
            read_dcp(path)
        except InvalidInput as error:
            assert error.hint
