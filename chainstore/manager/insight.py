"""Insight: what a manager tells of itself, and what it lets itself be told while it runs, tied to its parts."""

from pathlib import Path

from chainstore.manager.course import Course
from chainstore.manager.endings import PREEMPTED, STUCK, ending_of, words_again
from chainstore.manager.exposition import Port, Textfile
from chainstore.manager.following import Following
from chainstore.manager.learning import Learner
from chainstore.manager.options import DEFAULT_INTERVAL
from chainstore.manager.policy import PolicyWatch, Use
from chainstore.manager.resuming import tell
from chainstore.manager.shipping import Shipping
from chainstore.manager.telemetry import Landing, ManagerStats, Telemetry
from chainstore.model.commit import Commit
from chainstore.observe import Observer
from chainstore.policies.interval_texts import parse_interval
from chainstore.policies.texts import parse_retention
from chainstore.repository import Repository


class Insight:
    """Metrics, what is learned of intervals, and policies that change.

    Args:
        in_flight: captures that may be pending.

    Attributes:
        telemetry, learner: for those who report to them.
    """

    def __init__(self, repo: Repository, branch: str, in_flight: int, observer: Observer) -> None:
        self._repo, self._observer = repo, observer
        self.telemetry = Telemetry({"repository": str(repo.path), "branch": branch})
        self.learner = Learner(observer, in_flight)
        self._resumed_before = False
        self._last_words = ""  # of a run that a signal ends
        self._file: Textfile | None = None
        self._port: Port | None = None

    def tie(
        self, course: Course, shipping: Shipping | Following, *, interval_given: bool, retention_given: bool
    ) -> None:
        """Tie it to the parts of a manager, and take up what the repository says where the script says nothing."""
        self._course, self._shipping = course, shipping
        if isinstance(shipping, Shipping):
            shipping.beside.add(course.files)
        uses: dict[str, Use] = {}
        if not interval_given:
            uses["interval"] = lambda text: course.follow(parse_interval(text or DEFAULT_INTERVAL))
        if not retention_given:
            uses["retention"] = lambda text: shipping.keep(parse_retention(text) if text else None)
        self.policy = PolicyWatch(self._repo.settings, uses, self._observer)

    def expose(self, file: Path | None, port: int | None) -> None:
        """Let others read the metrics: in a file, on a port; None for neither."""
        if file is not None:
            self._file = Textfile(file, self.text, self._trouble)
        if port is not None:
            self._port = Port(port, self.text, self._trouble)

    @property
    def port(self) -> int | None:
        """The port on which metrics are served."""
        return self._port.number if self._port is not None else None

    def landed(self, landing: Landing) -> None:
        """Learn from a snapshot that became durable."""
        background = landing.durable_s - landing.stall_s
        self.learner.snapshotted(landing.captured_at, landing.stall_s, background)
        self._course.follow(self._course.trigger)

    def resumed(self, commit: Commit | None) -> None:
        """Take note that the run went on from a commit; it counts what the run before it went through once."""
        ending = None if self._resumed_before else ending_of(self._shipping.before)
        self._resumed_before = True
        self._course.resumed(commit)
        if commit is None:
            return
        self.learner.resumed(commit.meta, ending, self._course.now())
        restarts = self.learner.known.restarts - 1 if ending is not None else 0
        self.telemetry.resumed(commit.meta, commit.time, commit.step, str(commit.id), ending, restarts)
        self._course.follow(self._course.trigger)

    def ends(self, *, saved: bool) -> None:
        """Leave word of a signal that is about to end the run, after a last snapshot or without one."""
        self._last_words = PREEMPTED if saved else STUCK
        self._shipping.say_ended(self._last_words)

    def goes_on(self) -> None:
        """Take it back, if anything was said: the signal did not end the run."""
        if self._last_words:
            self._last_words = ""
            self._shipping.say_ended("")

    def flush_late(self, seconds: float) -> None:
        """Make durable what was captured before a signal whose step did not come."""
        try:
            self._shipping.flush(seconds)
        finally:
            self.ends(saved=False)

    def leave(self, words: str) -> None:
        """Leave word of how the run ended, or what was there where this manager did nothing."""
        words = self._last_words or words
        took_part = self._resumed_before or self._shipping.tally.captured
        self._shipping.say_ended(words if took_part else words_again(self._shipping.before))

    def meta(self) -> dict[str, object]:
        """Return what a commit says of it."""
        return {**self.learner.meta(self._course.trigger), **self.telemetry.meta()}

    def text(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return self.telemetry.text(self.learner.known.optimal_s)

    def stats(self) -> ManagerStats:
        """Return everything as of now."""
        return self.telemetry.stats(self._shipping.branch, self._shipping.pending, self.learner.known.optimal_s)

    def close(self) -> None:
        """Tell the last word, and end."""
        for open_one in (self._port, self._file):
            if open_one is not None:
                open_one.close()

    def _trouble(self, text: str) -> None:
        tell(self._observer, "metrics-not-shown", f"{text}; training goes on without")
