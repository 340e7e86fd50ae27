"""The manager: snapshots while training goes on.

    with SnapshotManager("runs/gpt", interval=100, max_snapshots=20) as manager:
        start = manager.resume(model, optimizer)              # 0 on a fresh run
        for step in range(start, total):
            loss = train_step()
            manager.step(step + 1, model, optimizer, metrics={"loss": loss})

What is where:

    manager     `SnapshotManager`: every method a trainer can call
    gathering   what a snapshot holds: objects, random numbers, metadata of the run
    beside      files that go with the state
    worktree    the code of the run, as git knows it
    loaders     the place in the data; `feeding` and `draws` watch a DataLoader for it
    resuming    the newest snapshot that reads, and runs that forgot to load
    interrupts  signals: a snapshot before the process goes
    capture     a copy of the state in host buffers: the only time training waits
    memory      those buffers
    direct      snapshots without a copy, where there is no memory for one
    stepping    optimizers of other threads, which wait for a capture
    writers     who makes captures durable: this process, a thread of it, or another
    worker      that other process
    messages    what the two say to each other

`SnapshotManager` is not imported here: the writer process imports this package, and must not load torch.
"""
