"""The models that a text process has open: from the ingest cache by digest, from the file where it is not there."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec

from synapse.artifacts.cache import Entry, IngestCache
from synapse.artifacts.digest import open_artifact, sha256_of, stamp_of
from synapse.artifacts.gguf import ArtifactInvalid, Header, read_header
from synapse.artifacts.ingest import (
    TOOLS,
    Encoder,
    SpecialFinder,
    compiled,
    first_difference,
    make_entry,
    try_templates,
)
from synapse.artifacts.model import describe
from synapse.artifacts.onnx import is_onnx, read_surroundings
from synapse.artifacts.template import ChatTemplate, TemplateError
from synapse.artifacts.template_fallbacks import FALLBACKS
from synapse.artifacts.tokenizer import CacheInvalid, NotBuildable, Tokenizer, TokenizerFailed, build_tokenizer
from synapse.artifacts.tokenizer.beside import differences_beside
from synapse.artifacts.tokenizer.cache import pack, unpack
from synapse.artifacts.tokenizer.probe import probe_corpus
from synapse.artifacts.tokenizer.vocabulary import Vocabulary, read_vocabulary
from synapse.wire.messages import ModelFile, ModelInfo
from worker_bin.text.bounds import OutOfTime, interrupted_after, memory_of

MAX_OPEN: Final = 6
TEMPLATE_CPU_S: Final = 1.0
"""CPU time to compile a template, to try it, or to render with it."""
TEMPLATE_BYTES: Final = 512 << 20
"""Memory for the same."""


@dataclass
class OpenModel:
    """One model, ready to tokenize."""

    entry: Entry
    tokenizer: Encoder
    honours_literal: bool
    specials: SpecialFinder
    _templates: dict[str, ChatTemplate] = field(default_factory=dict)

    def template(self, name: str | None, tools: bool) -> ChatTemplate:
        """The built-in template of that name; without a name the model's own, or the one it has for tools.

        Compiled once. Raises: TemplateError.
        """
        if name is None:
            if not self.entry.templates:
                raise TemplateError("the model has no chat template")
            name = TOOLS if tools and TOOLS in self.entry.templates else ""
        elif name not in FALLBACKS:
            raise TemplateError(f"no chat template is called {name!r}; known are {', '.join(FALLBACKS)}")
        if name not in self._templates:
            self._templates[name] = compiled(self.entry, name)
        return self._templates[name]


class Models:
    """At most MAX_OPEN open models; the one that was not used for longest goes first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, OpenModel] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def ingest(self, path: str, cache_dir: str) -> Entry:
        """What there is to know of a model file, from the cache where it is known. Raises: ArtifactInvalid."""
        cache = IngestCache(cache_dir)
        with open_artifact(path) as descriptor:
            digest = _digest(descriptor, cache)
            return cache.load(digest) or self._ingest(descriptor, path, digest, cache).entry

    def describe(self, path: str, cache_dir: str) -> ModelInfo:
        """What digest and header say, nothing built. Raises: ArtifactInvalid."""
        with open_artifact(path) as descriptor:
            digest = _digest(descriptor, IngestCache(cache_dir))
            return describe(read_header(descriptor), digest)

    def open(self, model: ModelFile) -> OpenModel:
        """Raises: ArtifactInvalid if the file is not what the digest says, and where the cache does not have it."""
        known = self._open.get(model.digest)
        if known is not None:
            self._open.move_to_end(model.digest)
            return known
        cache = IngestCache(model.cache_dir)
        entry = cache.load(model.digest)
        if entry is not None:
            try:
                return self._keep(self._from_entry(entry, model.path))
            except CacheInvalid as error:
                _log(f"ingest cache: {model.digest}: {error}; it is made anew")
        with open_artifact(model.path) as descriptor:
            digest = sha256_of(descriptor)
            if digest != model.digest:
                raise ArtifactInvalid(f"{model.path} is no longer the file that was ingested: it has {digest}")
            return self._ingest(descriptor, model.path, digest, cache)

    def _keep(self, model: OpenModel) -> OpenModel:
        self._open[model.entry.info.digest] = model
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return model

    def _from_entry(self, entry: Entry, path: str) -> OpenModel:
        if entry.tokenizer:
            tokenizer = Tokenizer(unpack(entry.tokenizer))
            return OpenModel(entry, tokenizer, True, SpecialFinder(tokenizer.vocabulary))
        vocabulary = msgspec.msgpack.decode(entry.vocabulary, type=Vocabulary)
        with open_artifact(path) as descriptor:
            return self._by_engine(entry, descriptor, path, vocabulary)

    def _by_engine(self, entry: Entry, descriptor: int, path: str, vocabulary: Vocabulary) -> OpenModel:
        from worker_bin.text.engine_tokenizer import EngineTokenizer
        from worker_bin.text.vocab import EngineVocabulary

        tokenizer = EngineTokenizer(EngineVocabulary(descriptor, path), vocabulary)
        return OpenModel(entry, tokenizer, tokenizer.honours_literal, SpecialFinder(vocabulary))

    def _ingest(self, descriptor: int, path: str, digest: str, cache: IngestCache) -> OpenModel:
        if is_onnx(path):  # not cached: what it is depends on the files beside it
            header = read_surroundings(path, os.fstat(descriptor).st_size)
            tokenizer = build_tokenizer(header)
            entry = make_entry(header, digest, tokenizer.vocabulary, pack(tokenizer.recipe), "")
            return self._keep(OpenModel(entry, tokenizer, True, SpecialFinder(tokenizer.vocabulary)))
        model = self._judged(read_header(descriptor), descriptor, path, digest)
        entry = model.entry
        try:
            with memory_of(TEMPLATE_BYTES), interrupted_after(TEMPLATE_CPU_S):
                model.entry = try_templates(entry, model.specials, model.honours_literal)
        except (OutOfTime, MemoryError):
            info = msgspec.structs.replace(
                entry.info, chat_template=False, template_error="the chat template takes too long or too much memory"
            )
            model.entry = msgspec.structs.replace(entry, info=info)
        cache.store(model.entry)
        return self._keep(model)

    def _judged(self, header: Header, descriptor: int, path: str, digest: str) -> OpenModel:
        """The model with the tokenizer that the probe allows."""
        vocabulary = read_vocabulary(header)
        for difference in differences_beside(path, header, vocabulary):
            _log(f"{path}: {difference}")
        try:
            tokenizer = build_tokenizer(header)
            reason = _probe(tokenizer, descriptor, path)
        except (NotBuildable, TokenizerFailed) as error:
            reason = str(error)
        if not reason:
            entry = make_entry(header, digest, vocabulary, pack(tokenizer.recipe), "")
            return OpenModel(entry, tokenizer, True, SpecialFinder(vocabulary))
        entry = make_entry(header, digest, vocabulary, b"", reason)
        return self._by_engine(entry, descriptor, path, vocabulary)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _probe(tokenizer: Tokenizer, descriptor: int, path: str) -> str:
    """Why the built tokenizer must not be used; "" if it gives the engine's ids."""
    from worker_bin.text.vocab import EngineVocabulary

    with EngineVocabulary(descriptor, path) as engine:
        if engine.size != len(tokenizer.vocabulary):
            return f"the engine has {engine.size} tokens, the file lists {len(tokenizer.vocabulary)}"
        return first_difference(
            probe_corpus(tokenizer.vocabulary),
            tokenizer,
            lambda text, add, parse: engine.encode(text, add_special=add, parse_special=parse),
        )


def _digest(descriptor: int, cache: IngestCache) -> str:
    stamp = stamp_of(descriptor)
    digest = cache.digest(stamp)
    if digest is None:
        digest = sha256_of(descriptor)
        cache.remember(stamp, digest)
    return digest
