"""Names of refs: git's rules, and what would mean something else."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidRefName
from chainstore.refs import branch_ref, check_name, nearest_names, short_name, tag_ref

GOOD = [
    "main",
    "feature/lr-3e-4",
    "run_7",
    "v1.0",
    "日本",
    "a",
    "abcdef",
    "123456",
    "heads/x",
    "step-5",
    "no.lock.here",
]
BAD = [
    "", "@", "HEAD", "latest", "abcdef1", "0123456789abcdef", "ABCDEF12", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*",
    "a[", "a\\b", "a@{1}", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b", "-a", "a\0", "a\n", "a\x7f",
    "x" * 256, "é" * 128, "\ud800", "a/\udfff", None, 5, b"main",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_taken_as_it_is(name):
    assert check_name(name) == name
    assert short_name(branch_ref(name)) == short_name(tag_ref(name)) == name


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_a_bad_name_is_refused_with_the_reason(name):
    with pytest.raises(InvalidRefName):
        branch_ref(name)
    with pytest.raises(InvalidRefName):
        tag_ref(name)


@given(st.text() | st.text("ab/.@{-~lock", max_size=12))
def test_any_text_is_refused_or_can_be_stored_and_shown_again(name):
    with suppress(InvalidRefName):
        assert short_name(branch_ref(name)) == name
        assert len(branch_ref(name).encode()) <= 261
        assert not set(name) & set(" ~^:?*[\\\0\n")


@pytest.mark.parametrize("name", ["tags/x", "heads/x", "heads/tags/x"])
def test_a_branch_named_like_a_folder_of_refs_keeps_its_name(name):
    assert short_name(branch_ref(name)) == name
    assert short_name("HEAD") == "HEAD"


def test_the_nearest_names_come_best_first():
    assert nearest_names("trial_1", ["trial_22", "main", "trial_11"]) == ["trial_11", "trial_22"]
    assert nearest_names("zzz", ["main"]) == []
