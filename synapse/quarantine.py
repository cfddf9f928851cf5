"""Quarantine survives the module: one small file for each key, fail-closed (W9, D6)."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from synapse.errors import SetupError
from synapse.policy.budget import Key


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """Why a key is quarantined."""

    digest: str
    runtime_config: str
    crashes: int
    reason: str


class QuarantineStore:
    """Records below `<state_dir>/quarantine`. Raises SetupError if that directory cannot be made.

    Reading and writing are single small files and block for as long as the disk takes.
    """

    def __init__(self, state_dir: Path | str) -> None:
        self.directory = Path(state_dir) / "quarantine"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"state directory {state_dir}: {error}") from error

    def path(self, key: Key) -> Path:
        """Where this key's record is."""
        name = hashlib.sha256("\n".join(key).encode()).hexdigest()
        return self.directory / f"{name}.json"

    def load(self, key: Key) -> Record | None:
        """The key's record, or None. One that cannot be read, or is another key's, is a quarantine too."""
        path = self.path(key)
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            return Record(*key, crashes=0, reason=f"its record {path} cannot be read ({error})")
        if (record.digest, record.runtime_config) != key:
            return Record(*key, crashes=0, reason=f"its record {path} speaks of another key")
        return record

    def save(self, key: Key, crashes: int, reason: str) -> None:
        """Write it, whole or not at all. Raises OSError: the quarantine then ends with this process."""
        data = msgspec.json.encode(Record(*key, crashes=crashes, reason=reason))
        descriptor, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path(key))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def remove(self, key: Key) -> None:
        """A probe lifts it. Raises OSError."""
        self.path(key).unlink(missing_ok=True)
