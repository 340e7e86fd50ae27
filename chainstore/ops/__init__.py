"""Floor 4: the verbs, each a function over an object database.

manifest = write(batch, leaves, threads=2, observer=silent)      chunks of live leaves, and where they are
fill(db, destinations, threads=2, observer=silent)               and back, verified
"""
