"""The gateway's log: one line for each event on standard error, `time event key=value ...`.

Values with anything but plain characters are JSON strings, so that no client can forge a line or steer a terminal. What
clients sent (prompts, texts, answers) is never logged, and credential-shaped text is taken out. While a gateway runs, a
thread writes the lines: whoever stops reading standard error (a paused pager, Ctrl-S in a terminal) loses lines and
stops nothing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import traceback
from typing import Any

from pumas.contract.redact import without_credentials

MAX_WAITING_LINES = 10_000
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,-]+")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\"\\]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def event(name: str, **fields: Any) -> None:
    """Log one line. A field that is None is left out; floats have three digits. Never raises for a closed stderr."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    parts = [stamp, name, *(f"{key}={_show(value)}" for key, value in fields.items() if value is not None)]
    line = " ".join(parts) + "\n"
    if _writer is None:
        _write(line)
    else:
        _writer.put(line)


def progress(name: str, **fields: Any) -> None:
    """An event that standard output tells too: left out where both go to the same terminal or file."""
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # not files at all
        out, err = None, None
    if out is None or err is None or (out.st_dev, out.st_ino) != (err.st_dev, err.st_ino):
        event(name, **fields)


def bug(name: str, error: BaseException, **fields: Any) -> None:
    """An event with the whole traceback, for what should not have happened."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    event(name, **fields, trace=trace)


def escape(text: str) -> str:
    r"""Control characters, quotes and backslashes as `\n`, `\"`, `\u202e`: one harmless line."""
    return _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text)


_SHORTEST_CREDENTIAL = 12


def _show(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(text) >= _SHORTEST_CREDENTIAL:
        text = without_credentials(text)
    return text if _PLAIN.fullmatch(text) else f'"{escape(text)}"'


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads the log any more; serving goes on
        pass


# --- while a gateway runs ---------------------------------------------------------------------------------------------


class _Writer(threading.Thread):
    """Writes lines in their order; drops and counts what comes while too many wait."""

    def __init__(self) -> None:
        super().__init__(name="log", daemon=True)
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._dropped = 0
        self._closed = False

    def put(self, line: str) -> None:
        """Never blocks for long: the lock is held for moments only."""
        with self._changed:
            if len(self._lines) >= MAX_WAITING_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Write what waits and end, but wait no longer than this."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self.join(timeout_s)

    def run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._dropped or self._closed):
                    self._changed.wait()
                if not self._lines and not self._dropped:
                    return
                lines, self._lines = self._lines, []
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(f"log_lines_dropped count={dropped}\n")
            _write("".join(lines))


_writer: _Writer | None = None


class _Handler(logging.Handler):
    """Library messages in the same form. Synapse's carry their event's name and fields (`synapse.lane.life`)."""

    def emit(self, record: logging.LogRecord) -> None:
        named = getattr(record, "event", None)
        if named is not None:
            event(named, **getattr(record, "fields", {}))
            return
        info = record.exc_info
        trace = "".join(traceback.format_exception(*info)) if info and info[0] else None
        event(record.levelname.lower(), logger=record.name, message=record.getMessage(), trace=trace)


def install(level: int = logging.WARNING) -> None:
    """Send what libraries log to the same place."""
    root = logging.getLogger()
    root.handlers = [_Handler()]
    root.setLevel(level)
    logging.getLogger("synapse").setLevel(logging.INFO)


def start() -> None:
    """From now on a thread writes."""
    global _writer
    _writer = _Writer()
    _writer.start()


def stop(timeout_s: float = 1.0) -> None:
    """Write what is left, for no longer than this; afterwards events are written at once again."""
    global _writer
    writer, _writer = _writer, None
    if writer is not None:
        writer.close(timeout_s)
