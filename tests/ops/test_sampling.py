"""Samples: which part of the data is read, told and repeatable, and in the end everything."""

from itertools import pairwise
from random import Random

import pytest

from chainstore.errors import InvalidInput
from chainstore.ids import ObjectId
from chainstore.ops.sampling import Amount, Part, Share
from chainstore.repository.proving import parse_sample


def objects(number: int, nbytes: int = 1000) -> dict[ObjectId, int]:
    source = Random(number)
    return {ObjectId(source.randbytes(32)): nbytes for _ in range(number)}


def test_seven_parts_are_everything_and_no_object_twice():
    every = objects(5000)
    parts = [Part(number, 7).pick(every) for number in range(1, 8)]
    assert sorted(id for part in parts for id in part) == sorted(every)
    assert all(500 < len(part) < 1000 for part in parts)
    assert all(max(a) < min(b) for a, b in pairwise(parts))


def test_a_part_of_one_is_everything():
    every = objects(100)
    assert Part(1, 1).pick(every) == list(every)


def test_a_share_is_drawn_by_its_seed():
    every = objects(10_000)
    one, again, other = (parse_sample("5%", seed).pick(every) for seed in (1, 1, 2))
    assert one == again and one != other
    assert 400 < len(one) < 600
    assert parse_sample("100%", 3).pick(every) == list(every)


def test_a_share_does_not_depend_on_what_else_is_stored():
    every = objects(1000)
    half = dict(list(every.items())[:500])
    assert parse_sample("20%", 9).pick(half) == [id for id in parse_sample("20%", 9).pick(every) if id in half]


def test_an_amount_is_drawn_until_it_is_reached():
    every = objects(1000, nbytes=1000)
    picked = parse_sample("10k", 5).pick(every)
    assert len(picked) == 11 and picked == parse_sample("10k", 5).pick(every)
    assert len(parse_sample("1", 5).pick(every)) == 1
    assert set(parse_sample("1G", 5).pick(every)) == set(every)


def test_a_seed_that_was_not_given_is_drawn_and_told():
    seeds = {parse_sample("5%", None).seed for _ in range(20)}
    assert None not in seeds and len(seeds) > 10
    assert parse_sample("1/7", None).seed is None


def test_what_a_text_means_is_told_again():
    assert isinstance(parse_sample(" 12.5 % ", 1), Share) and parse_sample(" 12.5 % ", 1).text == "12.5 %"
    assert parse_sample("2 / 7", 1) == Part(2, 7) and Part(2, 7).text == "2/7"
    assert parse_sample("10G", 1) == Amount(10 << 30, "10G", 1)
    assert parse_sample("1.5GB", 1) == Amount(1_500_000_000, "1.5GB", 1)


@pytest.mark.parametrize(
    "text", ["", "0%", "101%", "0/7", "8/7", "1/0", "-5%", "five", "1/7/9", "0", "0G", "1/", "%", "nan%", "5 %%", "10X"]
)
def test_what_names_no_part_is_refused_by_name(text: str):
    with pytest.raises(InvalidInput) as caught:
        parse_sample(text, 1)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_out_of_range_is_refused(seed: int):
    with pytest.raises(InvalidInput, match=str(seed)):
        parse_sample("5%", seed)
