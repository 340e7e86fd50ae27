"""The matter of a repository: what is stored, as pure values and their encodings.

Nothing here touches a disk, a clock, the environment, numpy or torch.  The main noun is the *node*, a small tree of
plain items that `wire` turns into bytes and back, always the same bytes for the same node:

    >>> from chainstore.model import wire
    >>> wire.decode(wire.encode([1, "weight", None]))
    [1, 'weight', None]
"""
