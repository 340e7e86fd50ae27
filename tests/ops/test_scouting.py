"""With `codec="auto"` commits make differences where those pay, and not otherwise."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.codecs.thrift import Thrift
from chainstore.ops.scouting import LOOK_EVERY

GB = 1 << 30
SLOW, FAST = 20.0, 0.0  # seconds for a GB
State = dict[str, "np.ndarray[tuple[int, int], np.dtype[np.float32]]"]


def tell(repo: cs.Repository, disk: float, coder: float = 2.5) -> None:
    """Have a repository know these speeds, whatever it measures."""
    thrift = repo._handle.db.benches.thrift
    thrift.coded(GB, coder)
    thrift.handled(GB, 1.0)
    thrift.wrote(GB, disk)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[cs.Repository]:
    with cs.init(tmp_path / "repo", encrypt=False) as made:
        yield made


def weights(seed: int = 1) -> State:
    source = np.random.default_rng(seed)
    return {f"w{number}": source.normal(0, 1, (512, 512)).astype(np.float32) for number in range(3)}


def touch(state: State, turn: int) -> State:
    """Change one row in fifty."""
    for array in state.values():
        array[turn % 50 :: 50] += 1
    return state


def check(repo: cs.Repository, state: State) -> None:
    back = repo.checkout()
    assert all((back[name] == array).all() for name, array in state.items())


def test_few_changes_are_stored_as_differences_where_that_pays(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    state = weights()
    first = repo.commit(state).stats
    assert first.delta_bytes == 0
    for turn in range(3):
        done = repo.commit(touch(state, turn)).stats
        assert done.delta_bytes > 0.9 * done.new_bytes > 0
        assert done.stored_bytes < 0.1 * first.stored_bytes
        check(repo, state)
    assert repo.verify("data").ok


def test_nothing_is_a_difference_where_it_does_not_pay(repo: cs.Repository) -> None:
    tell(repo, FAST)
    state = weights()
    repo.commit(state)
    for turn in range(3):
        assert repo.commit(touch(state, turn)).stats.delta_bytes == 0
        check(repo, state)


def test_nothing_is_a_difference_where_all_values_are_new(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    for seed in range(3):
        assert repo.commit(weights(seed)).stats.delta_bytes == 0


def test_nothing_is_a_difference_until_the_speeds_are_known(repo: cs.Repository) -> None:
    state = weights()
    repo.commit(state)
    assert repo.commit(touch(state, 1)).stats.delta_bytes == 0
    assert not repo._handle.db.benches.thrift.known


def test_it_looks_again_after_some_commits(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    repo.commit(weights(1))
    repo.commit(weights(2))  # seen: all values are new
    state = weights(2)
    found = [repo.commit(touch(state, turn)).stats.delta_bytes > 0 for turn in range(LOOK_EVERY + 2)]
    assert found == [False] * LOOK_EVERY + [True] * 2
    check(repo, state)


def test_a_shadow_is_kept_only_while_differences_are_made(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    shadow, state = repo._handle.core.shadow, weights()
    repo.commit(state)
    assert shadow.nbytes == 0
    repo.commit(touch(state, 0))
    assert shadow.nbytes > 0
    repo._handle.core.scout._left = 0  # as after so many commits
    repo.commit(weights(9))
    assert shadow.nbytes == 0


def test_a_kept_snapshot_outlives_those_that_it_was_a_difference_to(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    state = weights()
    ids = [repo.commit(touch(state, turn)).id for turn in range(12)]
    kept = {name: array.copy() for name, array in state.items()}
    repo.forget(commits=ids[:-1])
    repo.gc()
    check(repo, kept)
    assert repo.verify("data").ok


def test_a_damaged_predecessor_is_passed_over(repo: cs.Repository) -> None:
    tell(repo, SLOW)
    state = weights()
    repo.commit(state)
    [names] = repo._handle.core.tips.values()
    repo._handle.db.suspect(names.chunks())
    assert repo.commit(touch(state, 1)).stats.delta_bytes == 0
    check(repo, state)


def test_speeds_that_were_measured_count_as_told() -> None:
    thrift = Thrift()
    assert not thrift.known
    thrift.coded(GB, 2.5)
    thrift.wrote(GB, 4.0)
    thrift.handled(GB, 1.0)
    assert thrift.known
    assert thrift.pays(GB, 1.0, 0.0) and not thrift.pays(GB, 1.1, 0.0)  # a fifth of 4 + 1 seconds
    assert thrift.pays(GB, 3.0, GB / 2) and not thrift.pays(GB, 3.1, GB / 2)
