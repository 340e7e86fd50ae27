"""Floor 3: objects by id, on this machine.

The noun is the *object database*: it keeps sealed records in packs, looks them up in an index, and moves refs in
one step that a crash cannot split.

    batch = db.batch()
    id = batch.append(Kind.CHUNK, data, spec)
    db.publish(batch, [SetRef("heads/main", old, new)])
"""
