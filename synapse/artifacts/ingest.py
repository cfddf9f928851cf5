"""From a model file to what is kept of it: header, tokenizer with its verdict, chat template with its traits.

The engine's vocabulary is the judge: a tokenizer that was built from the file counts only where it gives the engine's
ids for the probe corpus, in all four modes. What differs, or has no recipe, is tokenized by the engine itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from synapse.artifacts.cache import Entry, Traits
from synapse.artifacts.gguf import Header
from synapse.artifacts.model import describe
from synapse.artifacts.template import ChatTemplate, Span, TemplateError
from synapse.artifacts.template_fallbacks import FALLBACKS
from synapse.artifacts.template_traits import find_traits, injection_closed
from synapse.artifacts.tokenizer.partition import trie_pattern
from synapse.artifacts.tokenizer.vocabulary import CONTROL, UNKNOWN, Vocabulary

TOOLS = "tool_use"
"""What files call the template for chats with tools."""
_HOSTILE_TEXTS = 8
"""Special tokens' texts that are tried inside of messages."""


class Encoder(Protocol):
    """Texts to ids: a built tokenizer, or the engine's."""

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special: bool,
        parse_special: bool,
        literal: Sequence[Sequence[Span]] | None = None,
    ) -> list[list[int]]: ...


class SpecialFinder:
    """Where a text holds the text of a token that only the engine's own prompt should hold."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = [
            text
            for token_id in vocabulary.special_ids
            if vocabulary.attributes[token_id] & (CONTROL | UNKNOWN) and (text := vocabulary.texts[token_id])
        ]
        self.texts: Sequence[str] = texts
        self._pattern = re.compile(trie_pattern(texts)) if texts else None

    def __call__(self, text: str) -> list[Span]:
        """Ordered, disjoint spans of characters."""
        return [match.span() for match in self._pattern.finditer(text)] if self._pattern else []


def first_difference(texts: Sequence[str], built: Encoder, engine: Callable[[str, bool, bool], list[int]]) -> str:
    """Where a built tokenizer differs from the engine on these texts; "" where it does not.

    Args:
        engine: (text, add_special, parse_special) → ids.
    """
    for add_special in (True, False):
        for parse_special in (True, False):
            rows = built.encode_batch(texts, add_special=add_special, parse_special=parse_special)
            for text, ids in zip(texts, rows, strict=True):
                if ids != engine(text, add_special, parse_special):
                    mode = f"add_special={add_special}, parse_special={parse_special}"
                    return f"the built tokenizer differs from the engine's on {text[:40]!r} ({mode})"
    return ""


def make_entry(header: Header, digest: str, vocabulary: Vocabulary, tokenizer: bytes, reason: str) -> Entry:
    """What to keep of a model file, its template tried.

    Args:
        tokenizer: the built tokenizer's stored form; empty for the engine's, then `reason` says why.
    Raises: ArtifactInvalid.
    """
    info = describe(header, digest)
    info.tokenizer = "built" if tokenizer else "engine"
    info.tokenizer_type, info.tokenizer_reason = vocabulary.model, reason
    info.longest_token_bytes = vocabulary.longest_token_bytes
    info.add_bos, info.add_eos = vocabulary.add_bos, vocabulary.add_eos
    info.bos_id, info.eos_id, info.sep_id = vocabulary.bos_id, vocabulary.eos_id, vocabulary.sep_id
    info.bos_token, info.eos_token = vocabulary.text(vocabulary.bos_id), vocabulary.text(vocabulary.eos_id)
    return Entry(
        info=info,
        tokenizer=tokenizer,
        vocabulary=b"" if tokenizer else msgspec.msgpack.encode(vocabulary),
        templates=_templates(header),
    )


def _templates(header: Header) -> dict[str, str]:
    templates = {"": header.chat_template} if header.chat_template else {}
    named = header.chat_templates
    if templates and TOOLS in named:
        templates[TOOLS] = named[TOOLS]
    return templates


def try_templates(entry: Entry, finder: SpecialFinder, honours_literal: bool) -> Entry:
    """The entry with what its chat templates showed when they were tried. Raises nothing of a template's."""
    if not entry.templates:
        return entry
    info = msgspec.structs.replace(entry.info)
    hostile = [text for text in (info.eos_token, info.bos_token, *finder.texts) if text][:_HOSTILE_TEXTS]
    traits, closed = {}, honours_literal
    for name in entry.templates:
        try:
            template = compiled(entry, name)
        except TemplateError as error:
            info.chat_template, info.template_error = False, str(error)
            return msgspec.structs.replace(entry, info=info)
        info.tools_format = find_traits(template)  # the last one is that for tools
        traits[name] = Traits(template.typed_content, template.object_arguments)
        closed = closed and injection_closed(template, finder, hostile)
    info.injection_closed = closed
    return msgspec.structs.replace(entry, info=info, traits=traits)


def compiled(entry: Entry, name: str) -> ChatTemplate:
    """One of the model's chat templates, or a built-in one. Raises: TemplateError."""
    source = entry.templates[name] if name in entry.templates else FALLBACKS[name]
    template = ChatTemplate(source, entry.info.bos_token, entry.info.eos_token)
    traits = entry.traits.get(name, Traits())
    template.typed_content, template.object_arguments = traits.typed_content, traits.object_arguments
    return template


def without_doubled_ends(entry: Entry, text: str, literal: Sequence[Span]) -> tuple[str, list[Span]]:
    """A rendered prompt without the BOS and EOS that the tokenizer adds again, and its literal spans.

    Only the template's own: the same text inside a message stays.
    """
    info, spans = entry.info, list(literal)
    bos, eos = info.bos_token, info.eos_token
    if info.add_bos and bos and text.startswith(bos) and not (spans and spans[0][0] < len(bos)):
        text = text[len(bos) :]
        spans = [(start - len(bos), end - len(bos)) for start, end in spans]
    if info.add_eos and eos and text.endswith(eos) and not (spans and spans[-1][1] > len(text) - len(eos)):
        text = text[: -len(eos)]
    return text, spans
