"""Ranks: the processes of a data-parallel run, and the few things that they say to each other.

Everything here is collective: all ranks of a run call the same methods in the same order.  It goes over gloo, in a
group of its own, so that nothing gets between the collectives of training, which may go over NCCL.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from chainstore import config
from chainstore.errors import InvalidInput, RankFailure

T = TypeVar("T")
Group = Any  # of torch.distributed: a ProcessGroup, whose type is not there in builds without it

# Groups of some ranks, by ranks.  They stay: a second one of the same ranks has the name of the first (as those who are
# not in it do not count it), and its ranks look for each other where those of the first were.
_of_some: dict[tuple[int, ...], Group] = {}


class Ranks:
    """The ranks of a group.

    Args:
        ends: the group ends with this.

    Attributes:
        rank: of this process.  size: how many there are.
    """

    def __init__(self, group: Group, *, ends: bool = True) -> None:
        self._group, self._ends = group, ends
        self._first = dist.get_global_rank(group, 0)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes."""
        return self.rank == 0

    def share(self, value: T) -> T:
        """Return the value that rank 0 gives."""
        box = [value]
        with _peers():
            dist.broadcast_object_list(box, src=self._first, group=self._group)
        return box[0]

    def collect(self, value: T) -> list[T]:
        """Return on rank 0 what every rank gave, by rank; elsewhere nothing."""
        found: list[Any] | None = [None] * self.size if self.leads else None
        with _peers():
            dist.gather_object(value, found, dst=self._first, group=self._group)
        return found or []

    def everyone(self, value: T) -> list[T]:
        """Return what every rank gave, by rank."""
        found: list[Any] = [None] * self.size
        with _peers():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def most(self, *numbers: int) -> list[int]:
        """Return of each number the largest that a rank gave.  Cost: about 0.2 ms on one host."""
        found = torch.tensor(numbers, dtype=torch.int64)
        with _peers():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in found.tolist()]

    @contextmanager
    def first(self) -> Iterator[None]:
        """Let rank 0 do something before the others do, who fail if it does.

        Raises:
            RankFailure: not on rank 0, which failed.
        """
        if not self.leads:
            text = self.share("")
            if text:
                raise RankFailure(f"rank 0: {text}", {})
            yield
            return
        try:
            yield
        except BaseException as error:
            self.share(str(error) or type(error).__name__)
            raise
        self.share("")

    def close(self) -> None:
        """Leave the group; not collective; again is fine.

        The group ends here and now, with its threads: in a process that is forked later, such as the worker of a data
        loader, they would not be there to be waited for.
        """
        group, self._group = self._group, None
        if group is not None and self._ends and _is_there(group):
            dist.destroy_process_group(group)


def find_ranks(group: Group | Literal[False] | None) -> Ranks | None:
    """Return the ranks that train together, None where a process is alone.

    Args:
        group: of torch.distributed; None is all of it, where it is initialized; False is nobody.

    Raises:
        InvalidInput: there is no such group, or torchrun started several processes and they do not know each other.
    """
    if group is False:
        return None
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise InvalidInput("process_group= is given, and torch.distributed is not initialized")
        count = config.processes_of_torchrun()
        if count > 1:
            raise InvalidInput(
                f"torchrun started {count} processes, and torch.distributed is not initialized",
                hint="call torch.distributed.init_process_group() before SnapshotManager(...); where each process "
                "trains on its own, say process_group=False, and give each its own branch=",
            )
        return None
    size = dist.get_world_size(group)
    if size < 1:
        raise InvalidInput("this process is not in process_group=")
    if size == 1:
        return None
    with _peers():
        if group is None:
            return Ranks(dist.new_group(backend="gloo"))
        members = tuple(dist.get_process_group_ranks(group))
        if not _is_there(_of_some.get(members)):
            _of_some[members] = dist.new_group(list(members), backend="gloo", use_local_synchronization=True)
        return Ranks(_of_some[members], ends=False)


def _is_there(group: Group) -> bool:
    """Return whether a group did not end, by itself or with all."""
    return dist.is_initialized() and group in dist.distributed_c10d._world.pg_map


@contextmanager
def _peers() -> Iterator[None]:
    """Say what it means when a collective fails."""
    try:
        yield
    except RuntimeError as error:
        raise RankFailure(f"another rank does not answer: {error}", {}) from error
