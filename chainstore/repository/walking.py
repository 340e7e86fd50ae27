"""Walking: the leaves of the state that a commit is given, at a fraction of a walk where its form is the last one's."""

from collections.abc import Sequence

from chainstore.ops.form import Form
from chainstore.state import Trace, flatten
from chainstore.state.leaf import Leaf
from chainstore.state.walked import Retraced, Walked


class Walks:
    """What the last commit of a process knew of the form of its state; nothing of the state itself."""

    def __init__(self) -> None:
        self._last: tuple[Trace, Walked] | None = None
        self._form: Form | None = None

    def leaves(self, state: object) -> Sequence[Leaf]:
        """Return the leaves of a state, as `flatten` does.

        Raises:
            UnsupportedState: some values cannot be stored.
        """
        if self._last is not None:
            trace, walked = self._last
            retraced = trace.retrace(state, walked)
            if retraced is not None:
                return retraced
        leaves = flatten(state)
        trace_of_it = Trace.of(state, leaves)
        self._last = (trace_of_it, Walked(leaves)) if trace_of_it is not None else None
        return leaves

    def form(self, leaves: Sequence[Leaf]) -> Form:
        """Return the form of leaves, the last one if it is theirs; only for whoever has the turn at committing."""
        walked = leaves.walked if isinstance(leaves, Retraced) else Walked(leaves)
        if self._form is None or not self._form.walked.fits(walked):
            self._form = Form(walked)
        return self._form
