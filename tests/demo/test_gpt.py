"""The loader of the demo goes on where it stood."""

from itertools import islice

import pytest
import torch

from chainstore.demo.gpt import BATCH, GPT, HelpPages, ShuffledBatches

WINDOWS = torch.arange(BATCH * 5 + 3).reshape(-1, 1)


def taken(batches, count):
    return [batch.tolist() for batch in islice(iter(batches), count)]


@pytest.mark.parametrize("before", [0, 1, 4, 5, 6, 12])
def test_a_loader_goes_on_with_the_batches_that_would_have_come(before):
    whole = taken(ShuffledBatches(WINDOWS, seed=3), before + 7)
    first = ShuffledBatches(WINDOWS, seed=3)
    taken(first, before)
    second = ShuffledBatches(WINDOWS, seed=99)
    second.load_state_dict(first.state_dict())
    assert taken(second, 7) == whole[before:]


def test_every_epoch_has_another_order():
    batches = taken(ShuffledBatches(WINDOWS, seed=3), 10)
    assert batches[:5] != batches[5:]


def test_the_text_needs_no_download_and_the_model_reads_it():
    pages = HelpPages()
    torch.manual_seed(0)
    model = GPT(pages.characters, width=16, layers=1)
    loss = model(pages.windows[:2, :-1], pages.windows[:2, 1:])
    assert 3.0 < loss.item() < 6.0
