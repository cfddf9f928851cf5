"""The log: one harmless line for each event, whatever a client put into it."""

from __future__ import annotations

import logging
import os
import sys
import threading

import pytest

from pumas import log


def test_nobody_forges_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.event("request", path='/x\n2026-01-01 forged "a\\b\u202e\x1b[2J', status=200, code=None, seconds=0.12345)
    (line,) = capsys.readouterr().err.splitlines()
    assert r'path="/x\n2026-01-01 forged \"a\\b\u202e\u001b[2J"' in line
    assert "status=200" in line
    assert "seconds=0.123" in line
    assert "code" not in line


def test_libraries_write_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        log.install()
        logging.getLogger("some.library").warning("two\nlines")
        tail = {"stage": "idle", "exit_status": None, "log_tail": "line one\nline two\x1b[31m"}
        logging.getLogger("synapse.x").info("words", extra={"event": "worker_crashed", "fields": tail})
    finally:
        root.handlers, root.level = before
    line, crash = capsys.readouterr().err.splitlines()
    assert r'warning logger=some.library message="two\nlines"' in line
    assert crash.partition(" ")[2] == r'worker_crashed stage=idle log_tail="line one\nline two\u001b[31m"'


def test_a_bug_is_logged_whole(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        log.bug("route_failed", error, path="/p")
    (line,) = capsys.readouterr().err.splitlines()
    assert "Traceback" in line
    assert "KeyError" in line


def test_whoever_stops_reading_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a pipe that nobody reads; then somebody does, and is told how much is missing."""
    reading, writing = os.pipe()
    monkeypatch.setattr(log, "MAX_WAITING_LINES", 100)
    seen: list[str] = []
    with os.fdopen(reading) as reader:
        late = threading.Thread(target=lambda: seen.extend(reader))
        with os.fdopen(writing, "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            log.start()
            for number in range(2_000):
                log.event("line", number=number, filler="x" * 200)
            late.start()
            log.stop(60.0)
        late.join()
    numbers = [int(line.partition("number=")[2].split()[0]) for line in seen if "number=" in line]
    dropped = [int(line.rpartition("=")[2]) for line in seen if "log_lines_dropped" in line]
    assert numbers == sorted(numbers)
    assert dropped
    assert len(numbers) + sum(dropped) == 2_000
