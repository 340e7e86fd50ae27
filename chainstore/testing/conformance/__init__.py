"""Conformance: what everything that is put in at a seam must do, as tests to inherit.

A suite is a class whose methods are tests; pytest collects them in a subclass whose name begins with `Test`, which
makes what is tested:

    from chainstore.testing.conformance import CodecConformance

    class TestMyCodec(CodecConformance):
        def make(self):
            return MyCodec()
"""

from chainstore.testing.conformance.adapters import AdapterConformance
from chainstore.testing.conformance.codecs import CodecConformance
from chainstore.testing.conformance.databases import DatabaseConformance
from chainstore.testing.conformance.keys import KeyProviderConformance
from chainstore.testing.conformance.observers import ObserverConformance
from chainstore.testing.conformance.retentions import RetentionConformance
from chainstore.testing.conformance.triggers import TriggerConformance

__all__ = [
    "AdapterConformance",
    "CodecConformance",
    "DatabaseConformance",
    "KeyProviderConformance",
    "ObserverConformance",
    "RetentionConformance",
    "TriggerConformance",
]
