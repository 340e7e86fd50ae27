"""Endings: how the run before this one on a branch ended, and so whether going on with it counts as an interruption.

A run that is closed in good order leaves word beside the lock of its branch; so does one that saved first because a
signal announced the end, and one that an exception ended.  Whoever is killed leaves no word, which is the word.
"""

import sys
from dataclasses import dataclass

import torch

from chainstore.errors import RankFailure, StorageError
from chainstore.metrics.snapshots import CAUSES
from chainstore.repository import how_ended

WELL = "well"
PREEMPTED = "by preemption, all saved"
STUCK = "by preemption"
_GLOO = "gloo/transport/"  # in what gloo raises, of no class of its own, where another rank is gone


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        cause: of the interruption, one of `metrics.snapshots.CAUSES`; "" where it was none.
        lost: whether work after its last snapshot was lost.
    """

    cause: str = ""
    lost: bool = False


def ending_of(before: str) -> Ending:
    """Return how the run before ended.

    Args:
        before: what it left on the branch (`BranchHold.before`); "" where nobody was here before.
    """
    how = how_ended(before)
    if how is None:
        return Ending("unknown", True) if before else Ending()
    if how == PREEMPTED:
        return Ending("preemption", False)
    cause = how.removeprefix("by ")
    return Ending(cause, True) if cause in CAUSES else Ending()


def words_again(before: str) -> str:
    """Return what to leave in place of what a run before left, by one that had nothing to do with it."""
    return WELL if not before else how_ended(before) or "by unknown"


def words_at_exit() -> str:
    """Return the word that a run leaves whose interpreter ends before it was closed."""
    if hasattr(sys, "ps1"):  # somebody types: that a line failed some time ago says nothing
        return WELL
    return words_for(getattr(sys, "last_value", None))


def words_for(error: BaseException | None) -> str:
    """Return the word that a run leaves which ends with an exception, or without one."""
    if error is None or isinstance(error, KeyboardInterrupt | GeneratorExit):
        return WELL  # a person who stops a run means it
    if isinstance(error, SystemExit):
        return WELL if error.code in (None, 0) else "by user-bug"
    return f"by {cause_of(error)}"


def cause_of(error: BaseException) -> str:
    """Return what interrupted a run, as far as its exception tells."""
    if isinstance(error, torch.OutOfMemoryError):
        return "device-out-of-memory"
    if isinstance(error, MemoryError):
        return "host-out-of-memory"
    if isinstance(error, RankFailure | torch.distributed.DistError) or _GLOO in str(error):
        return "peer-lost"
    if isinstance(error, StorageError | OSError):
        return "storage"
    return "user-bug"
