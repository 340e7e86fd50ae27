from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs.base import EFFORTS, NO_HINT
from chainstore.codecs.plane_codec import make
from chainstore.codecs.positions import gaps_of, gather, indices_of, most_gap_bytes, scatter
from chainstore.codecs.rice import MOST_K, best_k, bits_of, gaps_in, nbytes_of
from chainstore.codecs.streams import BITS, GAPS, MASK
from chainstore.errors import Malformed
from chainstore.model.spec import Spec

MASKS = st.lists(st.integers(0, 700), min_size=1, max_size=40).map(
    lambda gaps: np.isin(np.arange(sum(gaps) + len(gaps) + 3), np.cumsum(np.array(gaps) + 1) - 1)
)


SMALL, SPEC = make(EFFORTS["small"]), Spec("uint16", (1,))


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


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=60), st.integers(0, MOST_K))
def test_gaps_as_bits_come_back(values, k):
    gaps = np.array(values, np.int64)
    low, above = bits_of(gaps, k)
    assert low.size + above.size == nbytes_of(gaps, k) and 0 <= best_k(gaps) <= MOST_K
    assert gaps_in(low, above, gaps.size, k).tolist() == values
    with pytest.raises(Malformed, match="instead of"):
        gaps_in(low, above[:-1], gaps.size, k)


def payload_of(chosen):
    """Return some words, not zero where chosen, and how they are coded."""
    words = (chosen * np.random.default_rng(1).integers(1, 3, chosen.size)).astype(np.uint16)
    out = memoryview(bytearray(words.nbytes))
    return words.tobytes(), bytes(out[: SMALL.encode(words.data.cast("B"), SPEC, (), NO_HINT, out)])


def read(payload, length):
    out = bytearray(length)
    SMALL.decode(memoryview(payload), None, (), memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("share", [0.002, 0.01, 0.03, 0.1])
def test_items_that_are_anywhere_take_little_more_than_their_entropy(share):
    data, payload = payload_of(np.random.default_rng(7).random(1 << 17) < share)
    assert payload[1] == BITS and read(payload, len(data)) == data
    count, values = int.from_bytes(payload[2:6], "little"), np.frombuffer(data, np.uint16)
    low = (count * payload[6] + 7) // 8 + int.from_bytes(payload[7:11], "little")
    share = np.count_nonzero(values) / values.size
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) * values.size / 8
    assert low < 1.02 * entropy + 4


def test_items_in_rows_are_told_in_what_repeats():
    rows = np.random.default_rng(7).random(4096) < 0.01
    data, payload = payload_of(np.repeat(rows, 64))
    assert payload[1] in (MASK, GAPS) and read(payload, len(data)) == data


@given(st.data())
def test_bits_that_were_changed_are_read_or_refused(draw):
    data, payload = payload_of(np.random.default_rng(7).random(1 << 14) < 0.01)
    assert payload[1] == BITS
    changed = bytearray(payload)
    for _ in range(draw.draw(st.integers(1, 3))):
        bit = draw.draw(st.integers(8, 8 * (11 if draw.draw(st.booleans()) else len(payload)) - 1))
        changed[bit // 8] ^= 1 << bit % 8
    with suppress(Malformed):
        assert len(read(changed, len(data))) == len(data)
