"""What must survive, shown: kills, failing disks, flipped bits, races.

Processes are forked from the test's own, so a trial costs milliseconds; every failure says how to replay it.
"""
