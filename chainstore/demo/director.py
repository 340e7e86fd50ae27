"""The demo's director: starts the training processes, kills them at moments drawn by chance, and keeps the score.

All training happens in processes of their own, which do not know what awaits them.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chainstore.demo.children import Event, TrainingProcess
from chainstore.demo.telling import Run, Teller, Watching, size

REPOSITORY = "run"  # its directory, in the place of the performance
RECENT = 5  # commits
STEP_SECONDS = 0.05  # a step takes about that long; the first kill comes somewhere within one
MIDDLE = (0.1, 0.8)  # the second kill comes after this share of the time that the quickest of the last commits took


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the training is: `steps` optimizer steps, a commit after each `every` of them."""

    steps: int = 120
    every: int = 4


@dataclass(frozen=True, slots=True)
class Kill:
    """One killed process.

    Attributes:
        at: the last step it had completed.
        committing: the step whose commit it was meant to die in, None if it was not.
        too_late: it had reported that commit as durable before it died.
    """

    at: int
    committing: int | None = None
    too_late: bool = False


Interrupt = Callable[[TrainingProcess, Watching, Event], Kill | None]


class Director:
    """Leads one performance in one directory.

    Args:
        place: a directory for the repository and for what the processes write to standard error.
        chance: where the random moments come from.

    Attributes:
        lost: for each kill, how many steps had to be computed again.
    """

    def __init__(self, place: Path, plan: Plan, teller: Teller, chance: random.Random) -> None:
        self.repository = place / REPOSITORY
        self.plan = plan
        self.run = Run(plan.steps)
        self.lost: list[int] = []
        self._errors = place / "errors.txt"
        self._teller, self._chance = teller, chance
        self._killed: Kill | None = None
        self._bytes_before = 0

    def train(self, interrupt: Interrupt | None = None) -> Kill | None:
        """Run one training process until it finishes (None) or `interrupt`, asked at every event, has killed it."""
        with self._start(str(self.repository)) as process, self._teller.watching(self.run) as watching:
            for event in process.events():
                watching.hear(event)
                if event["event"] == "started":
                    self._tell_start(process.pid, event["step"])
                if interrupt and (kill := interrupt(process, watching, event)):
                    self._killed = kill
                    return kill
        return None

    def kill_at_a_random_step(self) -> None:
        """Train until a random step in the first half and kill the process somewhere within the step after it."""
        target = self._chance.randrange(self.plan.steps // 5, self.plan.steps // 2)

        def interrupt(process: TrainingProcess, watching: Watching, event: Event) -> Kill | None:
            if event["event"] != "step" or event["step"] != target:
                return None
            time.sleep(self._chance.uniform(0.0, STEP_SECONDS))
            watching.hear_all(process.kill())
            within = self.run.committing
            where = (
                f"in the middle of step {self.run.step + 1}"
                if within is None
                else f"within its commit of step {within}"
            )
            self._teller.killed(f"to process {process.pid}, {where}.")
            return Kill(self.run.step, within)

        self.train(interrupt)

    def kill_within_a_commit(self) -> bool:
        """Train until a random commit in the second half and kill the process in its middle.

        Returns:
            Whether the process died before it could report the commit; False if it was faster than the signal.
        """
        first, last = self.plan.steps // 2, self.plan.steps * 4 // 5
        target = self._chance.randrange(min(max(first, self.run.step), last), last + 1)

        def interrupt(process: TrainingProcess, watching: Watching, event: Event) -> Kill | None:
            if event["event"] == "step":
                self._bytes_before = self._on_disk()
            if event["event"] != "committing" or event["step"] < target:
                return None
            recent = self.run.commit_seconds[-RECENT:]
            delay = min(recent) * self._chance.uniform(*MIDDLE)
            time.sleep(delay)
            watching.hear_all(process.kill())
            self._tell_commit_killed(process.pid, event["step"], delay, median(recent))
            return Kill(self.run.step, event["step"], too_late=self.run.committed_step == event["step"])

        kill = self.train(interrupt)
        return kill is not None and not kill.too_late

    def reference(self) -> tuple[Run, dict[str, str]]:
        """Train without interruption and without chainstore; return that run and its final state's digests by path."""
        alone = Run(self.plan.steps)
        with self._start("--no-commits") as process, self._teller.watching(alone) as watching:
            return alone, watching.hear_all(process.events())["digests"]

    def committed(self) -> dict[str, str]:
        """Return the last commit's digests by path, as a new process reads it."""
        with self._start(str(self.repository), "--inspect") as process:
            digests: dict[str, str] = list(process.events())[-1]["digests"]
            return digests

    def _start(self, *arguments: str) -> TrainingProcess:
        length = ("--steps", str(self.plan.steps), "--every", str(self.plan.every))
        return TrainingProcess(*arguments, *length, errors=self._errors)

    def _on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.repository.rglob("*") if path.is_file())

    def _tell_commit_killed(self, pid: int, step: int, delay: float, usual: float) -> None:
        written = self._on_disk() - self._bytes_before
        self._teller.killed(f"to process {pid}, {delay * 1000:.0f} ms into its commit of step {step}.")
        self._teller.say(
            f"A commit takes about {usual * 1000:.0f} ms. Of this one, {size(written)} had reached the files."
        )

    def _tell_start(self, pid: int, step: int) -> None:
        """Say where a process begins, and what became of the one before it."""
        killed, self._killed = self._killed, None
        if killed is None:
            self._teller.say(f"Process {pid} starts at step {step}: {self.run.weights:,} weights, AdamW, dropout.")
            return
        self.lost.append(killed.at - step)
        if killed.committing is not None:
            self._teller.say(fate_of_commit(killed, step))
        again = f"{self.lost[-1]} step{'' if self.lost[-1] == 1 else 's'} to compute again"
        self._teller.say(f"Process {pid} goes on from the commit of step {step}: {again}.")


def fate_of_commit(killed: Kill, found: int) -> str:
    """Say what became of a commit whose process was killed, given the step that the next process found."""
    if killed.too_late:
        return "That commit had ended before the signal came, so the next one is tried."
    if found == killed.committing:
        return "Its last write had made it durable; only the process did not live to say so. It counts, whole."
    return "The unfinished commit does not exist: the chain ends in the one before it, whole."
