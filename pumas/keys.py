"""The API key: where it comes from, and where there has to be one (C10)."""

from __future__ import annotations

import ipaddress
import os
import stat

from pumas.config import API_KEY_VARIABLE, Config, ConfigError


def read_api_key(config: Config, environ: dict[str, str] | None = None) -> str | None:
    """The API key, or None where none is configured.

    Raises: ConfigError (a key file that others can read; a bind address beyond loopback without a key).
    """
    variables = os.environ if environ is None else environ
    key = variables.get(API_KEY_VARIABLE) or None
    if config.server.api_key_file is not None:
        key = read_secret(config.server.api_key_file, "server.api_key_file")
    if key is not None and (not key.isascii() or not key.isprintable()):
        raise ConfigError("the API key must be printable ASCII")
    if key is None and config.server.tcp and not is_loopback(config.server.host):
        raise ConfigError(
            f"binding to {config.server.host} needs an API key: set {API_KEY_VARIABLE} or server.api_key_file"
        )
    return key


def read_secret(path: str, setting: str = "api_key_file") -> str:
    """A key from a file that only its owner may read. `setting` is the key of pumas.toml that names it.

    Raises: ConfigError.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(f"{path} has mode {mode:04o}, others may read the key; run: chmod 600 {path}")
            key = file.read(4097).decode("utf-8", "replace").strip()
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{setting} names {path}: {why}; write the key into it, mode 0600") from error
    if not key or len(key) > 4096:
        raise ConfigError(f"{path} must hold one key of 1 to 4096 characters")
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
