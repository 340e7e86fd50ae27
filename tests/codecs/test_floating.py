import threading

import numpy as np
import pytest
import torch

from chainstore.codecs.floating import same_everywhere

TINY = np.array([1e-40], np.float32)  # a denormal


def kept() -> bool:
    """Tell whether this thread computes with denormals."""
    return (TINY * np.float32(1)).tobytes() == TINY.tobytes()


@pytest.fixture
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


def test_denormals_count_inside_and_the_thread_gets_its_mode_back(flushing):
    assert not kept()
    with same_everywhere():
        assert kept()
        with same_everywhere():
            assert kept()
        assert kept()
    assert not kept()


def test_the_mode_comes_back_after_an_error(flushing):
    with pytest.raises(KeyError), same_everywhere():
        raise KeyError
    assert not kept()


def test_threads_that_inherit_another_mode_compute_alike(flushing):
    seen = []

    def run():
        seen.append(kept())
        with same_everywhere():
            seen.append(kept())
        seen.append(kept())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False, True, False]


def test_what_is_not_a_number_is_not_spoken_of(recwarn):
    with same_everywhere():
        assert np.isnan(np.sqrt(np.float32(-1))) and np.isinf(np.float32(1) / np.float32(0))
    with pytest.warns(RuntimeWarning):
        np.sqrt(np.float32(-1))
