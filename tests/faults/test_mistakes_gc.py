"""The test of the tests: each mistake by which forgetting or collecting loses something is told by a trial."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chainstore.errors import ChainError
from chainstore.ids import ObjectId
from chainstore.odb import conflicts
from chainstore.odb.reader import ObjectReader
from chainstore.ops import gc as gc_module
from chainstore.ops.reach import Reach
from chainstore.storage import fs
from chainstore.storage.pack import PackDir
from tests.faults import gc_trials as trials
from tests.faults.seeds import base_seed, replayable

Patch = pytest.MonkeyPatch
Trial = Callable[[Path], None]
SEEDS = 8


def gc_ignores_readers(patch: Patch) -> None:
    patch.setattr(gc_module, "leased_snapshots", lambda directory: {})


def gc_does_not_look_at_what_is_published_meanwhile(patch: Patch) -> None:
    patch.setattr(gc_module._Collection, "_follow", lambda collection, to: collection.standing.advance(to) and None)


def gc_takes_bytes_before_the_log_says_so(patch: Patch) -> None:
    publish = gc_module._Collection._publish

    def bytes_first(collection: Any, batch: Any, *how: Any, **more: Any) -> Any:
        for pack, ranges, _ in batch.ranges.values():
            for start, stop in ranges:
                pack.file.punch(start, stop - start)
        return publish(collection, batch, *how, **more)

    patch.setattr(gc_module._Collection, "_publish", bytes_first)


def gc_takes_packs_that_somebody_writes_to(patch: Patch) -> None:
    def take(packs: PackDir, name: bytes) -> fs.File | None:
        try:
            return fs.open_file(packs.path(name), write=True)
        except FileNotFoundError:
            return None

    patch.setattr(PackDir, "take_over", take)


def gc_forgets_bases(patch: Patch) -> None:
    patch.setattr(Reach, "_add_bases", lambda reach, ids: None)


def reflogs_expire_at_once(patch: Patch) -> None:
    patch.setattr(gc_module, "REFLOG_US", 0)


def refs_may_lead_to_what_gc_took(patch: Patch) -> None:
    patch.setattr(conflicts, "_check_marks", lambda view, targets: None)


def tips_may_be_forgotten(patch: Patch) -> None:
    patch.setattr(conflicts, "taken_back", lambda view, changes: [])
    patch.setattr("chainstore.odb.local.taken_back", lambda view, changes: [])


def refs_move_whatever_they_were(patch: Patch) -> None:
    patch.setattr(conflicts, "_check_refs", lambda view, changes: None)


def reused_objects_are_not_looked_for_again(patch: Patch) -> None:
    patch.setattr(conflicts, "_check_batch", lambda view, batch: None)


def ids_are_not_checked(patch: Patch) -> None:
    read = ObjectReader._read

    def trusting(reader: ObjectReader, id: ObjectId, *how: Any) -> memoryview:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(reader._sealer), "id", lambda *_: id)
            return read(reader, id, *how)

    patch.setattr(ObjectReader, "_read", trusting)


Mistake = Callable[[Patch], None]
MISTAKES: list[tuple[Mistake, Trial, str]] = [
    (gc_ignores_readers, trials.while_reading, "I7"),
    (gc_does_not_look_at_what_is_published_meanwhile, trials.commit_meanwhile, "I7"),
    (gc_takes_bytes_before_the_log_says_so, trials.again, "I3"),
    (gc_takes_packs_that_somebody_writes_to, trials.siege, "I7"),
    (gc_forgets_bases, trials.differences, "I3"),
    (reflogs_expire_at_once, trials.game, "I3"),
    (reflogs_expire_at_once, trials.script, "I3"),
    (refs_may_lead_to_what_gc_took, trials.script, "I3"),
    (tips_may_be_forgotten, trials.script, "I3"),
    (reused_objects_are_not_looked_for_again, trials.collect_meanwhile, "I3"),
    (refs_move_whatever_they_were, trials.race, "I9"),
    (ids_are_not_checked, trials.flip, "I5"),
]


IDS = [f"{mistake.__name__}-{trial.__name__}" for mistake, trial, _ in MISTAKES]
ALONE = [trial for trial in dict.fromkeys(case[1] for case in MISTAKES) if trial is not trials.game]  # a test by itself


@pytest.mark.parametrize(("mistake", "trial", "breaks"), MISTAKES, ids=IDS)
def test_a_mistake_is_told(mistake: Mistake, trial: Trial, breaks: str, ground: Path, monkeypatch: Patch) -> None:
    """One of a few tries has to fail; which one is chance, that none of them does is not."""
    mistake(monkeypatch)
    for turn in range(SEEDS):
        try:
            trial(ground / str(turn))
        except (AssertionError, ChainError, BaseExceptionGroup) as told:
            print(f"{breaks}: {str(told)[:2000]}")
            return
    pytest.fail(f"{SEEDS} tries did not tell")


@pytest.mark.parametrize("trial", ALONE, ids=lambda trial: trial.__name__)
def test_without_a_mistake_nothing_is_told(trial: Trial, ground: Path) -> None:
    with replayable(base_seed()):
        trial(ground / "right")
