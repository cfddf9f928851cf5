"""The gateway's log: one line for each event on standard error, `time event key=value ...`.

Values with anything but plain characters are JSON strings, so that no client can forge a line or steer a terminal. What
clients sent (prompts, texts, answers) is never logged.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback
from typing import Any

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,-]+")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\"\\]")


def event(name: str, **fields: Any) -> None:
    """Write one line. A field that is None is left out; floats have three digits. Never raises for a closed stderr."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    parts = [stamp, name, *(f"{key}={_show(value)}" for key, value in fields.items() if value is not None)]
    try:
        sys.stderr.write(" ".join(parts) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads the log any more; serving goes on
        pass


def _show(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    return '"' + escape(text) + '"'


def escape(text: str) -> str:
    r"""Control characters, quotes and backslashes as `\n`, `\"`, `\u202e`: one harmless line."""
    return _ESCAPED.sub(lambda found: _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}", text)


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


class _Handler(logging.Handler):
    """Library messages in the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        trace = (
            "".join(traceback.format_exception(*record.exc_info)) if record.exc_info and record.exc_info[0] else None
        )
        event(record.levelname.lower(), logger=record.name, message=record.getMessage(), trace=trace)


def install(level: int = logging.WARNING) -> None:
    """Send what libraries log to the same place. Called once, by the program."""
    root = logging.getLogger()
    root.handlers = [_Handler()]
    root.setLevel(level)


def bug(name: str, error: BaseException, **fields: Any) -> None:
    """An event with the whole traceback, for what should not have happened."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    event(name, **fields, trace=trace)
