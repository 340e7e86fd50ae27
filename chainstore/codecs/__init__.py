"""Codecs turn the bytes of a chunk into fewer bytes and back; nothing here knows of objects, records or disks.

The main noun is the `Codec` (`base`); `chain` decides which ones a chunk goes through and finds the ones a record
names.  `plane_codec` is the one for arrays, `zstd` the one for everything else, `residuals` what a chunk has more than
another one.

    >>> from chainstore.codecs.chain import Decoder, Encoder
    >>> tags, payload, _ = Encoder("auto").encode(memoryview(b"again and again " * 9), None)
    >>> plain = bytearray(144)
    >>> Decoder().decode(tags, payload, memoryview(plain))
    >>> bytes(plain) == b"again and again " * 9
    True
"""
