"""How the demo looks: sentences for a person, colour and a moving bar only where somebody watches a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from chainstore.demo.children import Event

LINES_PER_RUN = 6  # where there is no terminal: about so many lines of progress for a whole run
BARS = "▁▂▃▄▅▆▇█"
INDENT = "   "


@dataclass
class Run:
    """What is known of a run from what its processes said.

    Attributes:
        losses: by step; a step that was lost and computed again is written over.
        committing: the step whose commit is under way, None if none is.
        commit_seconds: how long each commit took, seen from the training.
    """

    steps: int
    step: int = 0
    committed_step: int = 0
    commit_id: str = ""
    committing: int | None = None
    weights: int = 0
    commit_seconds: list[float] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take note of one event."""
        self.committing = event["step"] if event["event"] == "committing" else None
        match event:
            case {"event": "started", "step": int(step), "weights": int(weights)}:
                self.step, self.weights = step, weights
            case {"event": "step", "step": int(step), "loss": float(loss)}:
                self.step, self.losses[step] = step, loss
            case {"event": "committed", "step": int(step), "id": str(name), "seconds": float(seconds)}:
                self.committed_step, self.commit_id = step, name
                self.commit_seconds.append(seconds)

    def curve(self) -> list[float]:
        """Return the losses in the order of their steps."""
        return [self.losses[step] for step in sorted(self.losses)]

    def line(self) -> str:
        """Return how far the run is, in one line."""
        loss = f"loss {self.losses[self.step]:.2f}" if self.step in self.losses else "starting"
        commit = f"   last commit {self.commit_id} (step {self.committed_step})" if self.commit_id else ""
        return f"step {self.step:>3}/{self.steps}   {loss}{commit}"


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """Draw `values` as a line of `width` block characters, the smallest lowest."""
    width = min(width, len(values))
    picked = [values[place * len(values) // width] for place in range(width)]
    low, high = min(picked), max(picked)
    return "".join(BARS[round((value - low) / (high - low or 1.0) * (len(BARS) - 1))] for value in picked)


def size(count: float) -> str:
    """Return a number of bytes in decimal units, as disks are sold: 9.98 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def cell_width(cell: str) -> int:
    """Return how many columns a cell with markup takes."""
    return Text.from_markup(cell).cell_len


class Teller:
    """Prints the story; every method is one kind of thing said."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def title(self, text: str) -> None:
        self._print(f"[bold]{text}[/]")

    def chapter(self, number: int, text: str) -> None:
        self._print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")

    def say(self, *lines: str) -> None:
        """Print sentences, one a line; a line is never broken, so that a path in it can be copied."""
        for line in lines:
            self._print(f"{INDENT}{line}" if line else "")

    def killed(self, text: str) -> None:
        self.say(f"[bold red]SIGKILL[/]  {text}")

    def verdict(self, good: bool, text: str) -> None:
        self._print(f"\n[bold {'green' if good else 'red'}]{text}[/]")

    def table(self, rows: Iterable[Sequence[str]]) -> None:
        """Print rows of cells, each column as wide as its widest cell."""
        rows = list(rows)
        widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell + " " * (width - cell_width(cell)) for cell, width in zip(row, widths, strict=True)]
            self.say("  ".join(cells).rstrip())

    def code(self, source: str) -> None:
        for line in source.splitlines():
            self.say(f"[cyan]{escape(line)}[/]")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    @contextmanager
    def watching(self, run: Run) -> Iterator["Watching"]:
        """Show how a run moves while the context is open."""
        columns = (TextColumn(INDENT[1:]), BarColumn(20), TextColumn("{task.description}"))
        quiet = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=quiet) as progress:
            yield Watching(self, progress, progress.add_task(run.line(), total=run.steps), run)


class Watching:
    """A moving bar on a terminal, a line now and then elsewhere."""

    def __init__(self, teller: Teller, progress: Progress, task: TaskID, run: Run) -> None:
        self._teller, self._progress, self._task, self._run = teller, progress, task, run

    def hear(self, event: Event) -> None:
        """Take note of one event and show it."""
        self._run.hear(event)
        self._progress.update(self._task, completed=self._run.step, description=self._run.line())
        due = self._run.step % max(self._run.steps // LINES_PER_RUN, 1) == 0
        if due and event["event"] == "step" and not self._progress.console.is_terminal:
            self._teller.say(self._run.line())

    def hear_all(self, events: Iterable[Event]) -> Event:
        """Take note of all `events` and return the last; {} if there is none."""
        last: Event = {}
        for event in events:
            self.hear(last := event)
        return last
