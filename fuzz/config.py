"""pumas.toml."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from fuzz.mutate import damaged
from pumas.config import Config, ConfigError, read_config
from pumas.contract.names import check_model_name, check_profile_name

INVARIANT = "A file is a Config whose names and limits are in range, or a ConfigError whose message is one line."
_MODEL = (
    b'[[model]]\npath = "pumas.toml"\nname = "a"\nprofile = "p"\nparallel = 2\nenv = {A = "b"}\nargv = ["x", "y"]\n'
)
_SEEDS = (
    b"",
    b'[server]\nhost = "127.0.0.1"\nport = 0\nallowed_hosts = ["x"]\n' + _MODEL,
    b"[limits]\nboot_s = 5.5\ncrashes_per_key = 2\nmax_frame_bytes = 1_000_000\n[synapse]\nthreads = 2\n" + _MODEL,
    b'[[upstream]]\nname = "u"\nkind = "ollama"\nurl = "http://127.0.0.1:11434"\ncapabilities = ["chat_generation"]\n',
    b'[server]\ntcp = false\nunix_socket = "~/s"\napi_key_file = "k"\ntls_key = "a"\ntls_certificate = "b"\n',
)
_FRAGMENTS = (
    *(
        b"[server]\n",
        b"[[model]]\n",
        b"[model]\n",
        b"[limits]\n",
        b"[[limits]]\n",
        b"[x]\n",
        b"port = ",
        b"= -1\n",
        b"= 1e400\n",
    ),
    *(
        b"= nan\n",
        b"= inf\n",
        b"= true\n",
        b"= []\n",
        b"= {}\n",
        b'= ""\n',
        b"= 99999999999999999999\n",
        b'"\\u0000"',
        b"'''",
    ),
    *(
        b"= 1979-05-27T07:32:00Z\n",
        b"a.b.c = 1\n",
        b"[" * 500,
        b"\xff",
        b"\\",
        b'"~nobody-here/x"',
        b"host = 5\n",
        b'"a\\nb"',
    ),
)


def check(data: bytes) -> None:
    """The whole file."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        path = Path(directory) / "pumas.toml"
        path.write_bytes(data)
        try:
            config = read_config(path)
        except ConfigError as error:
            assert "\n" not in str(error), str(error)
            assert len(str(error)) < 4000
            return
    assert isinstance(config, Config)
    assert 0 <= config.server.port <= 65535
    for model in config.models:
        check_model_name(model.alias)
        check_profile_name(model.profile)
        assert Path(model.path).is_absolute()
    assert config.limits.boot_s >= 0


def generate(rng: random.Random) -> bytes:
    return damaged(rng, rng.choice(_SEEDS), _FRAGMENTS, _SEEDS)
