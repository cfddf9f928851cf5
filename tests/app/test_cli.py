"""The command line: what a user gets wrong is one line with the remedy, and what is asked for is printed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest

from pumas.cli import main
from tests import models
from tests.gateway import BOUND_S, Gateway, program, running, stop


def run(
    directory: Path, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    places = {"XDG_STATE_HOME": str(directory / "state"), "XDG_CACHE_HOME": str(directory / "cache")}
    return subprocess.run(
        program(*arguments),
        input=stdin,
        capture_output=True,
        timeout=BOUND_S,
        env=os.environ | places | (env or {}),
    )


def complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    """The one line that it ended with; log lines are not for the user."""
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("pumas: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr.decode()
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "nothing to serve"),
        (["serve", "none.gguf"], "none.gguf: no such file"),
        (["serve", "."], "is a directory"),
        (["serve", "--name", "x", "a.gguf", "b.gguf"], "--name needs exactly one"),
        (["serve", "--config", "none.toml"], "none.toml: No such file"),
        (["serve", "m.gguf", "--host", "0.0.0.0"], "needs an API key"),
        (["serve", "m.gguf", "m.gguf"], "served twice"),
        (["tokenize", "none.gguf"], "no such file"),
        (["models", "--url", "localhost"], "is no URL"),
        (["models", "--url", "http://127.0.0.1:1"], "is the gateway running?"),
        (["probe", "x", "--url", "http://127.0.0.1:1"], "is the gateway running?"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUMAS_API_KEY", raising=False)
    (tmp_path / "m.gguf").touch()
    assert main(arguments) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pumas: ")
    assert words in line


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", str(path), "--port", str(port))
    assert done.returncode == 1
    remedy = "choose another with --port, or stop what listens there"
    assert complaint(done).endswith(f"127.0.0.1:{port}: the port is taken; {remedy}")


def test_a_bad_model_alone_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    done = run(tmp_path, "serve", str(path), "--port", "0")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("pumas: bad: ")
    assert line.endswith("is a whole model file (a download may have been cut short)")
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith("loading bad (")


def test_a_bad_model_beside_a_good_one_is_named_at_the_end(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    paths = [str(tmp_path / name) for name in ("good.gguf", "bad.gguf")]
    with running(tmp_path, *paths, "--port", "0") as own:
        assert any(line.startswith("failed  bad: ") for line in own.lines)
        assert own.lines[-2] == "warning: 1 of 2 cannot be served: bad"
        own.until_logged("load_failed model=bad")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sevre"], "invalid choice: 'sevre'"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "m.gguf", "--port", ""], "argument --port: '' is outside 0 to 65535; see pumas serve --help"),
        (["serve", "m.gguf", "--port", "70000"], "'70000' is outside 0 to 65535"),
        (["serve", "m.gguf", "--parallel", "0"], "argument --parallel: '0' is outside 1 to 256"),
        (["serve", "m.gguf", "--context", "1"], "argument --context: '1' is outside 8 to 4194304"),
    ],
)
def test_wrong_command_lines_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pumas: ")
    assert words in line


def test_without_a_command_it_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "tokenize" in capsys.readouterr().out


def test_build_info(tmp_path: Path) -> None:
    done = run(tmp_path, "--build-info")
    assert done.returncode == 0, done.stderr
    info = msgspec.json.decode(done.stdout)
    assert info["contract_versions"] == [1]
    assert info["worker_protocol_version"] == 1
    assert info["engine"]["name"]
    assert info["engine"]["build_flags"]


def test_models_lists_what_is_served(gateway: Gateway, tmp_path: Path) -> None:
    done = run(tmp_path, "models", "--url", gateway.url)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["MODEL", "PROFILE", "STATE", "CONTEXT", "CAPABILITIES", "NOTES"]
    assert len(lines) == 8
    smol = next(line for line in lines if line.startswith("smol "))
    for word in ("loaded", "4096", "chat_generation,text_generation", "tokenizer=built", "injection=closed"):
        assert word in smol


def test_probe_tries_again_and_says_why_not(gateway: Gateway, tmp_path: Path) -> None:
    done = run(tmp_path, "probe", "headless", "--url", gateway.url)
    assert done.returncode == 1
    assert "ranking head" in complaint(done)
    done = run(tmp_path, "probe", "smol", "--url", gateway.url)
    assert done.stdout.decode().strip() == "smol (default) is loaded"


def test_tokenize_prints_what_the_engine_would_get(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    texts = ["the and", "", "<|im_end|>x", "two\nlines", "é"]
    as_json = b"".join(msgspec.json.encode(text) + b"\n" for text in texts)

    def rows(stdin: bytes, *flags: str) -> list[list[int]]:
        done = run(tmp_path, "tokenize", str(path), *flags, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]

    parsed = rows(as_json, "--json")
    assert len(parsed) == 5
    assert parsed[1] == []
    assert parsed[2][0] == 2, "the end-of-turn token"
    plain = rows(b"the and\n\n<|im_end|>x\n", "--no-parse-special")
    assert plain[:2] == parsed[:2]
    assert plain[2][0] != 2
    assert rows(as_json, "--json", "--count") == [len(row) for row in parsed]
    bad = run(tmp_path, "tokenize", str(path), "--json", stdin=b'"a"\nb\n')
    assert bad.returncode == 1
    assert "line 2 of standard input" in complaint(bad)


def test_tokenize_answers_line_by_line(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    places = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(
        program("tokenize", str(path), "--count"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | places,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with process.stdin:
            for text, count in ((b"q" * 3, b"3\n"), (b"", b"0\n")):
                process.stdin.write(text + b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == count
        assert process.wait(BOUND_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    with running(tmp_path, str(path), "--name", "alias", "--port", "0", "--parallel", "2", "--context", "128") as own:
        (model,) = own.get("/v1/served-models").json()["models"]
        assert (model["model"], model["context_tokens"]) == ("alias", 128)
        own.process.send_signal(number)
        assert stop(own.process) == 0
    assert "Traceback" not in own.log()


def test_a_signal_while_it_loads_ends_it(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf", layers=4, width=256)
    places = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(
        program("serve", str(path), "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | places,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline().startswith(b"loading")
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND_S) == 0
        assert b"Traceback" not in process.stderr.read()


def test_a_key_protects_all_but_health(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    socket_path = tmp_path / "run" / "pumas.sock"
    with running(
        tmp_path, str(path), "--port", "0", "--unix-socket", str(socket_path), env={"PUMAS_API_KEY": "k3y"}
    ) as own:
        assert own.get("/health").status == 200
        refused = own.get("/v1/served-models")
        assert (refused.status, refused.json()["error"]["code"]) == (401, "unauthenticated")
        assert "bearer token in the Authorization header" in refused.json()["error"]["message"]
        told = run(tmp_path, "models", "--url", own.url, env={"PUMAS_API_KEY": ""})
        assert complaint(told).endswith("PUMAS_API_KEY is not set; export PUMAS_API_KEY=...")
        curl = next(line for line in own.lines if "/v1/chat" in line or "/v1/served-models" in line)
        assert '-H "Authorization: Bearer $PUMAS_API_KEY"' in curl
        assert refused.headers["www-authenticate"] == "Bearer"
        allowed = own.ask("GET", "/v1/served-models", headers={"Authorization": "Bearer k3y"})
        assert allowed.status == 200
        foreign = own.ask("GET", "/health", headers={"Host": "evil.example"})
        assert foreign.status == 403
        listed = run(tmp_path, "models", "--url", f"unix:{socket_path}", env={"PUMAS_API_KEY": "k3y"})
        assert listed.returncode == 0, listed.stderr
        assert "k3y" not in own.log()
