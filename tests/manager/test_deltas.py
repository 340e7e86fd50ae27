"""Differences through a manager: the writer process codes each snapshot against the one before it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import chainstore as cs
from tests.manager.runs import Run


@pytest.mark.parametrize("mode", ["process", "thread", "sync"])
def test_snapshots_of_a_run_are_differences_and_come_back(tmp_path: Path, mode: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = {}
    with cs.SnapshotManager(tmp_path / "run", interval=1, mode=mode, codec="small", when_full="wait") as manager:  # type: ignore[arg-type]
        for step in range(1, 13):
            loss = model(torch.randn(32, 128)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.step(step, model, optimizer)
            kept[step] = {name: value.clone() for name, value in model.state_dict().items()}
        manager.wait()
        text = manager._insight.text()
    (line,) = [
        line for line in text.splitlines() if line.startswith("chain_snapshot_bytes_total{") and 'kind="delta"' in line
    ]
    assert float(line.rsplit(" ", 1)[1]) > 11 * 2 * 128 * 256 * 4  # the weights at least, of all but the first
    with cs.open(tmp_path / "run") as repo:
        for commit in repo.log():
            assert commit.step == 1 or commit.stats.delta_bytes > 0
            model_ = repo[commit]["model"].load()
            assert all(torch.equal(model_[name], value) for name, value in kept[commit.step].items())
        assert not repo.verify(level="data").damaged


def test_a_killed_run_of_differences_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, chainstore as cs\n"
        "from tests.manager.runs import Run\n"
        "run = Run()\n"
        "with cs.SnapshotManager(sys.argv[1], interval=1, codec='small', when_full='wait') as manager:\n"
        "    start = manager.resume(run.model, run.optimizer)\n"
        "    print(start, flush=True)\n"
        "    def hook(step, run, loss):\n"
        "        manager.step(step, run.model, run.optimizer)\n"
        "        print(step, flush=True)\n"
        "    run.train(start, 40, hook)\n"
    )
    root = Path(__file__).resolve().parent.parent.parent
    command = [sys.executable, str(script), str(tmp_path / "run")]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 23:
            child.send_signal(signal.SIGKILL)
            break
    child.stdout.close()
    assert child.wait(60) == -signal.SIGKILL
    again = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert again.returncode == 0, again.stderr
    assert int(again.stdout.split()[0]) in (22, 23, 24)
    straight = Run()
    straight.train(0, 40)
    with cs.open(tmp_path / "run") as repo:
        last = Run(seed=5)
        repo["step:40"].load_into(last.model, last.optimizer, rng=True)
        assert last.bits() == straight.bits()
        assert not repo.verify(level="data").damaged
