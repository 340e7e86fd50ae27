import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs.positions import gaps_of, gather, indices_of, most_gap_bytes, scatter

MASKS = st.lists(st.integers(0, 700), min_size=1, max_size=40).map(
    lambda gaps: np.isin(np.arange(sum(gaps) + len(gaps) + 3), np.cumsum(np.array(gaps) + 1) - 1)
)


@given(MASKS)
def test_gaps_lead_back_to_the_same_items(mask):
    gaps = gaps_of(mask)
    assert indices_of(gaps).tolist() == np.flatnonzero(mask).tolist()
    assert len(gaps) <= most_gap_bytes(len(mask), int(mask.sum()))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.08, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 1000, (1 << 16) + 1, 3 << 16])
def test_gathered_words_scattered_again_stand_where_they_were(share, size):
    random = np.random.default_rng(size)
    words, mask = random.integers(0, 1 << 32, size, np.uint32), random.random(size) < share
    kept = np.empty(int(mask.sum()), np.uint32)
    gather(words, mask, kept)
    assert (kept == words[mask]).all()
    for where in (mask, np.flatnonzero(mask)):
        back = np.zeros(size, np.uint32)
        scatter(kept, where, back)
        assert (back == words * mask).all()
