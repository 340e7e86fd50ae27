"""What tests need, ours and those of people who build on chainstore: strategies, comparisons, conformance suites.

Nothing of the engine imports this package.  The main noun is the *strategy*, a Hypothesis description of all values
of a kind:

    from hypothesis import given
    from chainstore.testing.strategies import plain_values

    @given(plain_values())
    def test_my_codec_gives_back_every_value(value): ...
"""
