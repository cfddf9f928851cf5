"""pumas.toml is a closed schema: what is wrong is named with place and remedy; the page shows the schema."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pumas import configdoc
from pumas.config import Config, ConfigError, Server, read_config
from pumas.keys import is_loopback, read_api_key
from synapse.limits import Limits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def write(directory: Path, text: str) -> Path:
    path = directory / "pumas.toml"
    path.write_text(text)
    (directory / "m.gguf").touch()
    return path


def test_page_shows_the_schema() -> None:
    assert PAGE.read_text() == configdoc.render(), "run: python -m pumas.configdoc > docs/config.md"


def test_every_key_is_explained() -> None:
    rows = [line for line in configdoc.render().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row.split("|")[1].strip() for row in rows if not row.split("|")[4].strip()] == []


def test_reads_everything(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            """
            [server]
            port = 9
            unix_socket = "run/p.sock"
            [synapse]
            cache_dir = "cache"
            threads = 3
            [limits]
            quantum_ms = 20
            header_s = 5
            [[model]]
            path = "m.gguf"
            [[model]]
            path = "m.gguf"
            profile = "long"
            context = 4096
            """,
        )
    )
    assert [(m.alias, m.profile, m.context) for m in config.models] == [("m", "default", None), ("m", "long", 4096)]
    assert config.models[0].path == str(tmp_path / "m.gguf"), "paths are relative to the file"
    assert config.synapse.cache_dir == str(tmp_path / "cache")
    assert config.limits == Limits(quantum_ms=20)
    assert (config.http.port, config.http.header_s) == (9, 5)
    assert config.http.unix_path == tmp_path / "run" / "p.sock"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sever]\nport = 1", ["unknown key sever", "did you mean server?"]),
        ("[server]\nprot = 1", ["unknown key server.prot", "did you mean port?"]),
        ('[[model]]\npath = "m.gguf"\n[[model]]\npath = "m.gguf"\ncontxt = 2', ["model[1].contxt", "context?"]),
        ("[limits]\nquantum = 1", ["limits.quantum", "quantum_ms?"]),
        ("[server]\nport = '1'", ["server.port", "expected int, got str"]),
        ("[server]\nport = 70000", ["server.port", "65535"]),
        ("[[model]]\nname = 'x'", ["model[0]", "path"]),
        ('[[model]]\npath = "none.gguf"', ["none.gguf", "no such file"]),
        ('[[model]]\npath = "."', ["is a directory"]),
        ('[[model]]\npath = "m.gguf"\nname = " x"', ["white space"]),
        ('[[model]]\npath = "m.gguf"\nprofile = "a b"', ["profile"]),
        ('[[model]]\npath = "m.gguf"\n[[model]]\npath = "m.gguf"', ["served twice"]),
        ("[limits]\nquantum_ms = -1", ["limits.quantum_ms", "-1"]),
        ("[limits]\nquantum_ms = true", ["limits.quantum_ms", "number"]),
        ("[limits]\nlane_requests = 1.5", ["limits.lane_requests", "integer"]),
        ("[limits]\nquantum_ms = inf", ["limits.quantum_ms", "inf"]),
        ('[model]\npath = "m.gguf"', ["must be [[model]]"]),
        ('[[model]]\npath = "m.gguf"\ndeterministic = "yes"', ["model[0].deterministic", "none of auto, strict, off"]),
        ('[[model]]\npath = "m.gguf"\nparallel = 100000', ["model[0].parallel", "<= 256, got `100000`"]),
        ("limits = 1", ["limits"]),
        ("[server]\ntcp = false", ["nothing would listen"]),
        ('[server]\ntls_key = "k"', ["tls_certificate"]),
        ('[synapse]\nstate_dir = "~no-such-user/x"', ["~no-such-user/x", "no such user"]),
        ('[server]\napi_key_file = "a\\u0000b"', ["no path"]),
        ("[server\n", ["not TOML"]),
        ('"a\\nb" = 1', ["unknown key a b"]),
        ('[[model]]\npath = "none.gguf"\nname = "a\\nb"', ["none.gguf", "model a b"]),
        (f'[[model]]\npath = "{"x" * 300}"', ["File name too long", "check the path"]),
        ("a = " + "[" * 2000, ["not TOML"]),
        ("a = " + "9" * 5000, ["not TOML"]),
    ],
)
def test_refuses_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        read_config(tmp_path / "none.toml")


def test_key_comes_from_a_private_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    os.chmod(key, 0o600)
    config = Config(server=Server(host="0.0.0.0", api_key_file=str(key)))
    assert read_api_key(config, {}) == "secret"
    os.chmod(key, 0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_api_key(config, {})


def test_beyond_loopback_needs_a_key() -> None:
    config = Config(server=Server(host="0.0.0.0"))
    with pytest.raises(ConfigError, match="PUMAS_API_KEY"):
        read_api_key(config, {})
    assert read_api_key(config, {"PUMAS_API_KEY": "k"}) == "k"
    assert read_api_key(Config(), {}) is None


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
