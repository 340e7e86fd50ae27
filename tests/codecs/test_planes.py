import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs.planes import WORD_TYPES, Fields, Joiner, Scratch, aligned, rotate_left, rotate_right, words_of

WIDTHS = st.sampled_from(range(1, 17))


@st.composite
def words(draw):
    width = draw(WIDTHS)
    return width, draw(st.integers(1, 40).flatmap(lambda n: st.binary(min_size=n * width, max_size=n * width)))


@given(words(), st.booleans(), st.integers(1, 50))
def test_planes_split_and_joined_again_are_the_words(case, rotated, most):
    width, data = case
    rotated = rotated and width in (2, 4, 8)
    count = len(data) // width
    fields = Fields(words_of(memoryview(data), width, count), rotated, Scratch())
    back = bytearray(len(data))
    planes = np.empty((width, count), np.uint8)
    for offset in range(width):
        fields.read(offset, planes[offset])
    joiner = Joiner(list(enumerate(planes)), width, rotated, most, Scratch())
    for start in range(0, count, most):
        joiner.join(start, words_of(memoryview(back), width, count)[start : start + most])
    assert back == data


@pytest.mark.parametrize(
    ("width", "cuts"), [(4, (2, 1, 1)), (8, (4, 2, 1, 1)), (8, (2, 2, 1, 1, 1, 1)), (4, (1, 1, 2))]
)
def test_wide_fields_hold_the_same_bytes_as_the_planes_they_stand_for(width, cuts):
    data = np.random.default_rng(width).bytes(width * 100)
    back = bytearray(len(data))
    fields = Fields(words_of(memoryview(data), width, 100), True, Scratch())
    joined: list[tuple[int, np.ndarray]] = []
    offset = 0
    for step in cuts:
        joined.append((offset, np.empty(100, WORD_TYPES[step])))
        fields.read(*joined[-1])
        offset += step
    Joiner(joined, width, True, 100, Scratch()).join(0, words_of(memoryview(back), width, 100))
    assert back == data


def test_the_top_plane_of_a_rotated_float_is_its_exponent():
    numbers = np.array([1.0, -1.0, 1.5, -2.0, 0.25], np.float32)
    plane = np.empty(5, np.uint8)
    Fields(words_of(memoryview(numbers).cast("B"), 4, 5), True, Scratch()).read(3, plane)
    assert plane.tolist() == [127, 127, 127, 128, 125]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_rotating_right_undoes_rotating_left_in_place(width):
    start = np.frombuffer(np.random.default_rng(1).bytes(64 * width), WORD_TYPES[width])
    work, spare = start.copy(), np.empty_like(start)
    rotate_left(work, work, spare)
    assert work[0] == (int(start[0]) << 1 | int(start[0]) >> 8 * width - 1) % (1 << 8 * width)
    rotate_right(work, work, spare)
    assert (work == start).all()


def test_words_at_an_odd_address_are_copied_to_a_good_one_and_others_are_not():
    memory = memoryview(np.random.default_rng(2).bytes(65))
    odd = words_of(memory[1:], 8, 8) if words_of(memory, 8, 8).flags.aligned else words_of(memory, 8, 8)
    copy = aligned(odd, Scratch(), "x")
    assert copy.flags.aligned and copy.tobytes() == odd.tobytes()
    assert aligned(copy, Scratch(), "x") is copy


def test_scratch_is_reused_and_grows_to_the_largest_request():
    scratch = Scratch()
    large = scratch.take("x", 1000, 4)
    assert np.shares_memory(scratch.take("x", 10, 8), large)
    assert scratch.nbytes == 4000
    scratch.take("x", 1001, 4)
    assert scratch.nbytes == 4004
