"""The walk and the way back, over states of all kinds."""

import warnings

from hypothesis import HealthCheck, given, settings

from chainstore.testing.tensors import assert_same, round_trip, training_states

warnings.filterwarnings("ignore", category=UserWarning)
SLOW = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@SLOW
@given(training_states())
def test_every_training_state_comes_back_as_it_was(state):
    assert_same(state, round_trip(state, target=24))
