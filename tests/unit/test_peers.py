"""What `make bench-peers` writes, and what it does with tools that fail."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from bench.peers import run, watch

OURS = [
    run.Row("cerebro.fit, new session", 20.0, None, 30.0, 2_000_000_000, 9_000_000, 0.25),
    run.Row("cerebro.fit, same session again", None, 10.0, 15.0, 2_100_000_000, 9_000_000, 0.25),
]
FAST = run.Row("fast", 15.04, 12.0, 25.0, 1_000_000_000, 20_000_000, 0.3)


def alive(pid: int) -> bool:
    return any(process.pid == pid for process in watch.processes())


def poll_until(condition, deadline: float = 10.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_the_table_has_a_line_per_row_and_a_cell_per_column():
    text = run.measured([FAST, *OURS], {"ray": "1"})
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [len(cells) for cells in table] == [len(run.COLUMNS) + 1] * 4
    assert table[1] == ["| fast", "15.0", "12.0", "25.0", "1000", "20.0", "0.3000 |"]
    assert table[2][2] == ""  # no warm figure of a new session


def test_the_page_says_how_busy_the_rest_of_the_machine_was():
    text = run.measured([FAST, dataclasses.replace(FAST, name="beside", others_cores=0.5), *OURS], {})
    assert "0.50 cores busy at most (beside beside)" in text


def test_what_is_ahead_of_cerebro_is_listed_column_by_column():
    lines = run.better([FAST, *OURS])
    assert lines[0] == "- cold, s, Cerebro 20.0: fast 15.0"
    assert lines[1] == "- warm, s, Cerebro 10.0: nobody"  # against its second search of a session
    assert lines[4] == "- moved, MB, Cerebro 9.0: nobody"


def test_a_tool_that_fails_is_a_row_with_its_reason_and_leaves_the_others():
    def fails():
        raise RuntimeError("Traceback\n  File …\nsome.ImportedError: a | b\nwarning: noise")

    rows = [*run.attempt("bad", fails), *run.attempt("good", lambda: [FAST]), *OURS]
    text = run.measured(rows, {})
    assert "| bad | failed: some.ImportedError: a / b |  |  |  |  |  |" in text.splitlines()
    assert "fast 15.0" in text


def test_a_tool_that_takes_too_long_is_a_failed_row(monkeypatch):
    monkeypatch.setattr(run, "LIMIT_SECONDS", 1)
    before = signal.getsignal(signal.SIGALRM)
    assert run.attempt("slow", signal.pause)[0].note == "failed: took more than 1 s"
    assert signal.getsignal(signal.SIGALRM) is before


def test_only_the_part_between_the_marks_is_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n%s\nold\n%s\nafter\n" % (run.BEGIN, run.END))
    run.write("new\n", page)
    run.write("newer\n", page)
    assert page.read_text() == "before\n%s\n\nnewer\n\n%s\nafter\n" % (run.BEGIN, run.END)


def test_the_page_has_the_marks():
    text = run.PAGE.read_text("utf-8")
    assert text.count(run.BEGIN) == text.count(run.END) == 1


def test_every_tool_names_a_section_of_the_requirements():
    assert set(filter(None, run.TOOLS.values())) <= set(run.sections())


def test_what_is_left_of_a_tool_is_killed_even_when_others_adopted_it(tmp_path, sleeper):
    told = tmp_path / "pid"
    watched = watch.Watch([sleeper.pid])
    tool = subprocess.Popen(["sh", "-c", "sleep 60 & echo $! > %s; read go" % told], stdin=subprocess.PIPE)
    poll_until(lambda: told.exists() and told.read_text().endswith("\n"))
    grandchild = int(told.read_text())
    watched.sample({tool.pid}, with_memory=False)
    tool.communicate(b"go\n")
    assert alive(grandchild)
    watched.stop()
    poll_until(lambda: not alive(grandchild))
    assert alive(sleeper.pid)  # a server is only watched


def test_cpu_time_and_memory_of_children_count(tmp_path):
    mark = tmp_path / "ready"
    script = "x = b'1' * 200_000_000; sum(range(30_000_000)); open('%s', 'w'); input()" % mark
    watched = run.Watched([])
    child = subprocess.Popen(["sh", "-c", '%s -c "%s"; true' % (sys.executable, script)], stdin=subprocess.PIPE)
    watched.add([child.pid])
    poll_until(mark.exists)
    used = watched.stop()
    child.communicate()
    assert used["cpu_seconds"] > 0.2
    assert 200_000_000 < used["peak_bytes"] < 300_000_000


def test_cpu_time_of_before_does_not_count():
    sum(range(10_000_000))
    watched = watch.Watch([os.getpid()])
    assert time.process_time() > 0.1 > watched.stop()["cpu_seconds"]


def test_bytes_over_the_loopback_device_are_counted():
    watched = watch.Watch([])
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        taken, _ = server.accept()
        with taken:
            for _ in range(100):
                client.sendall(bytes(10_000))
                taken.recv(10_000, socket.MSG_WAITALL)
    assert watched.stop()["moved_bytes"] >= 1_000_000
