"""Chunks are stored as differences to those of the parent: smaller, bounded in depth, and the same bytes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainstore as cs
from chainstore.codecs.base import ADAM
from chainstore.ids import ObjectId
from chainstore.model.frame import FLAG_KEYFRAME, MAX_HEADER_BYTES, parse_header
from chainstore.ops.deltas import KEYFRAMES, LONGEST, SEGMENT
from chainstore.ops.shadow import Shadow
from chainstore.repository import Repository

ROWS, WIDTH = 600, 512  # 1.2 MB: two chunks of their own


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def repo(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Repository]:
    with cs.init(tmp_path / "repo", encrypt=request.param, codec="small") as repo:
        yield repo


class Drift:
    """Arrays that change a little at each step, as training changes them."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.weight = self.random.normal(size=(ROWS, WIDTH)).astype(np.float32)
        self.bias = self.random.normal(size=900).astype(np.float32)
        self.half = self.random.normal(size=(400, WIDTH)).astype(np.float16)

    def step(self) -> None:
        for array in (self.weight, self.bias, self.half):
            array += (self.random.normal(size=array.shape) * 1e-4 * np.abs(array)).astype(array.dtype)

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight, "bias": self.bias, "half": self.half}

    def copy(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self.state().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def chunks_of(repo: Repository, rev: str, path: str) -> list[ObjectId]:
    (entry,) = [entry for entry in repo[rev].manifest.entries if entry.path == tuple(path.split("/"))]
    return [extent.chunk for extent in entry.extents]


def place_of(repo: Repository, id: ObjectId) -> Any:
    with repo._handle.db.view() as view:
        return view.place(id), view.bases(id)


def test_what_changed_a_little_takes_less_and_comes_back_bit_by_bit(repo: Repository) -> None:
    drift = Drift()
    kept = []
    for number in range(12):
        commit = repo.commit(drift.state(), step=number)
        kept.append((commit, drift.copy()))
        drift.step()
    first, later = kept[0][0].stats, [commit.stats for commit, _ in kept[1:]]
    assert first.delta_bytes == 0
    for stats in later:
        assert stats.delta_bytes > 0.99 * drift.weight.nbytes
        assert stats.stored_bytes < 0.85 * first.stored_bytes
    for commit, state in kept:
        assert same(repo.checkout(commit), state)
    assert not repo.verify(level="data").damaged


def test_chains_are_bounded_and_keyframes_build_on_keyframes(tmp_path: Path) -> None:
    with cs.init(tmp_path / "repo", encrypt=False, codec="small") as repo:
        drift, count = Drift(), (SEGMENT + 1) * (KEYFRAMES + 1) + 3
        weight = drift.weight[:64].copy()  # one chunk
        depths, flags = [], []
        for _ in range(count):
            repo.commit({"weight": weight})
            (chunk,) = chunks_of(repo, "HEAD", "weight")
            place, bases = place_of(repo, chunk)
            depths.append(place.depth)
            flags.append(bool(place.flags & FLAG_KEYFRAME))
            if flags[-1]:
                below, _ = place_of(repo, bases[0])
                assert below.depth == 0 or below.flags & FLAG_KEYFRAME
            weight = weight * np.float32(1.0001)
        whole = [number for number, depth in enumerate(depths) if depth == 0]
        assert whole == [0, (SEGMENT + 1) * (KEYFRAMES + 1)]
        assert [number for number, flag in enumerate(flags) if flag] == [
            number for number in range(1, count) if number % (SEGMENT + 1) == 0 and number not in whole
        ]
        assert max(depths) == KEYFRAMES + SEGMENT
        assert not repo.verify(level="data").damaged


def runs_of(repo: Repository, random: np.random.Generator, share: float, count: int) -> list[int]:
    """Commit bytes of which a share changes each time, and return the numbers of those that are keyframes."""
    codes = random.integers(0, 256, 1 << 16, np.uint8)
    found = []
    for number in range(count):
        repo.commit({"codes": codes})
        place, _ = place_of(repo, chunks_of(repo, "HEAD", "codes")[0])
        found += [number] * bool(place.flags & FLAG_KEYFRAME)
        codes = codes.copy()
        codes[random.random(codes.size) < share] += np.uint8(random.integers(1, 256))
    return found


def test_keyframes_come_later_where_differences_are_short(tmp_path: Path) -> None:
    with cs.init(tmp_path / "repo", encrypt=False, codec="small") as repo:
        random = np.random.default_rng(3)
        assert runs_of(repo, random, 0.001, 2 * (LONGEST + 1) + 2) == [LONGEST + 1, 2 * (LONGEST + 1)]
        assert len([repo.checkout(commit) for commit in repo.log()]) == 2 * (LONGEST + 1) + 2
        assert not repo.verify(level="data").damaged


def test_a_reader_never_has_to_read_many_differences_longer_than_the_chunk_together(tmp_path: Path) -> None:
    with cs.init(tmp_path / "repo", encrypt=False, codec="small") as repo:
        (keyframe,) = runs_of(repo, np.random.default_rng(4), 0.1, 24)
        assert SEGMENT + 1 < keyframe < LONGEST
        nbytes = []
        for commit in list(repo.log())[::-1][1:keyframe]:
            place, _ = place_of(repo, chunks_of(repo, commit.id.hex(), "codes")[0])
            nbytes.append(place.length)
        assert sum(nbytes[:-1]) <= 1 << 16 < sum(nbytes)


def test_a_chain_survives_the_process_the_index_and_new_keys(tmp_path: Path) -> None:
    drift, kept = Drift(), []
    for number in range(4):
        with cs.open(tmp_path / "repo", create=True) as repo:
            kept.append((repo.commit(drift.state(), step=number, codec="small"), drift.copy()))
            assert number == 0 or kept[-1][0].stats.delta_bytes > 0
            drift.step()
    with cs.open(tmp_path / "repo") as repo:
        repo.rebuild_index()
        repo.rekey(reencrypt=True)
        before = [place_of(repo, chunk)[0].flags for chunk in chunks_of(repo, "HEAD", "weight")]
        assert all(same(repo.checkout(commit), state) for commit, state in kept)
        repo.gc()
        assert before == [place_of(repo, chunk)[0].flags for chunk in chunks_of(repo, "HEAD", "weight")]
        assert all(same(repo.checkout(commit), state) for commit, state in kept)


def test_what_changes_its_shape_or_dtype_or_name_in_mid_chain_is_stored_whole(repo: Repository) -> None:
    drift = Drift()
    repo.commit(drift.state())
    drift.step()
    states = [
        {"weight": drift.weight[:300].copy(), "bias": drift.bias.astype(np.float64), "renamed": drift.half},
        {"weight": drift.weight.reshape(WIDTH, ROWS), "bias": drift.bias[:5], "renamed": drift.half.view(np.int16)},
        {"weight": {"now": drift.weight, "deeper": [drift.half]}, "bias": 3},
    ]
    for state in states:
        commit = repo.commit(state)
        assert commit.stats.delta_bytes == 0
        back = repo.checkout(commit)
        assert str(back) == str(state)
    assert not repo.verify(level="data").damaged


def test_what_is_not_like_its_parent_is_not_forced_to_be(repo: Repository) -> None:
    random = np.random.default_rng(1)
    for _ in range(3):
        noise = random.integers(0, 256, (2000, 512), np.uint8)
        commit = repo.commit({"noise": noise})
        assert commit.stats.delta_bytes == 0
        assert commit.stats.stored_bytes < 1.001 * noise.nbytes + 4096
        assert (repo.checkout(commit)["noise"] == noise).all()


def test_nothing_builds_on_damage_that_was_met(tmp_path: Path) -> None:
    drift = Drift()
    with cs.init(tmp_path / "repo", encrypt=False, codec="small") as repo:
        repo.commit({"weight": drift.weight})
        chunk = chunks_of(repo, "HEAD", "weight")[0]
        place, _ = place_of(repo, chunk)
        with repo._handle.db.view() as view:
            (pack,) = repo._handle.db.layout.packs.rglob(f"{view.pack(place.pack).pack.hex()}*")
    data = bytearray(pack.read_bytes())
    data[place.offset + place.length // 2] ^= 1
    pack.write_bytes(data)
    with cs.open(tmp_path / "repo") as repo:  # who has the bytes in memory does not meet it
        drift.step()
        commit = repo.commit({"weight": drift.weight})
        bases = {base for each in chunks_of(repo, "HEAD", "weight") for base in place_of(repo, each)[1]}
        assert bases and chunk not in bases
        assert (repo.checkout(commit)["weight"] == drift.weight).all()


def test_the_shadow_saves_reads_and_changes_nothing_else(tmp_path: Path) -> None:
    stored = []
    for choice in ("yes", "no"):
        with cs.init(tmp_path / choice, encrypt=False, codec="small") as repo:
            repo.set_setting("shadow", choice)
            drift = Drift()
            commits = []
            for _ in range(3):
                commits.append(repo.commit(drift.state()))
                drift.step()
            shadow = repo._handle.core.shadow
            large = sum(array.nbytes for array in drift.state().values())
            assert (shadow.nbytes >= large) if choice == "yes" else (shadow.nbytes == 0)
            same_again = repo.commit(repo.checkout(commits[-1]))
            assert same_again.stats.new_bytes == 0 and same_again.tree == commits[-1].tree
            stored.append([(commit.tree, commit.stats.stored_bytes, commit.stats.delta_bytes) for commit in commits])
    assert [row[1:] for row in stored[0]] == [row[1:] for row in stored[1]]


def test_a_shadow_keeps_to_its_budget_and_lets_go() -> None:
    shadow = Shadow(lambda: 3000)
    ids = [ObjectId(bytes([number]) * 32) for number in range(1, 6)]
    for id in ids:
        shadow.keep(id, memoryview(bytes(id) * 32))  # 1024 bytes
    assert [shadow.get(id) is not None for id in ids] == [True, True, False, False, False]
    assert shadow.equals(ids[0], memoryview(bytes(ids[0]) * 32))
    assert not shadow.equals(ids[0], memoryview(bytes(ids[0]) * 31 + bytes(32)))
    assert not shadow.equals(ids[4], memoryview(bytes(ids[4]) * 32))
    shadow.settle({ids[1]})
    shadow.keep(ids[2], memoryview(bytes(ids[2]) * 32))
    assert [shadow.get(id) is not None for id in ids] == [False, True, True, False, False]
    assert shadow.nbytes == 2048


def trained(steps: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Iterator[dict[str, Any]]:
    """Yield the state after each step of a real training run, every weight matrix in chunks of its own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 128))
    optimizer_ = optimizer(model.parameters(), lr=1e-3)
    while True:
        for _ in range(steps):
            loss = model(torch.randn(64, 128)).square().mean()
            optimizer_.zero_grad()
            loss.backward()
            optimizer_.step()
        yield {"model": model.state_dict(), "optimizer": optimizer_.state_dict()}


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    found = {name: value.numpy().tobytes() for name, value in state["model"].items()}
    for number, moments in state["optimizer"]["state"].items():
        found |= {f"{number}/{name}": torch.as_tensor(value).numpy().tobytes() for name, value in moments.items()}
    return found


def codecs_of(repo: Repository) -> Counter[int]:
    """Return how many chunks of the tip have which codec first."""
    db = repo._handle.db
    found: Counter[int] = Counter()
    for chunk in repo["HEAD"].manifest.chunks():
        place, bases = place_of(repo, chunk)
        with db.view() as view:
            record = view.inline(chunk)
            pack = view.pack(place.pack).pack
        if record is None:
            (path,) = db.layout.packs.rglob(f"{pack.hex()}*")
            record = path.read_bytes()[place.offset : place.offset + 2048]
        header = parse_header(memoryview(record)[:MAX_HEADER_BYTES], "record", place.offset)
        assert header.bases == bases
        found[header.codecs[0]] += 1
    return found


def test_one_step_of_adam_is_predicted(tmp_path: Path) -> None:
    with cs.init(tmp_path / "repo", codec="small") as repo:
        states = trained(1)
        for _ in range(20):
            next(states)
        kept = []
        for number in range(10):
            state = next(states)
            kept.append((repo.commit(state, step=number), bits(state)))
        assert codecs_of(repo)[ADAM] == 4  # both weights, and both second moments; number 9 follows a keyframe
        assert min(commit.stats.stored_bytes for commit, _ in kept[1:8]) * 3 < kept[0][0].stats.stored_bytes
        for commit, expected in reversed(kept):
            assert bits(repo.checkout(commit)) == expected
        assert not repo.verify(level="data").damaged
    with cs.open(tmp_path / "repo") as repo:
        for commit, expected in kept:
            assert bits(repo.checkout(commit)) == expected


def test_a_sparse_step_costs_no_more_than_what_it_did_to_the_first_moment(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(4000, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    kept = []
    with cs.init(tmp_path / "repo", codec="small") as repo:
        for number in range(-15, SEGMENT + 5):
            table(torch.randint(0, 4000, (80,))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number >= 0:
                state = {"model": table.state_dict(), "optimizer": optimizer.state_dict()}
                kept.append((repo.commit(state, step=number), bits(state)))
        entries = {entry.path[-1]: entry for entry in repo[f"step:{SEGMENT + 3}"].manifest.entries if entry.path}
        places = [place_of(repo, entries[name].extents[0].chunk) for name in ("exp_avg", "weight", "exp_avg_sq")]
        assert not any(place.flags & FLAG_KEYFRAME for place, _ in places)
        assert [len(bases) for _, bases in places] == [1, 4, 3]
        first, weight, second = (place.length for place, _ in places)
        assert weight < first / 5 and second < first / 2
        for commit, expected in kept:
            assert bits(repo.checkout(commit)) == expected
        assert not repo.verify(level="data").damaged


def test_rows_that_nobody_touched_cost_nothing_at_a_keyframe_either(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(4000, 64)
    optimizer = torch.optim.AdamW(table.parameters(), lr=1e-3)
    kept = []
    with cs.init(tmp_path / "repo", codec="small") as repo:
        for number in range(-15, SEGMENT + 3):
            table(torch.randint(0, 4000, (20,))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            if number >= 0:
                state = {"model": table.state_dict(), "optimizer": optimizer.state_dict()}
                kept.append((repo.commit(state, step=number), bits(state)))
        (chunk,) = chunks_of(repo, f"step:{SEGMENT + 1}", "model/weight")[:1]
        assert place_of(repo, chunk)[0].flags & FLAG_KEYFRAME
        sizes = [commit.stats.stored_bytes for commit, _ in kept]
        assert max(sizes[1:]) * 10 < sizes[0], sizes
        for commit, expected in kept:
            assert bits(repo.checkout(commit)) == expected
        assert not repo.verify(level="data").damaged
