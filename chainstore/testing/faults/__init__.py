"""Faults: a disk that forgets, for tests of whatever stores something through chainstore.

recorder    writes down every operation that changes a directory tree, with its data
disk        what programs see of those operations, and what a power cut would leave of them
crashes     the states that a power cut after any operation can leave
ground      puts one such state after the other on a real file system, quickly

recorder = Recorder(path)
with recorder.installed():
    repo.commit(state)
for crash in crashes(recorder.start, recorder.operations, random.Random(seed)):
    ground.put(crash.tree)              # then open the repository and look
"""
