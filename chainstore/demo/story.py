"""The story that `chain demo` tells: train, kill, go on, kill within a commit, go on, and compare every bit."""

import random
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import chainstore as cs
from chainstore.demo.director import REPOSITORY, Director, Plan
from chainstore.demo.telling import Teller, size, sparkline
from chainstore.errors import AlreadyExists

TRIES = 4  # a kill that came after its commit had ended is repeated at a later commit
SHOWN_COMMITS = 6
PARTS = {  # how the values of a state are summed up
    "weights": ("model/",),
    "optimizer": ("optimizer/",),
    "losses": ("losses/",),
    "schedule, place in the data, random numbers": ("scheduler/", "loader/", "random/", "step"),
}
FIVE_LINES = """\
import chainstore as cs
repo = cs.open("runs/gpt", create=True)
repo.commit({"model": model.state_dict()}, step=step)
state = repo.checkout("HEAD")  # in a new process, after whatever happened
model.load_state_dict(state["model"])
"""


def sums(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Yield (part, values, how many of them are equal) for each of PARTS; `ours` and `theirs` are path -> digest."""
    everything = ours.keys() | theirs.keys()
    for part, starts in PARTS.items():
        paths = [path for path in everything if path.startswith(starts)]
        yield part, len(paths), sum(ours.get(path) == theirs.get(path) for path in paths)


def introduce(teller: Teller, plan: Plan) -> None:
    teller.title("chainstore demo: a training run is killed twice and ends up with the same bits")
    teller.say(
        f"A small GPT learns to write like Python's help pages, in {plan.steps} steps. Every {plan.every} steps",
        "it commits all it consists of: weights, optimizer, schedule, random numbers, place",
        "in the shuffled data, losses.",
    )


def perform(director: Director, teller: Teller) -> None:
    """Train to the end through two kills."""
    teller.chapter(1, "Train, until the process is killed at a random moment")
    director.kill_at_a_random_step()
    teller.chapter(2, "Start it again; kill it in the middle of a commit")
    for _ in range(TRIES):
        if director.kill_within_a_commit():
            break
    teller.chapter(3, "Start it again and let it finish")
    director.train()
    teller.say(f"Step {director.run.step} of {director.plan.steps} done, committed as {director.run.commit_id}.")


def compare(director: Director, teller: Teller) -> bool:
    """Train once more without interruption and say, part by part, whether the bits are the same."""
    teller.chapter(4, "Train the same again, without any interruption and without chainstore")
    undisturbed, theirs = director.reference()
    teller.say(f"Step {undisturbed.step} of {director.plan.steps} done.")
    teller.chapter(5, "Compare the last commit with that run, bit for bit")
    ours = director.committed()
    rows = list(sums(ours, theirs))
    teller.table(
        (part, f"{equal} of {count} values", "[green]same bits[/]" if equal == count else "[red]DIFFERENT[/]")
        for part, count, equal in rows
    )
    curves = {"loss, killed twice": director.run, "loss, never killed": undisturbed}
    teller.table((name, sparkline(run.curve())) for name, run in curves.items())
    return ours == theirs and all(count > 0 for _, count, _ in rows)


def show_chain(repo: cs.Repository, teller: Teller) -> None:
    """Show the newest commits, what they take, and where the key is."""
    teller.chapter(6, "What is in the repository")
    stats, newest = repo.stats(), islice(repo.log(), SHOWN_COMMITS)
    rows = [(c.id.short, f"step {c.step}", f"loss {c.metrics['loss']:.3f}", c.message) for c in newest]
    teller.table([*rows, ("...", "", "", f"{stats.commits} commits in all")])
    saved = 1 - stats.stored_bytes / stats.logical_bytes
    teller.say(
        f"{size(stats.logical_bytes)} of state in {stats.commits} full snapshots take {size(stats.stored_bytes)}"
        f" ({saved:.0%} less), encrypted.",
        f"It opens with {repo.key_origin}",
        "Keep a copy of that key: without it nothing can be read, by anybody.",
    )


def outcome(director: Director, same: bool, seconds: float) -> str:
    """Return the one sentence to remember."""
    *most, last = [str(steps) for steps in director.lost]
    lost = f"{', '.join(most)} and {last}" if most else last
    if not same:
        return "The bits differ. This should never happen; please report it."
    return f"Killed {len(director.lost)} times, {lost} steps computed again, every bit the same. ({seconds:.0f} s)"


def tell(place: Path, plan: Plan, console: Console, chance: random.Random) -> bool:
    """Perform the demo in the directory `place`; return whether both runs ended in the same bits."""
    start, teller = time.perf_counter(), Teller(console)
    director = Director(place, plan, teller, chance)
    introduce(teller, plan)
    perform(director, teller)
    same = compare(director, teller)
    with cs.open(director.repository, readonly=True) as repo:
        show_chain(repo, teller)
    teller.verdict(same, outcome(director, same, time.perf_counter() - start))
    teller.say("", "All you need to do the same:")
    teller.code(FIVE_LINES)
    return same


def main(place: Path | None = None) -> int:
    """Tell the story on standard output; return the exit code, 0 only if every bit was the same.

    Args:
        place: a directory to make the repository in, which is kept; None takes a temporary one.

    Raises:
        AlreadyExists: there is a demo in `place`.
        ChainError: a training process failed by itself.
    """
    console, chance = Console(highlight=False), random.Random()
    if place is None:
        with TemporaryDirectory(prefix="chain-demo-") as temporary:
            same = tell(Path(temporary), Plan(), console, chance)
        Teller(console).say("", "The repository was temporary and is gone; `chain demo --keep DIR` keeps it in DIR.")
        return 0 if same else 1
    kept = place / REPOSITORY
    if kept.exists():
        raise AlreadyExists(f"there is a demo in {place}", hint="choose another directory, or remove that one")
    place.mkdir(parents=True, exist_ok=True)
    same = tell(place, Plan(), console, chance)
    Teller(console).say("", f"The repository stays. Look around: chain -C {kept} log")
    return 0 if same else 1
