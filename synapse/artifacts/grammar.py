"""Grammars and JSON schemas: compiled to llguidance's form, or refused by name of what cannot be honoured in full (G1).

llguidance needs no model for it: a vocabulary of the 256 bytes shows whether a grammar can begin at all. What it reads
as a mere remark though an older JSON Schema draft means a constraint is refused here, and so are options inside a
schema that would loosen it.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Any, Final, Literal

import llguidance
import msgspec

from synapse.artifacts.gbnf import GbnfError
from synapse.artifacts.gbnf_lark import gbnf_to_lark

MAX_GRAMMAR_BYTES: Final = 256 * 1024
"""Bound of a grammar's or schema's text (D15)."""
MAX_COMPILE_S: Final = 1.0
"""Bound of the CPU time to compile it: a lane's other streams wait meanwhile."""
GrammarKind = Literal["grammar", "json_schema"]

_OLD_KEYWORDS: Final = ("disallow", "divisibleBy", "extends", "$recursiveAnchor")
"""Constraints of former drafts that llguidance takes for remarks."""
_SCHEMAS_IN: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is an object of name → schema."""
_DATA_IN: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is data, not a schema."""
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


class GrammarRefused(ValueError):
    """The grammar is wrong, or asks for what cannot be honoured in full. The message is for the caller."""


def compile_grammar(kind: GrammarKind, text: str) -> str:
    """The grammar as llguidance's matcher takes it; a `grammar` is GBNF, or Lark where it starts with `%llguidance`.

    Checks what the text alone shows; `check_grammar` tells whether llguidance can honour it.
    Raises: GrammarRefused.
    """
    size = len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarRefused(f"the {_NAME[kind]} has {size} bytes, more than {MAX_GRAMMAR_BYTES}")
    if not text.strip():
        raise GrammarRefused(f"the {_NAME[kind]} is empty")
    if kind == "json_schema":
        return _schema(text)
    return _lark(text) if text.lstrip().startswith("%llguidance") else _gbnf(text)


def check_grammar(kind: GrammarKind, text: str) -> None:
    """Refuse what cannot be honoured in full.

    Blocks: milliseconds for honest ones; hostile ones may take seconds and memory, or end the process: run it where
    that does no harm.
    Raises: GrammarRefused.
    """
    before = time.thread_time()
    matcher = llguidance.LLMatcher(_byte_tokens(), compile_grammar(kind, text), log_level=0)
    remarks = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if remarks:  # a warning is something that would be dropped
        raise GrammarRefused(f"the {_NAME[kind]} cannot be honoured: {_line(remarks[0])}")
    possible = any(matcher.compute_bitmask()) and not matcher.is_error()
    if not possible or (matcher.is_stopped() and not matcher.is_accepting()):
        raise GrammarRefused(f"the {_NAME[kind]} cannot produce anything")
    if (taken := time.thread_time() - before) > MAX_COMPILE_S:
        raise GrammarRefused(f"the {_NAME[kind]} takes {taken:.1f} s to compile, more than {MAX_COMPILE_S:g} s")


_NAME: Final = {"grammar": "grammar", "json_schema": "JSON schema"}


# --- the three notations ---------------------------------------------------------------------------------------------


def _gbnf(text: str) -> str:
    try:
        return str(llguidance.LLMatcher.grammar_from_lark(gbnf_to_lark(text)))
    except GbnfError as error:
        raise GrammarRefused(f"the grammar is no valid GBNF: {error}") from error
    except RecursionError:
        raise GrammarRefused("the grammar is nested too deeply") from None


def _lark(text: str) -> str:
    if '"x-guidance"' in text:
        raise GrammarRefused("the grammar cannot be honoured: x-guidance loosens a schema")
    return str(llguidance.LLMatcher.grammar_from_lark(text))


def _schema(text: str) -> str:
    try:
        schema = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise GrammarRefused(f"the JSON schema is no valid JSON: {error}") from error
    except RecursionError:
        raise GrammarRefused("the JSON schema is nested too deeply") from None
    _refuse_twice(text)
    _refuse_ignored(schema)
    return str(llguidance.LLMatcher.grammar_from_json_schema(text))


def _refuse_ignored(schema: Any) -> None:
    """Refuse keywords that llguidance would read past though they mean something."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        if "x-guidance" in value:
            raise GrammarRefused("the JSON schema cannot be honoured: x-guidance loosens it")
        for keyword in _OLD_KEYWORDS:
            if keyword in value:
                raise GrammarRefused(f'the JSON schema cannot be honoured: Unimplemented keys: ["{keyword}"]')
        for keyword, inner in value.items():
            if keyword in _SCHEMAS_IN and isinstance(inner, dict):
                waiting += inner.values()
            elif keyword not in _DATA_IN:
                waiting.append(inner)


def _refuse_twice(text: str) -> None:
    """Refuse a key given twice in one object. The text is valid JSON."""
    open_objects: list[set[str] | None] = []
    last = ""
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token == "{":
            open_objects.append(set())
        elif token == "[":
            open_objects.append(None)
        elif token in "]}":
            open_objects.pop()
        elif token == ":":
            key = msgspec.json.decode(last, type=str)
            known = open_objects[-1]
            if known is None or key in known:
                raise GrammarRefused(f"the JSON schema gives the key {key!r} twice in one object")
            known.add(key)
        last = token


# --- a vocabulary of bytes -------------------------------------------------------------------------------------------


class _Bytes:
    """What llguidance wants to know of a tokenizer: every byte is a token."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([value]) for value in range(256)), b"<eos>"]
    special_token_ids = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@functools.cache
def _byte_tokens() -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def _line(remark: str) -> str:
    """What the library says, in one line."""
    text = " ".join(remark.partition("<backtrace>")[0].split())
    return text if len(text) <= 300 else text[:300] + "..."
