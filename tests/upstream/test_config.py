"""`[[upstream]]`: what does not go together is one line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumas.config import Config, ConfigError, read_config
from pumas.providers.upstream.url import parse_url
from pumas.upstreams import connect_upstreams


def read(directory: Path, text: str) -> Config:
    (directory / "m.gguf").touch()
    path = directory / "pumas.toml"
    path.write_text('[[upstream]]\nname = "up"\n' + text)
    return read_config(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = 'kind = "llama-server"\npath = "m.gguf"\nmmproj = "m.gguf"\nprogram = "./bin/server"\narguments = ["-v"]'
    (upstream,) = read(tmp_path, text).upstreams
    assert upstream.path == upstream.mmproj == str(tmp_path / "m.gguf")
    assert upstream.program == str(tmp_path / "bin" / "server")
    (upstream,) = read(tmp_path, 'kind = "llama-server"\npath = "m.gguf"\nprogram = "llama-server-b7000"').upstreams
    assert upstream.program == "llama-server-b7000", "a name is looked up in PATH"
    (upstream,) = read(tmp_path, 'kind = "llama-server"\nurl = "unix:run/there.sock"').upstreams
    assert upstream.url == f"unix:{tmp_path}/run/there.sock"


WRONG = {
    "neither url nor path": ('kind = "openai"', "either url"),
    "both": ('kind = "llama-server"\nurl = "http://a"\npath = "m.gguf"', "either url"),
    "a path of another kind": ('kind = "ollama"\npath = "m.gguf"', "only a url is possible"),
    "a program for a url": ('kind = "llama-server"\nurl = "http://a"\nmmproj = "m.gguf"', "mmproj goes with path only"),
    "a context for a url": ('kind = "llama-server"\nurl = "http://a"\ncontext = 5', "context goes with path only"),
    "a model for a path": ('kind = "llama-server"\npath = "m.gguf"\nmodel = "x"', "model goes with url only"),
    "no such file": ('kind = "llama-server"\npath = "other.gguf"', "no such file"),
    "no such projector": ('kind = "llama-server"\npath = "m.gguf"\nmmproj = "p.gguf"', "no such file"),
    "another scheme": ('kind = "openai"\nurl = "ftp://a"', "begins with http"),
    "a key in the url": ('kind = "openai"\nurl = "https://user:s3cret@a"', "api_key_file"),
    "a query": ('kind = "openai"\nurl = "https://a/?key=s3cret"', "api_key_file"),
    "/v1 in it": ('kind = "openai"\nurl = "http://a/v1/"', "before /v1"),
    "a bad port": ('kind = "openai"\nurl = "http://a:99999"', "url"),
    "another capability": ('kind = "ollama"\nurl = "http://a"\ncapabilities = ["rerank"]', "none of kind ollama"),
    "an unknown key": ('kind = "ollama"\nurl = "http://a"\nurls = "x"', "did you mean url"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    key.chmod(0o644)
    config = read(tmp_path, 'kind = "openai"\nurl = "https://a"\napi_key_file = "key"')
    with pytest.raises(ConfigError, match="chmod 600"):
        connect_upstreams(config)
    key.chmod(0o600)
    assert list(connect_upstreams(config)) == ["up/default"]
    key.write_text("two\nlines")
    with pytest.raises(ConfigError, match="printable") as caught:
        connect_upstreams(config)
    assert "lines" not in str(caught.value)


def test_addresses() -> None:
    assert parse_url("http://a").netloc == b"a"
    assert parse_url("https://A.example:8443/base/")[:4] == ("https", "a.example", 8443, "/base")
    assert parse_url("http://[::1]:80").netloc == b"[::1]"
    assert parse_url("https://bücher.example").host == "xn--bcher-kva.example"
    assert parse_url("unix:/run/s.sock").socket == "/run/s.sock"
