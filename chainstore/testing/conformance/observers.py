"""What every observer must do; see `observe.Observer`."""

import threading

from chainstore.observe import Event, Notice, Observer, Progress


class ObserverConformance:
    """Tests of one observer: it listens, and whatever it hears, the engine goes on."""

    def make(self) -> Observer:
        """Return a new one."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """Return events as the engine tells them, odd ones included."""
        verbs = ("commit", "checkout", "diff", "verify", "gc", "rebuild-index", "a verb of a later version")
        odd = [
            Progress("commit", 0, 0),
            Progress("commit", 5, 0),
            Progress("gc", 7, 5),
            Progress("verify", 1 << 60, 1 << 62),
        ]
        notices = [Notice("new-branch", "a sentence"), Notice("", ""), Notice("later", "\x1b[1m \u2603 \ud800")]
        return [*(Progress(verb, done, 3, new=done) for verb in verbs for done in range(4)), *odd, *notices]

    def test_it_returns_nothing_and_raises_nothing(self) -> None:
        observer = self.make()
        for event in self.events():
            assert observer(event) is None, event

    def test_it_hears_several_threads(self) -> None:
        observer = self.make()
        failures: list[BaseException] = []

        def tell() -> None:
            try:
                for event in self.events() * 20:
                    observer(event)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=tell) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    def test_verbs_may_be_told_in_any_order_and_begin_anew(self) -> None:
        observer = self.make()
        for event in [*reversed(self.events()), *self.events()]:
            observer(event)
