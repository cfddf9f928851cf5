"""The search itself: what breaks is found, made small and kept; what dies or hangs is not lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fuzz.__main__ as program
from fuzz.boxed import BY_LIMITS, Box
from fuzz.hunt import TooSlow, hunt, keep, outcome
from fuzz.mutate import damaged, pieces
from fuzz.targets import Target
from fuzz.watch import Notes


def _refuses_q(data: bytes) -> None:
    if b"q" in data:
        raise ValueError("a q")


def _letters(rng: random.Random) -> bytes:
    return bytes(rng.choice(b"abcdefghijklmnopqrstuvwxyz") for _ in range(20))


PICKY = Target("picky", "no q", _refuses_q, _letters)


def test_a_failure_is_found_and_made_small(tmp_path: Path) -> None:
    noted: list[bytes] = []
    count, failure = hunt(PICKY, 1, lambda number: number < 1000, noted.append)
    assert failure is not None
    assert failure.data == b"q"
    assert b"q" in noted[-1]
    assert failure.number == count - 1 == len(noted) - 1
    assert "ValueError: a q" in failure.what
    path = keep(PICKY, failure.data, tmp_path)
    assert path.read_bytes() == b"q"
    assert isinstance(outcome(PICKY, path.read_bytes()), ValueError)


def test_where_nothing_fails_it_ends_after_its_inputs() -> None:
    calm = Target("calm", "anything", lambda data: None, _letters)
    assert hunt(calm, 1, lambda number: number < 50, lambda data: None) == (50, None)


def test_what_takes_too_much_is_a_failure() -> None:
    code = (
        "from fuzz.hunt import outcome; from fuzz.targets import Target\n"
        "check = lambda data: bytearray(b'x') * (400 << 20)\n"
        "greedy = Target('greedy', 'little memory', check, lambda rng: b'', slow_s=1e9)\n"
        "print(type(outcome(greedy, b'')).__name__)"  # in a process of its own: what counts is the most it ever had
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "TooLarge\n"
    slow = Target("slow", "little time", lambda data: sum(range(100_000)), _letters, slow_s=0.0)
    assert isinstance(outcome(slow, b""), TooSlow)


def test_damage_is_seeded_and_pieces_make_the_whole() -> None:
    for seed in range(200):
        data = damaged(random.Random(seed), b"some bytes that are damaged", (b"XYZ",), (b"others",))
        assert data == damaged(random.Random(seed), b"some bytes that are damaged", (b"XYZ",), (b"others",))
        assert b"".join(pieces(random.Random(seed), data)) == data


def test_notes_survive_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.touch()
    code = "import os,signal,sys; from pathlib import Path; from fuzz.watch import Notes\n"
    code += "n = Notes(Path(sys.argv[1])); n.write(b'first'); n.write(b'second'); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == -signal.SIGKILL
    notes = Notes(path)
    assert notes.read() == (2, b"second")
    notes.close()


def test_a_box_tells_its_own_end_from_another() -> None:
    box = Box("templates", BY_LIMITS)
    try:
        box.check(b"hello {{ messages[0].content }}\0CHAT")
        assert box._child is not None
        os.kill(box._child.pid, signal.SIGSEGV)
        with pytest.raises((AssertionError, BrokenPipeError)):
            box.check(b"again\0CHAT")
        box.close()
        box.check(b"and again\0CHAT")
    finally:
        box.close()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A run and its ledger; a reproducer that holds; what is asked wrongly."""
    monkeypatch.setattr(program, "LEDGER", tmp_path / "ledger.jsonl")
    for seed in ("3", "4"):
        assert program.main(["--target", "frames", "--examples", "200", "--seed", seed]) == 0
    out = capfd.readouterr().out
    assert "frames: 200 inputs in " in out
    assert "seed 4: ok" in out
    assert "frames                       400 inputs" in out
    runs = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [(run["target"], run["seed"], run["inputs"], run["failed"]) for run in runs] == [
        ("frames", 3, 200, False),
        ("frames", 4, 200, False),
    ]
    (tmp_path / "input").write_bytes(b"\0{}")
    assert program.main(["--target", "frames", "--reproduce", str(tmp_path / "input")]) == 0
    with pytest.raises(SystemExit) as caught:
        program.main(["--target", "nothing"])
    assert caught.value.code == 2


def test_a_broken_invariant_ends_the_command_with_1(tmp_path: Path) -> None:
    """In a process where the parser of frames has a fault."""
    code = (
        "import sys, logging; from pathlib import Path; import fuzz.__main__ as program, fuzz.hunt, fuzz.frames\n"
        "def check(data):\n    assert b'ERR' not in data\n"
        "fuzz.frames.check, directory = check, Path(sys.argv[2])\n"
        "program.keep = lambda target, data: fuzz.hunt.keep(target, data, directory)\n"
        "sys.exit(program.main(['--target', 'frames', '--examples', '1000', '--notes', sys.argv[1]]))"
    )
    (tmp_path / "notes").touch()
    argv = [sys.executable, "-c", code, str(tmp_path / "notes"), str(tmp_path / "failures")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (kept,) = (tmp_path / "failures").iterdir()
    assert kept.read_bytes() == b"ERR"
    assert f"python -m fuzz --target frames --reproduce {kept}" in done.stdout
    assert "AssertionError" in done.stdout
