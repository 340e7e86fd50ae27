"""Integrations: the files and frameworks that training state comes from and goes to.

Their noun is the file that somebody else's tool reads or writes:

    state = files.read_torch(Path("model.pt"))
"""
