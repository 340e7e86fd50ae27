"""Ranks and meetings: what processes say to each other, and at which steps; in forked processes that do talk.

One pair goes through everything that concerns two, as a process more takes longer than all that it does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from chainstore.errors import ChainError, InvalidInput, SnapshotFailed
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.meetings import Meeting, Meetings
from chainstore.manager.ranks import Ranks, find_ranks
from tests.faults.children import Child, Ending
from tests.manager.ranks_job import Thing

NEVER = 1 << 31
Work = Callable[[int], Any]


def in_processes(size: int, meeting_point: Path, work: Work) -> list[Any]:
    """Return what `work` returned in each of some processes, which know each other; each is given its rank."""

    def begin(rank: int) -> Any:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size)
        return work(rank)

    children = [Child(partial(begin, rank)) for rank in range(size)]
    endings: list[Ending] = []
    try:
        while children:
            endings.append(children[0].join())
            children.pop(0)
    finally:
        for child in children[1:]:  # of those, the first was ended by `join`
            child.kill()
            child.join_dead()
    assert [ending.error for ending in endings] == [""] * size
    return [ending.answer for ending in endings]


@contextmanager
def told(answers: dict[str, Any], name: str) -> Iterator[None]:
    """Take note of the error that the block ends with, as its class and its text."""
    answers[name] = None
    try:
        yield
    except ChainError as error:
        answers[name] = type(error).__name__, str(error)


class Clock:
    """A clock that is told how long things take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def meet(meetings: Meetings, step: int, epoch: int | None = None, **said: Any) -> Meeting:
    return meetings.meet(step, epoch, **{"due": False, "signalled": False, "error": None, "quiet": NEVER, **said})


def met_at(ranks: Ranks, steps: int, step_seconds: float, quiet: Callable[[int], int]) -> list[int]:
    """Return at which of some steps ranks met."""
    clock, found = Clock(), []
    meetings = Meetings(ranks, clock)
    for step in range(1, steps + 1):
        clock.now += step_seconds if ranks.leads else 0.0  # nobody else's counts
        if meetings.due(step, None):
            meet(meetings, step, quiet=quiet(step) if ranks.leads else 1)
            found.append(step)
    return found


def by_words(ranks: Ranks, answers: dict[str, Any]) -> None:
    rank = ranks.rank
    answers["who"] = rank, ranks.size, ranks.leads
    answers["share"] = ranks.share({"of": rank})
    answers["collect"] = ranks.collect(("of", rank))
    answers["everyone"] = ranks.everyone(f"of {rank}")
    answers["most"] = ranks.most(10 - rank, rank, -5)
    with told(answers, "first"), ranks.first():
        answers["went on"] = True
    with told(answers, "first fails"), ranks.first():
        raise InvalidInput("no such thing") if rank == 0 else AssertionError("not before rank 0")
    with told(answers, "first fails without a word"), ranks.first():
        raise ChainError("") if rank == 0 else AssertionError("not before rank 0")
    with told(answers, "a follower fails"), ranks.first():
        if rank:
            raise InvalidInput("only here")


def by_steps(ranks: Ranks, answers: dict[str, Any]) -> None:
    answers["quick steps"] = met_at(ranks, 2000, 1 / 1024, lambda step: NEVER)
    answers["slow steps"] = met_at(ranks, 5, 1.0, lambda step: NEVER)
    answers["no time"] = met_at(ranks, 20_002, 0.0, lambda step: NEVER)
    answers["every 7"] = met_at(ranks, 100, 0.001, lambda step: 7 - step % 7)
    meetings = Meetings(ranks, Clock())
    meet(meetings, 1)
    meet(meetings, 2)
    answers["due"] = [meetings.due(3, None), meetings.due(1, None), meetings.due(3, 1), meetings.due(20_000, None)]


def by_meetings(ranks: Ranks, answers: dict[str, Any]) -> None:
    meetings, rank = Meetings(ranks, Clock()), ranks.rank
    answers["due there"] = meet(meetings, 1, due=rank == 0)
    answers["signal here"] = meet(meetings, 2, signalled=rank == 1)
    answers["nothing"] = meet(meetings, 3)
    with told(answers, "different steps"):
        meet(meetings, 4 + rank)
    failed = SnapshotFailed(3, "store-full", "no space is left")
    with told(answers, "failed"):
        meet(meetings, 5, error=failed if rank == 0 else None)
    answers["met again"] = meet(meetings, 6)


def pair(done: Path, rank: int) -> dict[str, Any]:
    ranks = find_ranks(None)
    assert ranks is not None
    answers: dict[str, Any] = {"alone": find_ranks(False)}
    by_words(ranks, answers)
    by_steps(ranks, answers)
    by_meetings(ranks, answers)
    again = find_ranks(None)
    assert again is not None
    again.close()
    again.close()
    if rank == 0:
        done.touch()
        with told(answers, "gone"):
            ranks.most(1)
    while not done.exists():
        time.sleep(0.001)
    return answers  # rank 1 ends here, with nothing left that rank 0 might not have heard


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("pair")
    return in_processes(2, folder / "meet", partial(pair, folder / "done"))


def each(answers: list[dict[str, Any]], name: str) -> list[Any]:
    return [answer[name] for answer in answers]


def test_ranks_know_who_they_are(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "who") == [(0, 2, True), (1, 2, False)]
    assert each(answers, "alone") == [None, None]


def test_ranks_hear_each_other(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "share") == [{"of": 0}, {"of": 0}]
    assert each(answers, "collect") == [[("of", 0), ("of", 1)], []]
    assert each(answers, "everyone") == [["of 0", "of 1"]] * 2
    assert each(answers, "most") == [[10, 1, -5]] * 2


def test_rank_0_goes_first_and_says_why_it_cannot(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "first") == [None, None] and each(answers, "went on") == [True, True]
    assert each(answers, "first fails") == [("InvalidInput", "no such thing"), ("RankFailure", "rank 0: no such thing")]
    assert each(answers, "first fails without a word")[1] == ("RankFailure", "rank 0: ChainError")
    assert each(answers, "a follower fails") == [None, ("InvalidInput", "only here")]


def test_ranks_meet_some_times_a_second_at_the_same_steps(answers: list[dict[str, Any]]) -> None:
    quick, same = each(answers, "quick steps")
    assert quick == same == [1, 2, *range(2 + 256, 2001, 256)]  # a quarter of a second
    assert each(answers, "slow steps") == [[1, 2, 3, 4, 5]] * 2
    assert each(answers, "no time") == [[1, 2, 10_002, 20_002]] * 2


def test_ranks_meet_where_a_rule_wants_them(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "every 7") == [[1, 2, *range(7, 100, 7)]] * 2


def test_ranks_meet_where_a_run_goes_back_and_where_an_epoch_begins(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "due") == [[False, True, True, True]] * 2


def test_what_one_says_counts_for_all(answers: list[dict[str, Any]]) -> None:
    assert each(answers, "due there") == [Meeting(due=True, signalled=False)] * 2
    assert each(answers, "signal here") == [Meeting(due=False, signalled=True)] * 2
    assert each(answers, "nothing") == [Meeting(due=False, signalled=False)] * 2


def test_ranks_that_are_not_at_one_step_are_told(answers: list[dict[str, Any]]) -> None:
    for kind, text in each(answers, "different steps"):
        assert kind == "RankFailure" and "rank 0 is at 4, rank 1 is at 5; every rank calls the same" in text


def test_an_error_of_rank_0_ends_no_meetings(answers: list[dict[str, Any]]) -> None:
    (kind, text), (other, same) = each(answers, "failed")
    assert kind == "SnapshotFailed" and "no space is left" in text
    assert (other, same) == ("RankFailure", f"rank 0: {text}")
    assert each(answers, "met again") == [Meeting(due=False, signalled=False)] * 2


def test_a_rank_that_is_gone_is_no_mere_error_of_gloo(answers: list[dict[str, Any]]) -> None:
    kind, text = answers[0]["gone"]
    assert kind == "RankFailure" and "another rank does not answer" in text


# ---- some of all


def some_of_three(folder: Path, rank: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    group = dist.new_group([1, 2])
    said: list[str] = []

    def manage(place: str, **options: Any) -> SnapshotManager:
        return SnapshotManager(
            folder / place,
            **{"interval": 1, "mode": "thread", "when_full": "wait", **options},
            observer=lambda event: said.append(getattr(event, "code", "") + ": " + getattr(event, "text", "")),
        )

    with told(answers, "outside"):
        for number in range(2):  # a second one, of the same ranks
            with manage("some", process_group=group) as manager:
                place = Thing()
                manager.loader(place)
                start = manager.resume()
                answers[f"resumed {number}"] = start, place.state
                place.state = 10 * (number + 1) + rank
                assert manager.step(start + 1)
    thing = Thing(torch.zeros(8))
    with manage("all") as manager:
        manager.step(1, thing=thing)
        thing.state[rank] += rank == 2
        manager.step(2, thing=thing)
        manager.wait()
        with told(answers, "all"):
            manager.step(4 if rank == 2 else 3, thing=thing)
    answers["diverged"] = [text for text in said if text.startswith("ranks-diverge")]
    return answers


def test_a_group_of_some_ranks_saves_for_itself(tmp_path: Path) -> None:
    answers = in_processes(3, tmp_path / "meet", lambda rank: some_of_three(tmp_path, rank))
    assert answers[0]["outside"] == ("InvalidInput", "this process is not in process_group=")
    for rank in (1, 2):
        assert answers[rank]["outside"] is None
        assert answers[rank]["resumed 0"] == (0, 0) and answers[rank]["resumed 1"] == (1, 10 + rank)
    for kind, text in each(answers, "all"):
        assert kind == "RankFailure" and "rank 0 is at 3, rank 2 is at 4" in text and "rank 1" not in text
    (text,) = answers[0]["diverged"]
    assert "rank 2 at step 2" in text and "thing/state" in text
    assert answers[1]["diverged"] == answers[2]["diverged"] == []
