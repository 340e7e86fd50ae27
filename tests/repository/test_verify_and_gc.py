"""Verify and repair beside gc: what gc takes is no damage, and what a repair replaced gc takes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chainstore as cs
from tests.repository.conftest import noise, script

COMMITS_AND_COLLECTS = """
with cs.open(root) as repo:
    rng = np.random.default_rng(int(sys.argv[2]))
    print("begun", flush=True)
    for step in range(200):
        repo.commit({"own": rng.integers(0, 256, 50_000, dtype=np.uint8), "shared": np.arange(20_000)}, step=step)
        if step % 4 == 3:
            repo.forget(cs.Retention(last=2))
            repo.gc()
        if Path(sys.argv[3]).exists():
            break
"""


def packs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "packs").rglob("*") if path.is_file())


def test_what_gc_takes_while_it_is_verified_is_no_damage(tmp_path: Path):
    root, stop = tmp_path / "r", tmp_path / "stop"
    seed = int.from_bytes(os.urandom(3))
    with cs.init(root, encrypt=False) as repo:
        repo.commit({"own": noise(1, 100_000)}, "first")
    command = [sys.executable, "-c", script(COMMITS_AND_COLLECTS), str(root), str(seed), str(stop)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "begun\n"
        for number in range(25):
            with cs.open(root, readonly=bool(number % 2)) as repo:
                for level in ("links", "data"):
                    report = repo.verify(level)
                    assert report.ok, (seed, number, level, report.damaged)
                report = repo.verify(no_key=True)
                assert report.ok, (seed, number, report.damaged)
    finally:
        stop.touch()
        _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, (seed, told)


@pytest.mark.parametrize("how", ["bit", "header", "lost", "cut off"])
def test_gc_takes_what_a_repair_replaced_and_nothing_else(tmp_path: Path, how: str):
    root, copy = tmp_path / "r", tmp_path / "copy"
    with cs.init(root) as repo:
        for step in range(6):
            repo.commit({"model": {"own": noise(step, 100_000)}, "n": step}, step=step)
    shutil.copytree(root, copy)
    (pack,) = packs(root)
    data = bytearray(pack.read_bytes())
    if how == "lost":
        pack.unlink()
    elif how == "cut off":
        os.truncate(pack, len(data) // 2)
    else:
        data[1000 if how == "bit" else 3] ^= 1
        pack.write_bytes(data)
    with cs.open(root) as repo:
        assert repo.verify("data", repair_from=copy).ok
        repo.gc()
        assert repo.verify("data").ok and repo.verify(no_key=True).ok
        repo.forget(cs.Retention(last=2))
        repo.gc()
        assert repo.verify("data").ok and repo.verify(no_key=True).ok
        assert not repo.rebuild_index().problems and repo.verify("data").ok
        for step in (4, 5):
            assert (repo[f"step:{step}"]["model"]["own"] == noise(step, 100_000)).all()
    quarantined = [path.name for path in (root / "quarantine").iterdir()]
    assert quarantined == ([] if how == "lost" else [f"{pack.name}-0.record" if how == "bit" else f"{pack.name}.pack"])
