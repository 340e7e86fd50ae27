"""Command lines that work: of every command some, for tests that look at all commands.

They run in the folder that `repo` in conftest.py makes, after `lay_out`, in the order in which they stand.
"""

from pathlib import Path

import numpy as np

EVERY: dict[str, list[list[str]]] = {
    "init": [["init", "other"], ["init", "plain", "--no-encrypt"]],
    "demo": [],  # takes half a minute
    "doctor": [["doctor"]],
    "completion": [["completion", shell] for shell in ("bash", "zsh", "fish")],
    "commit": [["commit", "w.npy", "-m", "more", "--metric", "loss=nan"], ["commit", "--as-file", "notes.txt"]],
    "import": [["import", "w.npy", "--dry-run"], ["import", "w.npy"], ["import", "w.npy"]],
    "estimate": [["estimate", "w.npy", "-q"]],
    "status": [["status"]],
    "log": [["log"], ["log", "--all", "--graph", "--stat"], ["log", "--oneline", "-n", "1"], ["log", "--step", "7"]],
    "show": [["show"], ["show", "main", "w"], ["show", "main", "cfg"], ["show", "main~1", "part"]],
    "ls": [["ls"], ["ls", "main", "cfg"], ["ls", "main", "*.txt"]],
    "cat": [["cat", "main", word] for word in ("w", "cfg", "notes.txt", "blob", "odd")],
    "diff": [["diff", "main~1"], ["diff", "main~2", "main", "--unchanged"]],
    "stats": [["stats"], ["stats", "--plot"], ["stats", "--reclaimable"]],
    "du": [["du"], ["du", "main", "-n", "3"], ["du", "--branches"], ["du", "--reclaimable"]],
    "branch": [["branch"], ["branch", "late", "main~1"], ["branch", "-d", "late"]],
    "tag": [["tag"], ["tag", "good", "main~1"], ["tag", "-d", "good"]],
    "switch": [["switch", "wider"], ["switch", "-c", "new"]],
    "reset": [["reset", "main~1"]],
    "rollback": [["rollback", "--to", "main~1", "--reason", "a spike"], ["rollback", "--steps", "10", "--reason", "b"]],
    "reflog": [["reflog"], ["checkout", "main~1"], ["reflog", "HEAD"]],
    "merge-base": [["merge-base", "main", "wider"]],
    "checkout": [["checkout", "wider"], ["checkout", "main", "-o", "out", "--format", "dir"], ["checkout", "main~1"]],
    "forget": [
        ["forget", "--keep-last", "2", "--dry-run"],
        ["forget", "--keep-every-steps", "20", "--keep-best", "1", "--metric", "loss", "--store"],
        ["forget"],
        ["log"],
        ["show", "step:10"],
        ["forget", "--undo", "step:10"],
        ["forget", "step:10"],
        ["forget", "--undo"],
    ],
    "gc": [
        ["gc", "--dry-run"],
        ["forget", "--keep-last", "1"],
        ["gc", "--explain"],
        ["gc"],
        ["gc", "--no-forget", "--explain"],
    ],
    "repack": [["repack", "--dry-run"], ["repack"], ["repack"]],
    "verify": [
        ["verify"],
        ["verify", "--quick"],
        ["verify", "--read-data", "--junit", "report.xml"],
        ["verify", "--read-data-subset", "50%", "--seed", "7"],
        ["verify", "--no-key"],
    ],
    "rebuild-index": [["rebuild-index"], ["rebuild-index", "--take-over"], ["rebuild-index", "--index-dir", "there"]],
    "config": [
        ["config", "list", "--show-origin"],
        ["config", "set", "threads", "2"],
        ["config", "get", "threads"],
        ["config", "unset", "threads"],
    ],
    "key": [
        ["key", "list"],
        ["key", "add", "--new-key-file", "team.key", "--label", "team"],
        ["key", "export"],
        ["key", "export", "-o", "copy.key"],
        ["key", "rotate", "--new-key-file", "new.key"],
    ],
    "rekey": [["rekey", "--dry-run"], ["rekey"], ["rekey", "--reencrypt"], ["log"]],
}


def lay_out(folder: Path) -> None:
    """Put the files there that these lines name."""
    np.save(folder / "w.npy", np.arange(6, dtype=np.float32))
    (folder / "notes.txt").write_text("a note\n")
