"""Ids back to bytes: what each token contributes to generated text."""

from __future__ import annotations

from typing import Final

from synapse.artifacts.tokenizer.bpe import BYTE_ALPHABET, SPACE_MARK
from synapse.artifacts.tokenizer.vocabulary import BYTE, NORMAL, SPECIAL, Vocabulary

_BYTE_OF: Final = {character: bytes((byte,)) for byte, character in enumerate(BYTE_ALPHABET)}
_MARK: Final = SPACE_MARK.encode()


def piece_table(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every token, special ones included, equal to llama_token_to_piece with special=True."""
    decode = vocabulary.kind == "bpe" and not vocabulary.escape_whitespaces
    table: list[bytes] = []
    for token, text, attribute in zip(vocabulary.tokens, vocabulary.texts, vocabulary.attributes, strict=True):
        if attribute & SPECIAL or vocabulary.kind == "plamo2" and not attribute & BYTE:
            table.append(token)
        elif attribute & NORMAL:
            table.append(_decoded(token, text) if decode else token.replace(_MARK, b" "))
        elif attribute & BYTE:
            table.append(_byte(token))
        else:
            table.append(b"")
    return table


def _decoded(token: bytes, text: str | None) -> bytes:
    """A token in GPT-2's byte alphabet as the bytes it stands for. Characters outside it become the engine's marker."""
    if text is None:
        text = token.decode(errors="replace")
    try:
        return b"".join([_BYTE_OF[character] for character in text])
    except KeyError:
        return b"".join(
            _BYTE_OF.get(character) or b"[UNK_BYTE_0x%s%s]" % (character.encode().hex().encode(), token)
            for character in text
        )


def _byte(token: bytes) -> bytes:
    """`<0xNN>` as its byte, as strtol would read it."""
    try:
        return bytes((int(token[3:5], 16),))
    except ValueError:
        return b"\0"
