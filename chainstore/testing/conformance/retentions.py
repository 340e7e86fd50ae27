"""What every retention policy must do; see `policies.retention`."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Protocol

from chainstore.ids import ObjectId
from chainstore.policies.retention import Candidate

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Policy(Protocol):
    """Says which snapshots stay, and why; `Retention` is one."""

    def reasons(
        self,
        commits: Iterable[Candidate],
        now: datetime,
        *,
        tags: Mapping[str, ObjectId] | None = None,
        branches: Mapping[str, Collection[ObjectId]] | None = None,
    ) -> Mapping[ObjectId, tuple[str, ...]]: ...


@dataclass(frozen=True)
class Snapshot:
    """A commit, as far as policies look at it."""

    id: ObjectId
    time: datetime
    step: int | None
    metrics: Mapping[str, float] = field(default_factory=dict)


class RetentionConformance:
    """Tests of one policy."""

    def make(self) -> Policy:
        """Return it."""
        raise NotImplementedError

    def commits(self) -> list[Snapshot]:
        """Return a chain to try it on: 60 commits over weeks, with and without steps and metrics, some at one time."""
        random = Random(1)
        made = []
        for number in range(60):
            metrics = {"loss": random.choice([random.random(), float("nan"), 0.5])} if number % 3 else {}
            time = NOW - timedelta(hours=16 * (60 - number // 2 * 2))
            made.append(Snapshot(ObjectId(random.randbytes(32)), time, number * 50 if number % 7 else None, metrics))
        return made

    def test_it_says_why_for_what_it_keeps_and_names_nothing_else(self) -> None:
        commits = self.commits()
        kept = self.make().reasons(commits, NOW)
        assert set(kept) <= {commit.id for commit in commits}
        for reasons in kept.values():
            assert reasons and all(isinstance(reason, str) and reason for reason in reasons)

    def test_it_decides_the_same_every_time_and_changes_nothing(self) -> None:
        policy, commits = self.make(), self.commits()
        before = list(commits)
        first = dict(policy.reasons(commits, NOW))
        assert dict(policy.reasons(iter(commits), NOW)) == first == dict(self.make().reasons(commits, NOW))
        assert commits == before

    def test_the_order_in_which_commits_come_does_not_matter(self) -> None:
        commits = {commit.time: commit for commit in self.commits()}  # of equal times the first counts as the newer
        mixed = list(commits.values())
        expected = dict(self.make().reasons(mixed, NOW))
        for seed in range(5):
            Random(seed).shuffle(mixed)
            assert dict(self.make().reasons(mixed, NOW)) == expected

    def test_of_nothing_it_keeps_nothing(self) -> None:
        assert not self.make().reasons([], NOW)

    def test_one_commit_alone_is_decided_on(self) -> None:
        (commit, *_) = self.commits()
        assert set(self.make().reasons([commit], NOW)) <= {commit.id}

    def test_what_was_kept_is_decided_on_again(self) -> None:
        """Forgetting by a policy and then by the same again: nothing fails, and nothing comes back."""
        policy, commits = self.make(), self.commits()
        kept = policy.reasons(commits, NOW)
        left = [commit for commit in commits if commit.id in kept]
        assert set(policy.reasons(left, NOW)) <= set(kept)

    def test_branches_and_tags_may_be_given(self) -> None:
        commits = self.commits()
        half = [commit.id for commit in commits[:30]]
        branches = {"main": [commit.id for commit in commits], "side": half}
        kept = self.make().reasons(commits, NOW, tags={"v1": commits[3].id}, branches=branches)
        assert set(kept) <= {commit.id for commit in commits}
