"""Exit codes: what each means, in the words that every `--help` prints."""

OK, ERROR, USAGE, PARTLY, DAMAGE, ANOMALY = 0, 1, 2, 3, 4, 5
NO_REPOSITORY, LOCKED, KEY, MOVED, STORAGE, INTERRUPTED = 10, 11, 12, 13, 16, 130

MEANINGS = {
    OK: "done",
    ERROR: "an error",
    USAGE: "wrong usage",
    PARTLY: "partly done",
    DAMAGE: "damage found",
    ANOMALY: "anomaly found",
    NO_REPOSITORY: "no repository there",
    LOCKED: "another process holds it",
    KEY: "a key is missing or wrong",
    MOVED: "the branch moved meanwhile",
    STORAGE: "storage is full or fails",
    INTERRUPTED: "interrupted, nothing was changed",
}
ALWAYS = (OK, ERROR, USAGE, INTERRUPTED)
READS = (DAMAGE, NO_REPOSITORY, KEY, STORAGE)  # what a command that opens a repository can end with, besides ALWAYS
WRITES = (*READS, LOCKED, MOVED)
