"""What the workloads of simulated power cuts are made of: steps, and what each does to what users see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from chainstore.crypto.keys import KeyFile
from chainstore.policies.retention import Retention
from chainstore.repository import Repository

LAST = 99  # the number of the commit that is made after a recovery
OLD_KEY, NEW_KEY = "old", "new"

Keys = Mapping[str, KeyFile]


def state(number: int) -> dict[str, object]:
    """Return the state of commit `number`: chunks that only packs hold, one of them the same in all; small values."""
    source = np.random.default_rng(number)
    return {
        "weights": source.standard_normal(1500, dtype=np.float32),
        "frozen": np.random.default_rng(0).standard_normal(1200, dtype=np.float32),
        "moments": {"exp_avg": source.standard_normal(20), "step": number},
    }


@dataclass(frozen=True)
class Seen:
    """A repository as its users see it: numbers of commits, oldest first, by branch; one number by tag.

    Attributes:
        forgotten: numbers whose snapshots are refused.  key: which key opens it.
    """

    branches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    forgotten: frozenset[int] = frozenset()
    key: str = OLD_KEY

    def with_commit(self, number: int) -> "Seen":
        return replace(self, branches={**self.branches, "main": (*self.branches["main"], number)})

    def without_old(self) -> "Seen":
        """Return it after `forget(last=1)`: only tips and tags are left."""
        every = {number for chain in self.branches.values() for number in chain}
        kept = {chain[-1] for chain in self.branches.values()} | set(self.tags.values())
        return replace(self, forgotten=self.forgotten | (every - kept))


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a workload does, and what it does to what users see.

    Attributes:
        number: of the commit, or in the name of the branch or tag.
    """

    do: Callable[[Repository, int, Keys], object]
    then: Callable[[Seen, int], Seen]
    encrypted_only: bool = False


STEPS: dict[str, Step] = {
    "commit": Step(lambda repo, n, _: repo.commit(state(n), str(n), step=n), Seen.with_commit),
    "branch": Step(
        lambda repo, n, _: repo.branch(f"b{n}", "main"),
        lambda seen, n: replace(seen, branches={**seen.branches, f"b{n}": seen.branches["main"]}),
    ),
    "tag": Step(
        lambda repo, n, _: repo.tag(f"t{n}", "main"),
        lambda seen, n: replace(seen, tags={**seen.tags, f"t{n}": seen.branches["main"][-1]}),
    ),
    "rotate": Step(
        lambda repo, n, keys: repo.rotate_key(keys[NEW_KEY]),
        lambda seen, n: replace(seen, key=NEW_KEY),
        encrypted_only=True,
    ),
}
if hasattr(Repository, "forget"):
    STEPS["forget"] = Step(lambda repo, n, _: repo.forget(Retention(last=1)), lambda seen, n: seen.without_old())
if hasattr(Repository, "gc"):
    STEPS["gc"] = Step(lambda repo, n, _: repo.gc(), lambda seen, n: seen)
if hasattr(Repository, "rekey"):
    STEPS["rekey"] = Step(lambda repo, n, _: repo.rekey(reencrypt=True), lambda seen, n: seen, encrypted_only=True)
