"""pumas.toml: what is served, where, and within which limits. A closed schema, read once at start-up.

Every problem is one `ConfigError` whose message names the file, the key and the remedy. Relative paths in the file are
relative to the file. docs/config.md is generated from this module (`python -m pumas.configdoc`).
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from pumas.config_upstream import Positive, Upstream, check_upstream
from pumas.contract.explain import explain_field
from pumas.contract.names import check_model_name, check_profile_name
from pumas.http.config import HttpConfig
from synapse.limits import Limits

API_KEY_VARIABLE = "PUMAS_API_KEY"
"""The environment variable that holds the API key where no key file is configured."""


class UserError(Exception):
    """What the person at the command line can do something about; the message is one line, with the remedy."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # a name or key of the file may hold line ends


class ConfigError(UserError):
    """The configuration cannot be used."""

    exit_status = 2


MAX_PARALLEL = 256
MIN_CONTEXT, MAX_CONTEXT = 8, 1 << 22
"""What workers take at most; the model's own window may be smaller."""
Port = Annotated[int, Meta(ge=0, le=65535)]


class Server(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where the gateway listens and who may ask."""

    host: str = "127.0.0.1"
    """Bind address. Anything but a loopback address needs an API key."""
    port: Port = 8080
    """TCP port; 0 lets the system choose."""
    tcp: bool = True
    """false: listen on the Unix socket only."""
    unix_socket: str | None = None
    """A Unix socket to listen on as well: mode 0600, in a directory of mode 0700 that is made if it is missing."""
    api_key_file: str | None = None
    """File with the API key, mode 0600. Without it: the environment variable PUMAS_API_KEY."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that `Host` may have besides the loopback names and `host`. Where `host` is 0.0.0.0 or :: and this is
    empty, any `Host` is taken: the server's names are not known, and the key protects it. Name them to have them
    checked."""
    allowed_origins: tuple[str, ...] = ()
    """Values that `Origin` may have besides the server's own."""
    tls_certificate: str | None = None
    """PEM file with the certificate chain."""
    tls_key: str | None = None
    """PEM file with the certificate's private key."""


class Synapse(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How the workers are run. Directories default to the platform's places."""

    runtime_dir: str | None = None
    """The workers' sockets; mode 0700, owned by the user, a short path."""
    state_dir: str | None = None
    """What outlives a restart: quarantines."""
    cache_dir: str | None = None
    """What ingest found out about model files, by digest."""
    text_processes: Positive = 2
    """Processes that tokenize, render templates and check grammars."""
    threads: Positive | None = None
    """Threads that all workers share. Default: the machine's cores."""


class Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One served (alias, profile). The same file may be served under several."""

    path: str
    """The model file."""
    name: str | None = None
    """The alias that clients send. Default: the file name's stem."""
    profile: str = "default"
    """1 to 128 of A-Za-z0-9_.-; names this way of serving the alias."""
    engine: Literal["llama", "onnx"] | None = None
    """Default: by the file's name, onnx for .onnx and llama for the rest."""
    parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL)] = 8
    """Sequences that share a worker; 1: no two callers share a unit of work."""
    context: Annotated[int, Meta(ge=MIN_CONTEXT, le=MAX_CONTEXT)] | None = None
    """Tokens one sequence may hold. Default: what the model was trained for."""
    threads: Positive | None = None
    """Threads of one worker. Default: the machine's cores."""
    workers: Positive = 1
    """Worker processes of this lane."""
    deterministic: Literal["auto", "strict", "off"] = "auto"
    """The same text under any load: auto takes what is free; strict also what costs speed, else the load fails."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """Instead of the model's own pooling. A model for generation embeds as well where it is given."""
    micro_batch: Positive | None = None
    """Tokens of one engine call. Default: the engine's choice."""
    injection: Literal["closed", "engine"] = "closed"
    """closed: special-token text from clients stays text; engine: it is parsed, as llama.cpp does."""
    chat_template: str | None = None
    """A named fallback template, for a model that has none of its own."""
    require_sandbox: bool = False
    """Refuse to load where the worker cannot be sandboxed."""
    env: dict[str, str] = {}
    """Environment variables for the worker."""
    argv: tuple[str, ...] | None = None
    """An own worker program instead of the built-in one."""

    @property
    def alias(self) -> str:
        return self.name if self.name is not None else Path(self.path).stem


class Config(msgspec.Struct, kw_only=True, frozen=True):
    """Everything `pumas serve` needs to know. Paths are absolute."""

    server: Server = Server()
    synapse: Synapse = Synapse()
    limits: Limits = Limits()
    http: HttpConfig = HttpConfig()
    models: tuple[Model, ...] = ()
    upstreams: tuple[Upstream, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    server: Server = Server()
    synapse: Synapse = Synapse()
    limits: dict[str, Any] = {}
    model: list[Model] = []
    upstream: list[Upstream] = []


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": Server,
    "synapse": Synapse,
    "model": Model,
    "upstream": Upstream,
}
_PATHS = {
    "server": ("unix_socket", "api_key_file", "tls_certificate", "tls_key"),
    "synapse": ("runtime_dir", "state_dir", "cache_dir"),
    "model": ("path",),
    "upstream": ("api_key_file", "path", "mmproj"),
}


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read pumas.toml.

    Raises: ConfigError (one line: file, key, remedy).
    """
    file = Path(path)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; name a readable file with --config") from error
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        raise ConfigError(f"{file}: not TOML: {error}") from error
    try:
        return parse_config(data, file.absolute().parent)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def parse_config(data: dict[str, Any], base: Path) -> Config:
    """Check a decoded pumas.toml; relative paths are taken from `base`.

    Raises: ConfigError.
    """
    _refuse_unknown(data)
    for section in ("model", "upstream"):
        if isinstance(data.get(section), dict):
            raise ConfigError(f"[{section}] must be [[{section}]], in double brackets: there may be several")
    for section, keys in _PATHS.items():
        tables = data.get(section, ())
        for table in tables if isinstance(tables, list) else [tables]:
            if isinstance(table, dict):
                for key in keys:
                    if key in table:
                        table[key] = _absolute(table[key], base)
                if section == "upstream":
                    _absolute_places(table, base)
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(_readable(error, data)) from error
    limits, http = _limits(file.limits, file.server)
    config = Config(
        server=file.server,
        synapse=file.synapse,
        limits=limits,
        http=http,
        models=tuple(file.model),
        upstreams=tuple(file.upstream),
    )
    check_config(config)
    return config


def check_config(config: Config) -> None:
    """What no single field shows: names that are well formed and unique, files that exist.

    Raises: ConfigError.
    """
    for model in config.models:
        _check_file(model.path, f"the path of model {model.alias}")
    for upstream in config.upstreams:
        _check_upstream(upstream)
    seen: set[tuple[str, str]] = set()
    for alias, profile in [(m.alias, m.profile) for m in config.models] + [
        (u.name, u.profile) for u in config.upstreams
    ]:
        try:
            check_model_name(alias)
            check_profile_name(profile)
        except ValueError as error:
            raise ConfigError(f"the name {alias!r} with profile {profile!r} cannot be served: {error}") from None
        if (alias, profile) in seen:
            raise ConfigError(f"{alias} with profile {profile} is served twice; give one another name or profile")
        seen.add((alias, profile))
    server = config.server
    if (server.tls_certificate is None) != (server.tls_key is None):
        raise ConfigError("server.tls_certificate and server.tls_key belong together; give both or none")
    if not server.tcp and server.unix_socket is None:
        raise ConfigError("server.tcp is false and there is no server.unix_socket; nothing would listen")


def _check_file(name: str, what: str) -> None:
    path = Path(name)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file; check {what}") from None
    except OSError as error:  # a directory on the way that may not be entered, a name that is too long
        raise ConfigError(f"{path}: {error.strerror}; check {what}") from error
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a directory; name the model file in it")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{path}: may not be read; check its permissions")


def _check_upstream(upstream: Upstream) -> None:
    where = f"upstream {upstream.name}"
    try:
        check_upstream(upstream)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    for key in ("path", "mmproj"):
        if (name := getattr(upstream, key)) is not None:
            _check_file(name, f"{key} of {where}")


# --- the closed schema ------------------------------------------------------------------------------------------------


def _refuse_unknown(data: dict[str, Any]) -> None:
    _known_only(data, [*_SECTIONS, "limits"], "")
    for section, struct in _SECTIONS.items():
        tables = data.get(section)
        if isinstance(tables, list):
            for index, table in enumerate(tables):
                if isinstance(table, dict):
                    _known_only(table, list(struct.__struct_fields__), f"{section}[{index}].")
        elif isinstance(tables, dict):
            _known_only(tables, list(struct.__struct_fields__), f"{section}.")
    if isinstance(data.get("limits"), dict):
        _known_only(data["limits"], list(limit_fields()), "limits.")


def _known_only(table: dict[str, Any], known: list[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown key {where}{key}; {hint}")


def _absolute(value: Any, base: Path) -> Any:
    if isinstance(value, str):
        if "\0" in value:
            raise ConfigError(f"{value!r} is no path")
        try:
            return str(base / Path(value).expanduser())
        except RuntimeError:
            raise ConfigError(f"{value}: there is no such user's home directory") from None
    if isinstance(value, list):
        return [_absolute(item, base) for item in value]
    return value


def _absolute_places(table: dict[str, Any], base: Path) -> None:
    """An upstream's socket, and its program where that is a path and no name to be looked up."""
    url, program = table.get("url"), table.get("program")
    if isinstance(url, str) and url.startswith("unix:"):
        table["url"] = f"unix:{_absolute(url.removeprefix('unix:'), base)}"
    if isinstance(program, str) and os.sep in program:
        table["program"] = _absolute(program, base)


def _readable(error: msgspec.ValidationError, data: dict[str, Any]) -> str:
    """`Expected `int`, got `str` - at `$.server.port`` → `server.port: expected int, got str`."""
    section = re.search(r"\$\.([a-z]+)", str(error))
    return explain_field(error, data, _SECTIONS.get(section[1], _File) if section else _File)[0]


_NOT_LIMITS = ("host", "port", "unix_path", "tls_cert", "tls_key", "websocket")
"""What of HttpConfig is no number of `[limits]`."""


def limit_fields() -> dict[str, tuple[type, int | float]]:
    """Every key of `[limits]` with its type and default: the supervision's numbers and the HTTP side's."""
    found: dict[str, tuple[type, int | float]] = {}
    for owner in (Limits, HttpConfig):
        hints = get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if not (owner is HttpConfig and field.name.startswith(_NOT_LIMITS)):
                assert isinstance(field.default, int | float)
                found[field.name] = (hints[field.name], field.default)
    return found


def _limits(table: dict[str, Any], server: Server) -> tuple[Limits, HttpConfig]:
    for key, value in table.items():
        kind, _ = limit_fields()[key]
        allowed = int if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ConfigError(f"limits.{key}: expected {'an integer' if kind is int else 'a number'}, got {value!r}")
        if not 0 <= value < float("inf"):
            raise ConfigError(f"limits.{key}: {value} is out of range; it must not be negative")
    own = {field.name for field in dataclasses.fields(Limits)}
    http = HttpConfig(**{key: value for key, value in table.items() if key not in own})
    return Limits(**{key: value for key, value in table.items() if key in own}), http_config(server, http)


def http_config(server: Server, numbers: HttpConfig) -> HttpConfig:
    """The serve loop's settings: where, from `[server]`; how much, from `numbers`."""
    return dataclasses.replace(
        numbers,
        host=server.host if server.tcp else None,
        port=server.port,
        unix_path=None if server.unix_socket is None else Path(server.unix_socket),
        tls_cert=None if server.tls_certificate is None else Path(server.tls_certificate),
        tls_key=None if server.tls_key is None else Path(server.tls_key),
    )
