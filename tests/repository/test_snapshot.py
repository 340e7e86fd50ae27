"""Snapshots: read as little as is asked for, load into what lives, name what is damaged."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.errors import IdMismatch, InvalidInput, NotFound, PathNotFound, StateMismatch
from chainstore.ids import Kind, ObjectId
from chainstore.model.paths import parse_path
from chainstore.model.tree import Root, tree_pages
from chainstore.observe import Progress
from chainstore.testing.same import assert_same
from tests.repository.conftest import noise


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with cs.init(tmp_path / "r", encrypt=False) as repo:
        yield repo


def net(seed: int = 0, width: int = 512) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2, width: int = 512) -> None:
    for _ in range(steps):
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def pair(seed: int = 0) -> tuple[nn.Sequential, torch.optim.AdamW]:
    model = net(seed)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def saved(repo: cs.Repository, seed: int = 0, **how: Any) -> tuple[nn.Sequential, torch.optim.AdamW]:
    model, optimizer = pair(seed)
    trained(model, optimizer)
    repo.commit({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, step=2, **how)
    return model, optimizer


STATE: dict[Any, Any] = {
    "model": {
        "layer.0.weight": torch.arange(12.0).reshape(3, 4),
        "layer.0.bias": torch.ones(3),
        "layer.1.weight": torch.ones(2),
    },
    "opt": [torch.zeros(2), {"exp": torch.ones(1)}],
    "cfg": {"lr": 0.1},
    7: torch.tensor(7),
    "7": np.arange(3),
    "empty": {},
    "a/b": torch.ones(1),
}


# ---- looking


def test_keys_name_every_array_and_value_in_order(repo: cs.Repository) -> None:
    repo.commit(STATE)
    snapshot = repo["main"]
    keys = snapshot.keys()
    assert keys[:4] == ["model/layer.0.weight", "model/layer.0.bias", "model/layer.1.weight", "opt/0"]
    assert len(keys) == 10
    paths = [parse_path(key) for key in keys]
    assert (7,) in paths and ("7",) in paths and ("a/b",) in paths and ("empty",) in paths
    for glob, count in {
        "model/**": 3,
        "model/*": 3,
        "model/layer.0.*": 2,
        "**": 10,
        "*": 5,
        "opt/1/*": 1,
        "nothing": 0,
    }.items():
        assert len(snapshot.keys(glob)) == count, glob
    assert snapshot["model"].keys("model/*.bias") == ["model/layer.0.bias"]


def test_each_key_leads_to_its_value(repo: cs.Repository) -> None:
    repo.commit(STATE)
    snapshot: Any = repo["main"]
    assert torch.equal(snapshot["model"]["layer.0.weight"], STATE["model"]["layer.0.weight"])
    assert torch.equal(snapshot["opt"][1]["exp"], torch.ones(1))
    assert snapshot["cfg"] == {"lr": 0.1} and snapshot["empty"] == {}
    assert torch.equal(snapshot[7], torch.tensor(7)) and (snapshot["7"] == np.arange(3)).all()
    assert list(snapshot) == list(STATE) and list(snapshot["opt"]) == [0, 1]
    assert "model" in snapshot and 7 in snapshot and "cfg" in snapshot
    assert "nothing" not in snapshot and 8 not in snapshot and True not in snapshot
    assert snapshot["model"].path == "model" and "model" in repr(snapshot["model"])
    assert_same(snapshot["model"].load(), STATE["model"])


def test_a_key_that_is_not_there_says_which_is_near(repo: cs.Repository) -> None:
    repo.commit(STATE)
    snapshot: Any = repo["main"]
    for look in (
        lambda: snapshot["modle"],
        lambda: snapshot["model"]["layer.0.wieght"],
        lambda: snapshot.info("model/layer.0.wieght"),
        lambda: snapshot.slice("model/layer.0.wieght"),
        lambda: snapshot.load("modle/**"),
        lambda: snapshot.load(exclude="**"),
        lambda: snapshot.info("cfg"),
        lambda: snapshot.info("model"),
    ):
        with pytest.raises(PathNotFound) as caught:
            look()
        assert isinstance(caught.value, KeyError) and isinstance(caught.value, NotFound)
    with pytest.raises(PathNotFound) as caught:
        snapshot["model"]["layer.0.wieght"]
    assert "layer.0.weight" in caught.value.nearest
    odd: Any
    for odd in ([1], {}, 1.5, None, slice(1), np.arange(2)):
        with pytest.raises((PathNotFound, InvalidInput)):
            snapshot[odd]


def wipe_chunks(repo: cs.Repository) -> None:
    """Write zeros over the record of every chunk."""
    with repo._db.view() as view:
        names = {number: line.pack.hex() for number, line in view.packs()}
        places = [place for _, place in view.objects() if place.kind == Kind.CHUNK]
    assert places
    for place in places:
        with (repo.path / "packs" / names[place.pack][:2] / names[place.pack]).open("r+b") as pack:
            pack.seek(place.offset)
            pack.write(bytes(place.length))


def test_info_reads_no_data(repo: cs.Repository) -> None:
    model, _ = saved(repo)
    with cs.open(repo.path, readonly=True) as fresh:
        wipe_chunks(repo)
        snapshot = fresh["main"]
        info = snapshot.info("model/0.weight")
        assert (info.dtype, info.shape, info.nbytes) == ("float32", (512, 512), 1 << 20)
        assert len(snapshot.keys("model/**")) == len(model.state_dict())
        assert "model" in snapshot
        with pytest.raises(IdMismatch):
            _ = snapshot["model"]["0.weight"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 4).expand(5, 3, 4),
        torch.arange(12).reshape(3, 4).t(),
        torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.zeros(0, 7, dtype=torch.float16),
        torch.tensor(3),
        torch.ones(4, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.ones(2, dtype=torch.bfloat16),
    ],
)
def test_info_tells_what_the_user_sees(repo: cs.Repository, tensor: torch.Tensor) -> None:
    repo.commit({"t": tensor, "alias": tensor})
    for name in ("t", "alias"):
        info = repo["main"].info(name)
        assert (info.dtype, info.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def read_bytes(repo: cs.Repository, work: Callable[[cs.Snapshot], object]) -> int:
    """Return how many bytes of chunks `work` reads, with a fresh handle."""
    read = [0]
    with cs.open(repo.path, readonly=True) as fresh:
        original = fresh._db.read

        def counted(id: Any, out: Any = None) -> Any:
            data = original(id, out) if out is not None else original(id)
            read[0] += len(data)
            return data

        fresh._db.read = counted  # type: ignore[method-assign]  # counts, and does what it did
        work(fresh["main"])
    return read[0]


def test_a_slice_reads_only_the_chunks_it_touches(repo: cs.Repository) -> None:
    big = torch.arange(8_000_000, dtype=torch.int32).reshape(8000, 1000)
    repo.commit({"big": big, "other": noise(1, 3_000_000)})

    def look(snapshot: cs.Snapshot) -> None:
        assert torch.equal(snapshot.slice("big")[10:20], big[10:20])

    assert read_bytes(repo, look) < 1_100_000
    snapshot = repo["main"]
    rows: Any = snapshot.slice("big")
    assert len(rows) == 8000
    for part in (
        slice(0, 0),
        slice(5, 3),
        slice(None),
        slice(-3, None),
        slice(7990, 9000),
        slice(261, 263),
        slice(1000, 3000),
    ):
        assert torch.equal(rows[part], big[part])
    assert torch.equal(rows[5], big[5]) and torch.equal(rows[-1], big[-1])
    with pytest.raises(IndexError):
        rows[8000]
    for wrong in (slice(0, 10, 2), "a", (1, 2), None):
        with pytest.raises(InvalidInput):
            rows[wrong]


def test_slices_of_small_numpy_and_zero_sized_arrays(repo: cs.Repository) -> None:
    state = {"s": torch.arange(5), "n": np.arange(12).reshape(6, 2), "z": torch.zeros(0, 3), "w": torch.zeros(4, 0)}
    repo.commit(state)
    snapshot: Any = repo["main"]
    assert torch.equal(snapshot.slice("s")[1:3], torch.tensor([1, 2]))
    assert (snapshot.slice("n")[2:4] == state["n"][2:4]).all()
    assert snapshot.slice("z")[0:0].shape == (0, 3) and snapshot.slice("w")[1:3].shape == (2, 0)


def test_what_lies_in_no_rows_cannot_be_sliced(repo: cs.Repository) -> None:
    repo.commit(
        {
            "t": torch.ones(3, 4).t(),
            "scalar": torch.tensor(1),
            "v": 5,
            "s": torch.eye(2).to_sparse(),
            "d": {"x": torch.ones(1)},
        }
    )
    for name in ("t", "scalar", "v", "s", "d"):
        with pytest.raises(InvalidInput, match="rows"):
            repo["main"].slice(name)


def test_select_and_exclude_choose_what_is_read(repo: cs.Repository) -> None:
    saved(repo)
    snapshot = repo["main"]

    def paths(state: Any, at: str = "") -> set[str]:
        if not isinstance(state, dict):
            return {at}
        return {path for key, value in state.items() for path in paths(value, f"{at}/{key}")}

    assert paths(snapshot.load("model/0.*")) == {"/model/0.weight", "/model/0.bias"}
    assert paths(snapshot.load(["model/0.*", "step"])) == {"/model/0.weight", "/model/0.bias", "/step"}
    assert paths(snapshot.load("model/**", "**/*.bias")) == {
        f"/model/{name}" for name in net().state_dict() if not name.endswith(".bias")
    }
    assert "/optimizer/state/0/step" in paths(snapshot.load(exclude=["model/**"]))
    assert read_bytes(repo, lambda snapshot: snapshot.load("model/0.weight")) < 1_300_000
    assert set(repo.checkout(select="step")) == {"step"}
    assert read_bytes(repo, lambda snapshot: snapshot["step"]) < 200_000


def test_a_part_that_shares_memory_with_another_loads_by_itself(repo: cs.Repository) -> None:
    base = torch.arange(10.0)
    repo.commit({"a": {"whole": base}, "b": {"same": base, "view": base[2:5], "overlap": base[:4]}})
    state: Any = repo["main"].load("b/**")
    assert set(state) == {"b"}
    assert torch.equal(state["b"]["same"], base) and torch.equal(state["b"]["view"], base[2:5])
    loaded: Any = repo["main"]["b"]
    assert torch.equal(loaded["same"], base)


# ---- load_into


def test_a_model_and_an_optimizer_are_loaded_in_place(repo: cs.Repository) -> None:
    model, optimizer = saved(repo)
    expected = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    trained(model, optimizer)
    weights = [parameter.data_ptr() for parameter in model.parameters()]
    result = repo["main"].load_into(model, optimizer)
    assert_same(expected[0], model.state_dict(), sharing=False)
    assert_same(expected[1], optimizer.state_dict(), sharing=False)
    assert [parameter.data_ptr() for parameter in model.parameters()] == weights
    assert (result.missing_keys, result.unexpected_keys, result.mismatched, result.step) == ((), (), (), 2)
    assert result.read_bytes > 5_000_000


def test_a_fresh_optimizer_gets_its_state(repo: cs.Repository) -> None:
    model, optimizer = saved(repo)
    fresh_model, fresh = pair(1)
    repo["main"].load_into(fresh_model, fresh)
    assert_same(optimizer.state_dict(), fresh.state_dict(), sharing=False)
    torch.manual_seed(5)
    trained(model, optimizer)
    torch.manual_seed(5)
    trained(fresh_model, fresh)
    assert_same(model.state_dict(), fresh_model.state_dict(), sharing=False)


def test_a_trained_optimizer_goes_back_to_fresh(repo: cs.Repository) -> None:
    model, optimizer = pair()
    repo.commit({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    trained(model, optimizer)
    repo["main"].load_into(model, optimizer)
    assert optimizer.state_dict()["state"] == {}


def test_memory_that_holds_the_bytes_already_is_left_alone(repo: cs.Repository) -> None:
    model, optimizer = saved(repo)
    assert repo["main"].load_into(model, optimizer).read_bytes < 100_000
    with torch.no_grad():
        model[2].weight.add_(1)
    changed = model[2].weight.nbytes
    read = repo["main"].load_into(model, optimizer).read_bytes
    assert changed <= read <= 1.2 * changed


def test_loading_changes_no_version_counters_of_what_it_leaves_alone_and_no_random_numbers(repo: cs.Repository) -> None:
    model, optimizer = saved(repo)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    repo["main"].load_into(model, optimizer)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


def live_bytes(*things: Any) -> bytes:
    state = [thing.state_dict() for thing in things]
    parts: list[bytes] = []

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            parts.append(
                value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value).encode()
            )
        elif isinstance(value, dict):
            for key, item in value.items():
                parts.append(repr(key).encode())
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        else:
            parts.append(repr(value).encode())

    walk(state)
    return b"|".join(parts)


def test_nothing_is_written_when_it_does_not_fit(repo: cs.Repository) -> None:
    saved(repo)
    other = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100), nn.BatchNorm1d(100), nn.Linear(1, 1))
    optimizer = torch.optim.AdamW(other.parameters())
    before = live_bytes(other, optimizer)
    with pytest.raises(StateMismatch) as caught:
        repo["main"].load_into(other, optimizer)
    assert live_bytes(other, optimizer) == before
    assert set(caught.value.missing) == {"model/4.weight", "model/4.bias"}
    assert any("model/2.weight" in text and "512" in text and "100" in text for text in caught.value.mismatched)
    with pytest.raises(StateMismatch) as caught:
        repo["main"].load_into(nn.Sequential(nn.Linear(512, 512)))
    assert "model/2.weight" in caught.value.unexpected


def test_parameter_groups_that_do_not_fit_are_refused_before_anything_is_written(repo: cs.Repository) -> None:
    saved(repo)
    model = net(3)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 1.0}]
    optimizer = torch.optim.AdamW(groups)
    before = live_bytes(model, optimizer)
    with pytest.raises(StateMismatch, match="param_groups"):
        repo["main"].load_into(model, optimizer)
    assert live_bytes(model, optimizer) == before


def test_parameter_groups_of_a_fresh_optimizer_are_checked_too(repo: cs.Repository) -> None:
    model, optimizer = pair()
    repo.commit({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = net(3)
    two_groups = torch.optim.AdamW([{"params": list(other[0].parameters())}, {"params": list(other[2].parameters())}])
    before = live_bytes(other)
    with pytest.raises(StateMismatch, match="param_groups"):
        repo["main"].load_into(other, two_groups)
    assert live_bytes(other) == before


def test_an_optimizer_of_other_shapes_is_refused_before_anything_is_written(repo: cs.Repository) -> None:
    saved(repo)
    other = nn.Sequential(nn.Linear(512, 100), nn.ReLU(), nn.Linear(100, 512), nn.BatchNorm1d(512))
    optimizer = torch.optim.AdamW(other.parameters())
    trained(other, optimizer)
    before = live_bytes(optimizer)
    with pytest.raises(StateMismatch):
        repo["main"].load_into(optimizer)
    assert live_bytes(optimizer) == before
    fresh = torch.optim.AdamW(other.parameters())
    with pytest.raises(StateMismatch):
        repo["main"].load_into(fresh)


def test_what_fits_is_loaded_where_strictness_is_not_asked_for(repo: cs.Repository) -> None:
    model, _ = saved(repo)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100), nn.BatchNorm1d(100), nn.Linear(2, 1))
    kept = copy.deepcopy((other[2].state_dict(), other[4].state_dict()))
    optimizer = torch.optim.AdamW(other.parameters())
    result = repo["main"].load_into(other, optimizer, strict=False)
    assert torch.equal(other[0].weight, model[0].weight) and torch.equal(other[0].bias, model[0].bias)
    assert_same(kept[0], other[2].state_dict(), sharing=False)
    assert_same(kept[1], other[4].state_dict(), sharing=False)
    assert "model/4.weight" in result.missing_keys and any("model/2.weight" in text for text in result.mismatched)
    assert optimizer.state_dict()["state"] == {}
    assert any("param_groups" in text for text in result.mismatched)


def test_another_dtype_is_a_mismatch(repo: cs.Repository) -> None:
    saved(repo)
    half = net(1).to(torch.bfloat16)
    before = live_bytes(half)
    with pytest.raises(StateMismatch, match=r"float32.*bfloat16"):
        repo["main"].load_into(half)
    assert live_bytes(half) == before
    repo["main"].load_into(half, strict=False)
    assert half[0].weight.dtype == torch.bfloat16
    expected: Any = repo["main"]["model"]["0.weight"]
    assert torch.equal(half[0].weight, expected.to(torch.bfloat16))


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(300, 64), nn.Linear(64, 300, bias=False)
        if tied:
            self.head.weight = self.emb.weight


@pytest.mark.parametrize("into_tied", [True, False])
@pytest.mark.parametrize("from_tied", [True, False])
def test_tied_weights_stay_tied_and_untied_ones_untied(repo: cs.Repository, from_tied: bool, into_tied: bool) -> None:
    source, target = Tied(from_tied), Tied(into_tied)
    repo.commit({"model": source.state_dict()})
    repo["main"].load_into(target)
    assert torch.equal(target.head.weight, source.head.weight)
    assert (target.head.weight is target.emb.weight) is into_tied
    if not into_tied:
        assert torch.equal(target.emb.weight, source.emb.weight)
        assert target.emb.weight.data_ptr() != target.head.weight.data_ptr()


def test_objects_are_found_where_they_are_said_to_be(repo: cs.Repository) -> None:
    model, optimizer = pair()
    trained(model, optimizer)
    repo.commit({"net": {"weights": model.state_dict()}, "adam": optimizer.state_dict()})
    other, fresh = pair(1)
    with pytest.raises(StateMismatch) as caught:
        repo["main"].load_into(other)
    assert "net" in str(caught.value) and "adam" in str(caught.value) and "at={'model'" in caught.value.hint
    repo["main"].load_into(other, fresh, at={"model": "net/weights", "optimizer": "adam"})
    assert_same(model.state_dict(), other.state_dict(), sharing=False)
    assert_same(optimizer.state_dict(), fresh.state_dict(), sharing=False)
    with pytest.raises(StateMismatch, match="nowhere"):
        repo["main"].load_into(other, at={"model": "nowhere"})
    with pytest.raises(InvalidInput, match="modle"):
        repo["main"].load_into(other, at={"modle": "net/weights"})


def test_a_bare_state_dict_is_found_at_the_root(repo: cs.Repository) -> None:
    model = net()
    repo.commit(model.state_dict())
    other = net(1)
    repo["main"].load_into(other)
    assert_same(model.state_dict(), other.state_dict(), sharing=False)


def test_named_objects_are_loaded_from_their_names(repo: cs.Repository) -> None:
    (g, go), (d, do) = pair(1), pair(2)
    trained(g, go)
    trained(d, do)
    repo.commit({"g": g.state_dict(), "d": d.state_dict(), "go": go.state_dict(), "do": do.state_dict()})
    (g2, go2), (d2, do2) = pair(3), pair(4)
    repo["main"].load_into(g=g2, d=d2, go=go2, do=do2)
    for old, new in ((g, g2), (d, d2), (go, go2), (do, do2)):
        assert_same(old.state_dict(), new.state_dict(), sharing=False)
    with pytest.raises(StateMismatch, match="nothing at 'e'"):
        repo["main"].load_into(e=g2)
    with pytest.raises(StateMismatch, match="state_dict"):
        repo["main"].load_into(g=5)  # type: ignore[arg-type]


def test_two_objects_of_one_kind_must_be_named(repo: cs.Repository) -> None:
    model, optimizer = saved(repo)
    with pytest.raises(StateMismatch, match="two objects"):
        repo["main"].load_into(model, optimizer, torch.optim.AdamW(model.parameters()))


def test_schedulers_and_scalers_are_loaded_too(repo: cs.Repository) -> None:
    model, optimizer = pair()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    trained(model, optimizer)
    for _ in range(3):
        scheduler.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    repo.commit(
        {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(), "optimizer": optimizer.state_dict()}
    )
    _, fresh = pair(1)
    fresh_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(fresh, 10)
    fresh_scaler = torch.amp.GradScaler("cpu")
    repo["main"].load_into(fresh, fresh_scheduler, fresh_scaler)
    assert fresh_scheduler.state_dict() == scheduler.state_dict()
    assert fresh_scaler.state_dict() == scaler.state_dict()
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("saved_with", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_prefixes_of_wrappers_are_matched(repo: cs.Repository, prefix: str, saved_with: bool, tied: bool) -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            for name in reversed(prefix.rstrip(".").split(".")[1:]):
                outer = nn.Module()
                setattr(outer, name, inner)
                inner = outer
            setattr(self, prefix.split(".")[0], inner)

    inner, target = Tied(True) if tied else net(1, 64), Tied(True) if tied else net(2, 64)
    source: nn.Module = Wrapped(inner) if saved_with else inner
    repo.commit({"model": source.state_dict()})
    repo["main"].load_into(target if saved_with else Wrapped(target))
    assert_same(inner.state_dict(), target.state_dict(), sharing=False)


def test_loading_tells_how_far_it_is(repo: cs.Repository) -> None:
    saved(repo)
    heard: list[Any] = []
    with cs.open(repo.path, observer=heard.append) as again:
        again["main"].load()
    progress = [event for event in heard if isinstance(event, Progress)]
    assert progress and progress[-1].done == progress[-1].total > 0


# ---- damage


def flip(repo: cs.Repository, id: ObjectId) -> None:
    """Flip a bit in the middle of an object's record in its pack."""
    with repo._db.view() as view:
        place = view.place(id)
        assert place is not None and view.inline(id) is None
        name = view.pack(place.pack).pack.hex()
    file = repo.path / "packs" / name[:2] / name
    data = bytearray(file.read_bytes())
    data[place.offset + place.length // 2] ^= 1
    file.write_bytes(data)


def rot(repo: cs.Repository, revision: str, path: str, at: int = 0) -> None:
    """Flip a bit in the record of one chunk of a tensor."""
    flip(repo, repo[revision].manifest[parse_path(path)].extents[at].chunk)


def states(repo: cs.Repository) -> list[cs.Commit]:
    """Commit `a` and `b` four times; `a` changes each time but for the last, `b` never."""
    made = []
    for n in range(4):
        made.append(repo.commit({"a": noise(min(n, 2), 3_000_000), "b": noise(9, 200_000)}, str(n), step=n))
    return made


def test_a_damaged_chunk_names_the_tensor_the_commit_and_the_nearest_good_ancestor(repo: cs.Repository) -> None:
    made = states(repo)
    rot(repo, "main", "a", 1)
    with cs.open(repo.path, readonly=True) as fresh:
        for look in (
            lambda: fresh.checkout(),
            lambda: fresh["main"]["a"],
            lambda: fresh["main"].load("a"),
            lambda: fresh["main"].slice("a")[1_000_000:2_000_000],
        ):
            with pytest.raises(IdMismatch) as caught:
                look()
            error = caught.value
            assert (error.path, error.commit, error.ancestor) == ("a", str(made[3].id), str(made[1].id))
            assert "'a'" in str(error) and made[3].short in str(error) and made[1].short in error.hint
            assert error.exit_code == 4
        assert (fresh["main"]["b"] == noise(9, 200_000)).all()
        assert (fresh["main"].slice("a")[0:1000] == noise(2, 3_000_000)[:1000]).all()
        assert (fresh["main~2"].load("a")["a"] == noise(1, 3_000_000)).all()


def test_damage_in_every_commit_has_no_good_ancestor(repo: cs.Repository) -> None:
    states(repo)
    rot(repo, "main", "b")
    with cs.open(repo.path, readonly=True) as fresh, pytest.raises(IdMismatch) as caught:
        fresh.checkout()
    assert (caught.value.path, caught.value.ancestor) == ("b", None)


def test_a_damaged_file_names_the_file(repo: cs.Repository, tmp_path: Path) -> None:
    good = repo.commit({}, files={"data.bin": __file__})
    (tmp_path / "f").write_bytes(noise(1, 100_000).tobytes())
    repo.commit({}, files={"data.bin": tmp_path / "f"})
    flip(repo, next(extent.chunk for entry in repo["main"]._files().values() for extent in entry.extents))
    with cs.open(repo.path, readonly=True) as fresh, pytest.raises(IdMismatch) as caught:
        fresh["main"].read_file("data.bin")
    assert caught.value.path == "data.bin"
    assert caught.value.ancestor == str(good.id)


def test_damaged_names_lead_to_the_nearest_commit_whose_names_are_whole(repo: cs.Repository) -> None:
    made = [
        repo.commit({noise(n * 1000 + i, 40).tobytes().hex(): torch.ones(3) for i in range(400)}, str(n))
        for n in range(3)
    ]
    tree = Root.from_bytes(bytes(repo._db.read(made[2].tree))).state
    assert tree is not None
    pages = tree_pages(tree, lambda id: bytes(repo._db.read(id)))
    flip(repo, max(pages, key=repo._db.length))
    with cs.open(repo.path, readonly=True) as fresh, pytest.raises(IdMismatch) as caught:
        fresh["main"].keys()
    assert (caught.value.commit, caught.value.ancestor) == (str(made[2].id), str(made[1].id))
    assert caught.value.path is not None and "names" in caught.value.path


def test_what_was_found_damaged_is_stored_again_with_the_next_commit(repo: cs.Repository) -> None:
    states(repo)
    rot(repo, "main", "b")
    with cs.open(repo.path) as fresh:
        with pytest.raises(IdMismatch):
            fresh.checkout()
        fresh.commit({"a": noise(2, 3_000_000), "b": noise(9, 200_000)}, "healed")
        assert (fresh["main~3"]["b"] == noise(9, 200_000)).all()
        assert fresh.verify("data").ok
    with cs.open(repo.path) as again:
        assert again.verify("data").ok


def test_damage_met_while_loading_into_a_model_is_told(repo: cs.Repository) -> None:
    saved(repo)
    rot(repo, "main", "model/2.weight")
    with cs.open(repo.path, readonly=True) as fresh, pytest.raises(IdMismatch) as caught:
        fresh["main"].load_into(*pair(1))
    assert caught.value.path == "model/2.weight"
