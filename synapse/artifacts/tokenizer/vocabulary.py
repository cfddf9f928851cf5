"""The vocabulary of a model file as llama.cpp understands it: texts, attributes, special ids and flags.

Defaults and overrides are the engine's: it decides by text which tokens end a generation, and turns them into control
tokens whatever the file says. Attributes decide what special-token text in a prompt becomes, so they must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Literal

import msgspec
import numpy as np

from synapse.artifacts.gguf import ArtifactInvalid, Header
from synapse.artifacts.tokenizer import data

UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 2, 4, 8, 16, 32
LSTRIP, RSTRIP = 128, 256
SPECIAL: Final = CONTROL | USER_DEFINED | UNKNOWN
"""Tokens whose text is looked for before a text is tokenized."""

Kind = Literal["spm", "wpm", "bpe", "ugm", "rwkv", "plamo2"]

_KINDS: Final[dict[str, Kind]] = {
    "llama": "spm",
    "bert": "wpm",
    "gpt2": "bpe",
    "hybriddna": "bpe",
    "whitespace": "bpe",
    "gemma4": "bpe",
    "t5": "ugm",
    "rwkv": "rwkv",
    "plamo2": "plamo2",
}
# bos, eos, unk, sep, pad, mask
_DEFAULT_IDS: Final[dict[Kind, tuple[int, int, int, int, int, int]]] = {
    "spm": (1, 2, 0, -1, -1, -1),
    "wpm": (101, -1, 100, 102, 0, 103),
    "bpe": (11, 11, -1, -1, -1, -1),
    "ugm": (-1, 1, 2, -1, 0, -1),
    "rwkv": (-1, -1, -1, -1, -1, -1),
    "plamo2": (1, 2, 0, -1, 3, -1),
}
_TYPES: Final = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}

_END_TEXTS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
_ALWAYS_SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Fill-in-the-middle: (keys that name the token, texts that it is known by). The engine marks the first one that its
# hash table happens to yield.
_FIM: Final = (
    (("fim_pre_token_id", "prefix_token_id"), (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    )),
    (("fim_suf_token_id", "suffix_token_id"), (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    )),
    (("fim_mid_token_id", "middle_token_id"), (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    )),
    (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    (("fim_rep_token_id",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    (("fim_sep_token_id",), ("<|file_sep|>",)),
)  # fmt: skip


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Ids are -1 where the model has none. Serializable as it is: texts and attributes are packed."""

    kind: Kind
    model: str
    """tokenizer.ggml.model"""
    pre: str
    """tokenizer.ggml.pre, "default" where the file says nothing."""
    blob: bytes
    """The tokens' texts, one behind the other."""
    lengths: bytes
    """u32 each."""
    packed_attributes: bytes
    """u16 each."""
    bos_id: int
    eos_id: int
    unk_id: int
    sep_id: int
    pad_id: int
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    ignore_merges: bool
    lowercase: bool
    strip_accents: bool
    clean_spaces: bool
    ambiguous: str = ""
    """Why the engine's attributes cannot be known from the file alone."""

    @cached_property
    def tokens(self) -> list[bytes]:
        """Every token's text, as the file has it; an empty one is `[EMPTY_id]`."""
        ends = np.cumsum(np.frombuffer(self.lengths, np.uint32), dtype=np.int64).tolist()
        starts = [0, *ends[:-1]]
        blob = self.blob
        return [blob[a:b] for a, b in zip(starts, ends, strict=True)]

    @cached_property
    def texts(self) -> list[str | None]:
        """The same as str, None where the bytes are no UTF-8."""
        try:
            return [token.decode() for token in self.tokens]
        except UnicodeDecodeError:
            return [_decoded(token) for token in self.tokens]

    @cached_property
    def attributes(self) -> list[int]:
        values: list[int] = np.frombuffer(self.packed_attributes, np.uint16).tolist()
        return values

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids of the tokens whose text is looked for in a text, ascending."""
        return [i for i, attribute in enumerate(self.attributes) if attribute & SPECIAL]

    def __len__(self) -> int:
        return len(self.lengths) // 4

    @property
    def longest_token_bytes(self) -> int:
        return int(np.frombuffer(self.lengths, np.uint32).max(initial=0))

    def text(self, token_id: int) -> str:
        """A token's text for people and templates: "" for no token, bad UTF-8 replaced."""
        return self.tokens[token_id].decode(errors="replace") if 0 <= token_id < len(self) else ""


def read_vocabulary(header: Header) -> Vocabulary:
    """The vocabulary of a header, of any type that the engine knows.

    Raises: ArtifactInvalid for what the engine would refuse or abort on (duplicate tokens, an unknown type, ...).
    """
    model = header.tokenizer_model
    if model not in _KINDS:
        raise ArtifactInvalid(f"tokenizer.ggml.model is {model!r}: no tokenizer that the engine knows")
    kind = _KINDS[model]
    pre, name = _pre(header, model, kind)
    tokens = _tokens(header)
    count = len(tokens)
    by_text = {token: i for i, token in enumerate(tokens)}
    if len(by_text) != count:
        twice = next(token for i, token in enumerate(tokens) if by_text[token] != i)
        raise ArtifactInvalid(f"token {twice!r} is listed twice")

    def special_id(key: str, default: int) -> int:
        value = header.integer(f"tokenizer.ggml.{key}", -1)
        return value if 0 <= value < count else default if default < count else -1

    bos, eos, unk, sep, pad, _ = _DEFAULT_IDS[kind]
    ids = {
        "bos_id": special_id("bos_token_id", -1 if name.no_bos or model == "gemma4" else bos),
        "eos_id": special_id("eos_token_id", -1 if model == "gemma4" else eos),
        "unk_id": special_id("unknown_token_id", unk),
        "sep_id": special_id("seperator_token_id", sep),
        "pad_id": special_id("padding_token_id", pad),
    }
    attributes, ambiguous = _attributes(header, tokens, by_text, special_id, ids["eos_id"])
    add_bos = header.flag("tokenizer.ggml.add_bos_token", name.add_bos or kind in ("spm", "wpm"))
    lowercase = header.flag("tokenizer.ggml.normalizer.lowercase", not name.keep_case)
    return Vocabulary(
        kind=kind,
        model=model,
        pre=pre,
        blob=b"".join(tokens),
        lengths=np.array([len(token) for token in tokens], np.uint32).tobytes(),
        packed_attributes=attributes,
        **ids,
        add_bos=add_bos or name.engine == "GEMMA4",
        add_eos=header.flag("tokenizer.ggml.add_eos_token", kind == "ugm"),
        add_space_prefix=header.flag("tokenizer.ggml.add_space_prefix", kind == "spm"),
        remove_extra_whitespaces=header.flag("tokenizer.ggml.remove_extra_whitespaces"),
        escape_whitespaces=name.escape_whitespaces or kind != "bpe",
        ignore_merges=name.ignore_merges,
        lowercase=lowercase,
        strip_accents=header.flag("tokenizer.ggml.normalizer.strip_accents", lowercase),
        clean_spaces=name.clean_spaces if kind == "bpe" else kind == "wpm",
        ambiguous=ambiguous,
    )


def _pre(header: Header, model: str, kind: Kind) -> tuple[str, data.PreName]:
    if kind != "bpe":
        return "default", data.PreName(group="default")
    pre = "gemma4" if model == "gemma4" else header.text("tokenizer.ggml.pre") or "default"
    known = data.pretokenizers().names
    if pre not in known:
        raise ArtifactInvalid(f"tokenizer.ggml.pre is {pre!r}: no pre-tokenizer that the engine knows")
    if pre == "whitespace" and model != "whitespace":
        # Its pieces keep their spaces here, and the engine asserts that no merge is looked up for one.
        raise ArtifactInvalid(f"tokenizer.ggml.pre is {pre!r}, which the engine cannot run with the model {model!r}")
    return pre, known[pre]


def _tokens(header: Header) -> list[bytes]:
    tokens = header.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ArtifactInvalid("tokenizer.ggml.tokens is missing or empty")
    count = len(tokens)
    for key, dtypes in (("scores", ("f4", "i4")), ("token_type", ("i4",))):
        values = header.numbers(f"tokenizer.ggml.{key}", *dtypes)
        if values is not None and len(values) < count:
            raise ArtifactInvalid(f"tokenizer.ggml.{key} has {len(values)} values for {count} tokens")
    if not all(tokens):
        tokens = [token or f"[EMPTY_{i}]".encode() for i, token in enumerate(tokens)]
    return tokens


def scores(header: Header, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The tokens' scores, zeros without any."""
    values = header.numbers("tokenizer.ggml.scores", "f4", "i4")
    return np.zeros(count, np.float32) if values is None else values[:count].astype(np.float32)


def _attributes(
    header: Header,
    tokens: list[bytes],
    by_text: dict[bytes, int],
    special_id: Callable[[str, int], int],
    eos_id: int,
) -> tuple[bytes, str]:
    """Every token's attributes, packed, and why they are ambiguous, if they are."""
    count = len(tokens)
    types = header.numbers("tokenizer.ggml.token_type", "i4")
    if types is None:
        attributes = np.full(count, NORMAL, np.uint16)
    else:
        attributes = np.zeros(count, np.uint16)
        for value, attribute in _TYPES.items():
            attributes[types[:count] == value] = attribute

    def find(text: str) -> int:
        return by_text.get(text.encode(), -1)

    ambiguous = ""
    for keys, texts in _FIM:
        if any(special_id(key, -1) >= 0 for key in keys):
            continue
        found = [i for i in map(find, texts) if i >= 0]
        plain = [i for i in found if not attributes[i] & CONTROL]
        if len(found) > 1 and plain:
            ambiguous = f"several tokens may be the engine's {keys[0].removesuffix('_token_id')} token"
        attributes[plain] |= CONTROL

    for i in np.flatnonzero(attributes & CONTROL).tolist():
        if b"unused" in tokens[i].split(b"\0", 1)[0]:
            attributes[i] |= UNUSED
    ends = {text: i for text in _END_TEXTS if (i := find(text)) >= 0}
    attributes[list(ends.values())] |= CONTROL
    for i in map(find, _ALWAYS_SHOWN):
        if i >= 0:
            attributes[i] = USER_DEFINED
    called = "<|call|>" in ends or "<|calls|>" in ends
    if called and "<|end|>" in ends and ("<|return|>" in ends or "<|flush|>" in ends):
        attributes[ends["<|end|>"]] = USER_DEFINED
    ordinary_s = "<|tool_response>" in ends or (eos_id >= 0 and find("<|plamo:eos|>") == eos_id)
    if ordinary_s and "</s>" in ends:
        attributes[ends["</s>"]] = NORMAL
    _strip_attributes(header, attributes, find)
    return attributes.tobytes(), ambiguous


def _strip_attributes(
    header: Header, attributes: np.ndarray[tuple[int], np.dtype[np.uint16]], find: Callable[[str], int]
) -> None:
    """Which special tokens swallow the white space beside them: the engine knows it by the model's name."""
    pre, name = header.text("tokenizer.ggml.pre"), header.name.lower()
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        part in header.architecture for part in ("nomic-bert-moe", "jina-bert-v3")
    ):
        if find("<mask>") >= 0:
            attributes[find("<mask>")] |= LSTRIP
    elif "phi-3" in name or "phi3" in name:
        if find("</s>") < 0:
            raise ArtifactInvalid("a Phi-3 vocabulary without </s>")
        attributes[(attributes & SPECIAL) != 0] |= RSTRIP
        attributes[find("</s>")] |= RSTRIP
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if find(text) < 0:
                raise ArtifactInvalid(f"a Phi-3 vocabulary without {text}")
            attributes[find(text)] &= ~np.uint16(RSTRIP)
    elif "modern-bert" in name and find("[MASK]") >= 0:
        attributes[find("[MASK]")] |= LSTRIP


def _decoded(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
