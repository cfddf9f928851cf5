"""Tokenizers from GGUF metadata, equal to the engine's id for id (docs/tokenizers.md)."""

from synapse.artifacts.tokenizer.beside import differences_beside
from synapse.artifacts.tokenizer.errors import CacheInvalid, NotBuildable, TextInvalid
from synapse.artifacts.tokenizer.models import TokenizerFailed
from synapse.artifacts.tokenizer.partition import Span
from synapse.artifacts.tokenizer.probe import probe_corpus, specials_of
from synapse.artifacts.tokenizer.tokenizer import Tokenizer, build_tokenizer
from synapse.artifacts.tokenizer.vocabulary import Vocabulary, read_vocabulary

__all__ = [
    "CacheInvalid",
    "NotBuildable",
    "Span",
    "TextInvalid",
    "Tokenizer",
    "TokenizerFailed",
    "Vocabulary",
    "build_tokenizer",
    "differences_beside",
    "probe_corpus",
    "read_vocabulary",
    "specials_of",
]
