"""What the demo knows of a run, and how it shows it."""

import io

from rich.console import Console

from chainstore.demo.telling import Run, Teller, size, sparkline


def heard(*events):
    run = Run(steps=8)
    for event in events:
        run.hear(event)
    return run


def test_a_run_is_known_by_what_its_processes_said():
    run = heard(
        {"event": "started", "step": 0, "weights": 12},
        {"event": "step", "step": 1, "loss": 4.5},
        {"event": "committing", "step": 1},
        {"event": "committed", "step": 1, "id": "0123456789ab", "seconds": 0.02},
        {"event": "step", "step": 2, "loss": 4.0},
    )
    assert (run.step, run.committed_step, run.commit_id, run.weights) == (2, 1, "0123456789ab", 12)
    assert run.commit_seconds == [0.02]
    assert run.line() == "step   2/8   loss 4.00   last commit 0123456789ab (step 1)"


def test_a_run_is_within_a_commit_from_its_announcement_to_its_report():
    run = heard({"event": "step", "step": 4, "loss": 4.0}, {"event": "committing", "step": 4})
    assert run.committing == 4
    run.hear({"event": "committed", "step": 4, "id": "0123456789ab", "seconds": 0.02})
    assert run.committing is None


def test_a_step_that_is_computed_again_counts_once():
    run = heard(
        {"event": "step", "step": 1, "loss": 4.5},
        {"event": "step", "step": 2, "loss": 4.0},
        {"event": "started", "step": 1, "weights": 12},
        {"event": "step", "step": 2, "loss": 3.0},
    )
    assert run.curve() == [4.5, 3.0]


def test_a_sparkline_falls_with_its_values():
    assert sparkline([8.0, 7.0, 3.0, 1.0]) == "█▇▃▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert len(sparkline([float(place) for place in range(1000)])) == 48


def test_sizes_are_read_by_people():
    assert [size(999), size(9_982_179), size(299_000_000), size(1.2e9)] == ["999 B", "9.98 MB", "299 MB", "1.2 GB"]


def test_a_table_lines_up_whatever_its_markup():
    out = io.StringIO()
    Teller(Console(file=out, width=200)).table([("a", "[green]yes[/]"), ("long", "no")])
    assert out.getvalue() == "   a     yes\n   long  no\n"


def test_a_long_line_is_not_broken_in_a_pipe():
    out = io.StringIO()
    Teller(Console(file=out)).say("/a/very/long/path" * 20)
    assert out.getvalue().count("\n") == 1


def test_square_brackets_in_code_are_shown_as_they_are():
    out = io.StringIO()
    Teller(Console(file=out)).code('state["model"][0]')
    assert out.getvalue() == '   state["model"][0]\n'
