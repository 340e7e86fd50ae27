"""What the ranks of a run do in `test_ranks.py`, under torchrun: `torchrun ... -m tests.manager.ranks_job WHAT FOLDER`.

`checks` goes through all of `CHECKS` with the same processes, and each rank writes down a line for each: what it saw,
or the traceback of what went wrong.  `train` is one run that others kill.
"""

import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import chainstore as cs
from chainstore.errors import ChainError
from chainstore.manager import manager as managing
from chainstore.manager.manager import SnapshotManager
from chainstore.observe import Notice
from chainstore.policies.triggers import EveryEpoch, EverySeconds, OnBest, WhenDurable

NEVER = 1_000_000
EACH = 4  # batches an epoch, on each of two ranks
TOTAL, TRAINED = 14, 120  # steps of a run, and of one that is killed
INTERVAL = 5  # of the one that is killed
HANGS_SECONDS = 60  # after which a check says where it is


class Rows(Dataset[torch.Tensor]):
    """Rows with noise from the generators of Python, NumPy and torch."""

    def __init__(self, noise: bool) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 2 * EACH * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.linspace(0, 1, 8) * (index + 1)
        return row + random.random() + float(np.random.rand()) + torch.rand(8) if self.noise else row


class Place:
    """Which pass over the data a run is in, kept by hand."""

    epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class Run:
    """Everything that one rank of a run consists of."""

    def __init__(self, seed: int, *, accumulate: int = 1, stateful: bool = False) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.accumulate, self.stateful = accumulate, stateful
        random.seed(seed + 100 * rank)
        np.random.seed(seed + 100 * rank)
        torch.manual_seed(seed + 100 * rank)
        layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        model = torch.nn.Sequential(*layers)
        self.model: Any = DistributedDataParallel(model) if dist.is_initialized() else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=TRAINED)
        self.parts = (self.model, self.optimizer, self.scheduler)
        data, place = Rows(noise=not stateful), Place()
        self.sampler: Any = DistributedSampler(data) if dist.is_initialized() else None
        kind: Any = StatefulDataLoader if stateful else DataLoader
        options: Any = {"sampler": self.sampler} if self.sampler is not None else {"shuffle": True}
        self.place, self.loader = place, kind(data, batch_size=4, num_workers=2 if stateful else 0, **options)
        self.losses: list[str] = []

    def train(
        self, step: int, hook: Callable[[int], object], *, total: int = TOTAL, dies: tuple[int, int] | None = None
    ) -> None:
        """Train from `step` to the end, calling the hook after each optimizer step.

        Args:
            dies: a step, and how many batches after it the run ends.
        """
        window = 0
        self.place.epoch = getattr(self.loader, "epoch", self.place.epoch)
        while step < total:
            if self.sampler is not None:
                self.sampler.set_epoch(self.place.epoch)
            for rows in self.loader:
                window += 1
                self._backward(rows, last=window == self.accumulate)
                if window == self.accumulate:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.scheduler.step()
                    step, window = step + 1, 0
                    hook(step)
                if step == total or (step, window) == dies:
                    return
            self.place.epoch += 1

    def _backward(self, rows: torch.Tensor, last: bool) -> None:
        with nullcontext() if last or not isinstance(self.model, DistributedDataParallel) else self.model.no_sync():
            loss = self.model(rows).square().mean() / self.accumulate
            loss.backward()
        self.losses.append(loss.detach().numpy().tobytes().hex())

    def step(self) -> None:
        """Do one optimizer step on random data."""
        self._backward(torch.randn(4, 8), last=True)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bits(self) -> dict[str, str]:
        """Return everything that the next step depends on, by name, as digests."""
        state = cs.capture(*self.parts)
        return {name: hashlib.sha256(b"".join(_bits(value))).hexdigest()[:16] for name, value in state.items()}

    def weights(self) -> list[float]:
        """Return a few numbers that tell one state of the model from another."""
        return [float(value.double().sum()) for value in self.model.state_dict().values()]


def _bits(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().contiguous().numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield repr(key).encode()
            yield from _bits(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _bits(inner)
    else:
        yield repr(value).encode()


class Thing:
    """Something small with a state."""

    def __init__(self, state: Any = 0) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


class Broken(Thing):
    """Something that has no state now."""

    def state_dict(self) -> dict[str, Any]:
        raise ValueError("it is not a good moment")


def manage(folder: Path, **options: Any) -> SnapshotManager:
    return SnapshotManager(folder, **{"interval": 1, "mode": "thread", "when_full": "wait", **options})


class Notices:
    """Takes note of what is said, but for where the key is."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def __call__(self, event: object) -> None:
        if isinstance(event, Notice) and not event.code.startswith("key-"):
            self.told.append([event.code, event.text])


def told(error: BaseException) -> list[str]:
    return [type(error).__name__, str(error)]


@contextmanager
def failing() -> Iterator[list[str]]:
    """Take note of the error that the block ends with."""
    found: list[str] = []
    try:
        yield found
    except (ChainError, ValueError) as error:
        found += told(error)


# ---- exact resume


def exact(folder: Path, stops: list[tuple[int, int]], mode: str = "thread", **recipe: Any) -> Any:
    """Return what a run that never stopped ended with, and what one that died at each of some places did."""
    straight = Run(1, **recipe)
    straight.train(0, lambda step: None)
    begins: list[int] = []
    losses: list[str] = []
    found: list[bool] = []
    for number, stop in enumerate([*stops, None]):
        run = Run(1 if number == 0 else 90 + number, **recipe)
        due = stop[0] if stop is not None else TOTAL
        with manage(folder, interval=due, mode=mode, on_error="raise") as manager:
            manager.track(place=run.place)
            run.loader = manager.loader(run.loader)
            start = manager.resume(*run.parts)
            begins.append(start)
            run.train(start, lambda step: found.append(manager.step(step, *run.parts)), dies=stop)  # noqa: B023
        losses = losses[: start * run.accumulate] + run.losses
    answer = {"begins": begins, "snapshots": sum(found), "straight": straight.bits(), "stopped": run.bits()}
    return {**answer, "straight_losses": straight.losses, "stopped_losses": losses}


def exact_with_a_loader_of_ours(folder: Path, rank: int) -> Any:
    return exact(folder, [(3, 0), (6, 0)], "process")


def exact_with_gradients_accumulated(folder: Path, rank: int) -> Any:
    return exact(folder, [(5, 1)], accumulate=2)


def exact_with_a_loader_that_keeps_its_place(folder: Path, rank: int) -> Any:
    return exact(folder, [(2, 0), (7, 0)], stateful=True)


# ---- replicas


def drift(folder: Path, rank: int) -> Any:
    """Change one weight of rank 1 at step 3, put it right before step 6, and change a moment at step 7."""
    run, notices = Run(3), Notices()
    statistics = []
    with manage(folder, observer=notices) as manager:
        for step in range(1, 8):
            if step == 6:
                run.step()
                for part in (*run.model.parameters(), *(m for s in run.optimizer.state.values() for m in s.values())):
                    dist.broadcast(part.data, 0)
            else:
                run.step()
            if step == 3 and rank == 1:
                run.model.module[0].weight.data[0, 0] += 1
            if step == 7 and rank == 1:
                run.optimizer.state[run.model.module[3].bias]["exp_avg"].mul_(2)
            manager.step(step, *run.parts)
            statistics.append(float(run.model.module[1].running_mean.sum()))
    return {"told": notices.told, "statistics": statistics}


def drift_after_a_first_snapshot_that_failed(folder: Path, rank: int) -> Any:
    notices, array = Notices(), Thing(np.zeros(1000))
    with manage(folder, observer=notices) as manager:
        first = manager.step(1, array=array, odd=Thing(object() if rank == 0 else 0))
        second = manager.step(2, array=array, odd=Thing(0))
        array.state[rank] += 1
        third = manager.step(3, array=array, odd=Thing(0))
    return {"captured": [first, second, third], "told": notices.told}


# ---- signals


def signal_to_one_rank(folder: Path, rank: int) -> Any:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    run = Run(4)
    with manage(folder, interval=NEVER, mode="process") as manager:
        for step in range(1, 10_000):
            run.step()
            if rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            manager.step(step, *run.parts)
            if manager.preempted:
                break
        tip = manager.repo.get_commit("main")  # before it is closed, and so before it could wait
        durable = manager.stats().durable
    signal.signal(signal.SIGTERM, before)
    return {"step": step, "tip": tip.step, "why": tip.meta["why"], "durable": durable, "heard": len(heard)}


# ---- what goes wrong


def ranks_at_different_steps(folder: Path, rank: int) -> Any:
    with manage(folder) as manager, failing() as error:
        manager.step(7 + rank, thing=Thing())
    return error


def ranks_that_save_different_steps(folder: Path, rank: int) -> Any:
    with manage(folder) as manager, failing() as error:
        manager.save(7 + rank, thing=Thing())
    return error


def a_rank_without_a_state(folder: Path, rank: int) -> Any:
    with manage(folder) as manager:
        with failing() as error:
            manager.step(1, thing=Broken() if rank == 1 else Thing())
        return {"error": error, "next": manager.step(2, thing=Thing())}


def a_place_that_cannot_be_gathered(folder: Path, rank: int) -> Any:
    with manage(folder) as manager:
        place = Thing((lambda: 0) if rank == 1 else 0)
        manager.loader(place)
        with failing() as error:
            manager.step(1)
        place.state = 1
        return {"error": error, "next": manager.step(2)}


def a_name_that_is_taken(folder: Path, rank: int) -> Any:
    with manage(folder) as manager, failing() as error:
        manager.step(1, ranks=Thing())
    return error


def a_branch_that_is_held(folder: Path, rank: int) -> Any:
    wait, managing._WAIT_SECONDS = managing._WAIT_SECONDS, 0.5
    holder = manage(folder, process_group=False) if rank == 0 else None
    began = time.monotonic()
    with failing() as error:
        manage(folder)
    seconds = time.monotonic() - began
    if holder is not None:
        holder.close()
    managing._WAIT_SECONDS = wait
    with manage(folder) as manager:
        return {"error": error, "seconds": seconds, "next": manager.step(1, thing=Thing())}


def a_snapshot_that_failed_is_raised(folder: Path, rank: int) -> Any:
    with manage(folder, on_error="raise") as manager:
        first = manager.step(1, thing=Thing(object()))
        with failing() as at_step:
            manager.step(2, thing=Thing())
        manager.step(2, thing=Thing(object()))
        with failing() as at_save:
            manager.save(3, thing=Thing())
        return {"captured": [first, manager.step(4, thing=Thing())], "errors": [at_step, at_save]}


# ---- what is not one run


def each_on_its_own(folder: Path, rank: int) -> Any:
    with manage(folder) as manager:  # makes the repository
        manager.save({"step": 0})
    with manage(folder, process_group=False, branch=f"own-{rank}") as manager:
        for step in range(1, 3 + rank):  # not as many
            manager.step(step, thing=Thing(rank))
    with cs.open(folder) as repo:
        commit = repo.get_commit(f"own-{rank}")
        return {"step": commit.step, "state": repo.checkout(commit)["thing"], "size": commit.meta.get("world_size")}


# ---- more ranks or fewer, damage, states


def from_one_process(folder: Path, rank: int) -> Any:
    """Go on from what a single process left in the folder."""
    run = Run(5)
    with warnings.catch_warnings(record=True) as caught, manage(folder) as manager:
        warnings.simplefilter("always")
        run.loader = manager.loader(run.loader)
        start = manager.resume(*run.parts)
        weights = run.weights()
        next(iter(run.loader))
        captured = manager.step(start + 1, *run.parts)
    return {"start": start, "weights": weights, "told": [str(each.message) for each in caught], "captured": captured}


def for_one_process(folder: Path, rank: int) -> Any:
    run = Run(6)
    with manage(folder) as manager:
        run.loader = manager.loader(run.loader)
        run.train(0, lambda step: manager.step(step, *run.parts), total=3)
    return {"weights": run.weights()}


def damage(folder: Path, newest: set[Any], older: set[Any]) -> None:
    """Damage what is in the first set of objects and not in the second."""
    assert newest - older
    with cs.open(folder) as repo:
        with repo._db.turn(), repo._db._index.write() as rows:
            for id in newest - older:
                rows.delete("inline", id)
        with repo._db.view() as view:
            for id in newest - older:
                place = view.place(id)
                assert place is not None
                pack = repo._db.packs.path(view.pack(place.pack).pack)
                data = bytearray(pack.read_bytes())
                data[place.offset + place.length // 2] ^= 255
                pack.write_bytes(bytes(data))


def chunks(folder: Path, revision: str, below: tuple[Any, ...] = ()) -> set[Any]:
    with cs.open(folder) as repo:
        entries = [entry for entry in repo[revision].manifest.entries if entry.path[: len(below)] == below]
    return {extent.chunk for entry in entries for extent in entry.extents}


def _walks_back(folder: Path, rank: int, below: tuple[Any, ...]) -> Any:
    """Save three times, damage what is below a path in the last snapshot, and resume."""
    run, place = Run(7), Thing()
    weights = {}
    with manage(folder, codec="none") as manager:
        manager.loader(place)
        for step in range(1, 4):
            run.step()
            place.state = np.random.default_rng(10 * step + rank).random(100_000)
            weights[step] = run.weights()
            manager.step(step, *run.parts)
    if rank == 0:
        damage(folder, chunks(folder, "main", below), chunks(folder, "main~1"))
    dist.barrier()
    again, place = Run(8), Thing()
    with warnings.catch_warnings(record=True) as caught, manage(folder) as manager:
        warnings.simplefilter("always")
        manager.loader(place)
        start = manager.resume(*again.parts)
    texts = [str(each.message) for each in caught]
    # Rank 1's statistics are its own until the next step.
    same = [a == b for a, b in zip(again.weights(), weights[start], strict=True)]
    right = bool((place.state == np.random.default_rng(10 * start + rank).random(100_000)).all())
    return {"start": start, "told": texts, "same": same, "place": right}


def damage_that_all_see(folder: Path, rank: int) -> Any:
    return _walks_back(folder, rank, ())


def damage_that_rank_1_sees(folder: Path, rank: int) -> Any:
    return _walks_back(folder, rank, ("ranks", 1, "loader"))


def damage_everywhere(folder: Path, rank: int) -> Any:
    with manage(folder, codec="none") as manager:
        manager.step(1, thing=Thing(np.random.default_rng(1).random(100_000)))
    if rank == 0:
        damage(folder, chunks(folder, "main"), set())
    dist.barrier()
    with manage(folder) as manager, failing() as error:
        manager.resume(thing=Thing())
    return error


def states_as_they_are(folder: Path, rank: int) -> Any:
    with manage(folder) as manager:
        with failing() as nothing, manage(folder, branch="empty") as other:
            other.load_latest()
        saved = manager.save({"step": 3, "w": torch.arange(4.0)})
        manager.wait()
        loaded = manager.load_latest()
        return {"nothing": nothing, "saved": saved, "keys": sorted(loaded), "w": loaded["w"].tolist()}


# ---- when


def captured_at(folder: Path, rank: int, steps: int, options: Any, call: Callable[[int], dict[str, Any]]) -> Any:
    """Return after which steps this rank was told of a snapshot, and of which there are."""
    found = []
    with manage(folder, **options) as manager:
        for step in range(1, steps + 1):
            time.sleep(0.003 if step < steps * 3 // 4 else 0.0)  # another pace later on
            if manager.step(step, thing=Thing(step), **call(step)):
                found.append(step)
    with cs.open(folder) as repo:
        return {"captured": found, "stored": sorted(commit.step or 0 for commit in repo.log())}


def every_7_steps(folder: Path, rank: int) -> Any:
    return captured_at(folder, rank, 300, {"interval": 7}, lambda step: {})


def by_time(folder: Path, rank: int) -> Any:
    return captured_at(folder, rank, 300, {"interval": None, "triggers": [EverySeconds(0.05)]}, lambda step: {})


def when_best(folder: Path, rank: int) -> Any:
    losses = [5.0, 4.0, 6.0, 3.0, 3.0, 2.0]
    options = {"interval": None, "triggers": [OnBest("loss")]}
    return captured_at(
        folder, rank, 6, options, lambda step: {"metrics": {"loss": losses[step - 1]}} if rank == 0 else {}
    )


def when_durable(folder: Path, rank: int) -> Any:
    return captured_at(folder, rank, 300, {"interval": None, "triggers": [WhenDurable()]}, lambda step: {})


def each_epoch(folder: Path, rank: int) -> Any:
    options = {"interval": None, "triggers": [EveryEpoch()]}
    return captured_at(folder, rank, 40, options, lambda step: {"epoch": (step - 1) // 9})


def adaptive(folder: Path, rank: int) -> Any:
    return captured_at(folder, rank, 300, {"interval": "adaptive"}, lambda step: {})


CHECKS = [
    exact_with_a_loader_of_ours,
    exact_with_gradients_accumulated,
    exact_with_a_loader_that_keeps_its_place,
    drift,
    drift_after_a_first_snapshot_that_failed,
    signal_to_one_rank,
    ranks_at_different_steps,
    ranks_that_save_different_steps,
    a_rank_without_a_state,
    a_place_that_cannot_be_gathered,
    a_name_that_is_taken,
    a_branch_that_is_held,
    a_snapshot_that_failed_is_raised,
    each_on_its_own,
    from_one_process,
    for_one_process,
    damage_that_all_see,
    damage_that_rank_1_sees,
    damage_everywhere,
    states_as_they_are,
    every_7_steps,
    by_time,
    when_best,
    when_durable,
    each_epoch,
    adaptive,
]


def checks(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    with open(folder / f"told-{rank}.jsonl", "a") as lines:

        def tell(name: str, check: Callable[[], Any]) -> None:
            began, line = time.monotonic(), dict[str, Any](name=name, answer=None, error="")
            faulthandler.dump_traceback_later(HANGS_SECONDS)
            try:
                line["answer"] = check()
            except Exception:
                line["error"] = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            line["seconds"] = round(time.monotonic() - began, 2)
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        def before_they_know_each_other() -> Any:
            with failing() as error:
                manage(folder / "never")
            return [*error, (folder / "never").exists()]

        tell("before_they_know_each_other", before_they_know_each_other)
        dist.init_process_group("gloo")
        warnings.simplefilter("ignore", RuntimeWarning)
        for check in CHECKS if not sys.argv[3:] else [globals()[name] for name in sys.argv[3:]]:
            tell(check.__name__, lambda: check(folder / check.__name__, rank))  # noqa: B023
            dist.barrier()
        dist.destroy_process_group()


def train(folder: Path) -> None:
    """Train in view of whoever kills; the last attempt says what it ended with, and what it should have."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    last = attempt == int(os.environ["TORCHELASTIC_MAX_RESTARTS"])
    dist.init_process_group("gloo")
    run = Run(1 if attempt == 0 else 90 + attempt)
    with manage(folder / "run", interval=INTERVAL, mode="process") as manager, open(folder / "steps", "a") as steps:

        def tell(step: int) -> None:
            captured = manager.step(step, *run.parts)
            line = {"attempt": attempt, "rank": rank, "pid": os.getpid(), "start": start, "step": step}
            steps.write(json.dumps({**line, "captured": captured, "loss": run.losses[-1]}) + "\n")
            steps.flush()
            if not last:
                time.sleep(0.01)  # leaves whoever watches the time to kill in the middle

        run.loader = manager.loader(run.loader)
        start = manager.resume(*run.parts)
        run.train(start, tell, total=TRAINED if last else NEVER)
        causes = dict(manager.stats().interruptions)
    straight = Run(1)
    straight.train(0, lambda step: None, total=TRAINED)
    answer = {"stopped": run.bits(), "straight": straight.bits(), "losses": straight.losses, "causes": causes}
    (folder / f"end-{rank}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"checks": checks, "train": train}[sys.argv[1]](Path(sys.argv[2]))
