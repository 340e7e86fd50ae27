"""The face: one repository, as its users see it.

    repo = open("runs/gpt", create=True)
    commit = repo.commit(state, "message", step=1200, metrics={"loss": 1.84})      # durable when it returns
    state = repo.checkout("main~2")                                                # bit for bit
    for commit in repo.log(): ...

What is where:

    face        `Repository`: every method a user can call, and what it promises
    opening     `init`, `open`, `rebuild`, `locate`: from a path to a repository
    recording   from what a commit is asked to be to a published commit
    writer      `Writer`: a commit built piece by piece
    refs        branches, tags and HEAD, moved
    comparing   two snapshots side by side
    collecting  garbage taken away
    rekeying    new keys, and everything sealed again
    forgetting  snapshots dropped by a policy, and taken back
    proving     verified, with a key or without, and healed from a copy
    upkeep      statistics, and the index made anew
    holding     a branch for one run alone
    handing     what another process goes on with
    handles     what the handles of one process share, and what each holds
    slots       keys that open a repository
    settings    how it was asked to be opened
"""

from chainstore.errors import ForkedHandle, NotFound, RepositoryNotFound
from chainstore.odb.forgotten import when_and_why
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.ops.commit import FileContent
from chainstore.ops.differences import KINDS as ANOMALY_KINDS
from chainstore.ops.differences import ORDER as DIFF_ORDER
from chainstore.ops.differences import Anomaly, Diff, FileDiff, TensorDiff, ValueDiff
from chainstore.ops.forget_plan import ForgetLine, ForgetPlan
from chainstore.ops.gc_report import GcReport, Kept
from chainstore.ops.repack import RepackReport
from chainstore.ops.rollback import Rollback
from chainstore.ops.usage import BranchUsage, KindUsage, PathUsage, Usage
from chainstore.ops.verify_report import CHECKS, COVERED, Damage, DamageGroup, Level, VerifyReport, grouped
from chainstore.repository.face import Repository
from chainstore.repository.handing import Handed, hand_on, take_up
from chainstore.repository.handles import Revision
from chainstore.repository.holding import BranchHold, how_ended
from chainstore.repository.opening import Ground, init, key_kinds, locate, open, rebuild, survey
from chainstore.repository.proving import heal_small_files, verify_without_key
from chainstore.repository.recording import make_note
from chainstore.repository.rekeying import RekeyReport
from chainstore.repository.settings import CHAIN_DIR, Settings
from chainstore.repository.slots import KeySlot
from chainstore.repository.upkeep import RepositoryStats, Status, rebuild_at
from chainstore.repository.writer import Writer
from chainstore.settings import CODECS
from chainstore.state import Content, Leaf, Source, Trace, content_of, flatten, references
from chainstore.state.leaf import BytesSource

__all__ = [
    "ANOMALY_KINDS",
    "CHAIN_DIR",
    "CHECKS",
    "CODECS",
    "COVERED",
    "DIFF_ORDER",
    "Anomaly",
    "BranchHold",
    "BranchUsage",
    "BytesSource",
    "Content",
    "Damage",
    "DamageGroup",
    "Diff",
    "FileContent",
    "FileDiff",
    "ForgetLine",
    "ForgetPlan",
    "ForkedHandle",
    "GcReport",
    "Ground",
    "Handed",
    "Kept",
    "KeySlot",
    "KindUsage",
    "Leaf",
    "Level",
    "NotFound",
    "PathUsage",
    "RebuildReport",
    "RekeyReport",
    "RepackReport",
    "Repository",
    "RepositoryNotFound",
    "RepositoryStats",
    "Revision",
    "Rollback",
    "Settings",
    "Source",
    "Status",
    "TensorDiff",
    "Trace",
    "Usage",
    "ValueDiff",
    "VerifyReport",
    "Writer",
    "content_of",
    "flatten",
    "grouped",
    "hand_on",
    "heal_small_files",
    "how_ended",
    "init",
    "key_kinds",
    "locate",
    "make_note",
    "open",
    "rebuild",
    "rebuild_at",
    "references",
    "survey",
    "take_up",
    "verify_without_key",
    "when_and_why",
]
