"""The disk's shore: bytes in files, nothing typed.

`fs` is all our file I/O, `index` the LMDB environment in which everything is looked up, `pack` the files of
records, `log` the commit log.  What stands here knows no object, no key and no codec; the floor above does.

    index = Index.open(repository / "index")
    with index.read() as reader:
        row = reader.get("refs", key)
"""
