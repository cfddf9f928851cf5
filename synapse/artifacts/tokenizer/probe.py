"""The texts that a built tokenizer has to show itself equal to the engine on, before it is used for a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from synapse.artifacts.gguf import Header
from synapse.artifacts.tokenizer.vocabulary import Vocabulary, read_vocabulary

_SEED: Final = 20
_MAX_SPECIALS: Final = 24
_WORDS: Final = (
    "The quick brown fox", "it's", "We'LL", "don't", "I'M", "they've", "3.14159", "1,000,000", "$5.99",
    "camelCaseWord", "snake_case", "http://example.com/a?b=1&c=%20", "foo@example.org", "naïve", "Ångström",
    "ĳ", "ß", "ẞ", "İstanbul", "ﬁ", "Ⅷ", "²³", "½", "①", "㎏", "ſ", "'ſ", "K", "我想在1314151天",
    "日本語テスト", "カタカナ", "ｶﾞ", "한국어", "각", "中文，标点。", "\u3000全角０１２", "مرحبا", "١٢٣٤",
    "שלום", "נ\u05b4ק\u05bcו\u05bcד", "हिन\u094dदी", "தமிழ\u0bcd", "১২৩", "ไทยภาษา", "ខ\u17d2មែរ", "😀",
    "😶\u200d🌫\ufe0f", "👩\u200d👩\u200d👧\u200d👦", "🇫🇷🇺🇸", "👍🏽", "#\ufe0f\u20e3", "e\u0301",
    "a\u0308\u0323", "\u0301x", "か\u3099", "ﷺ", "™", "…", "——", "“quoted”", "▁", "a▁b", "Ġ", "Ċ",
    "##ing", "<0x0A>", "a<0x41>b", "[EMPTY_3]", "[UNK]", "\u200b", "\ufeff", "�", "\x00", "\x07", "\x1c",
    "\x7f", "\ue000", "\U000e0041", "\U0010ffff", "𒍅", "\u0378",
)  # fmt: skip
_CODE: Final = (
    "def f(x):\n    return x**2  # comment\n", "for (int i=0;i<10;++i){\n\tprintf(\"%d\\n\", i);\n}",
    "a+=b; c<<=2; d&&e||!f", "<p class=\"a\">&nbsp;</p>", "SELECT * FROM t WHERE a='b';",
    "{\"k\": [1, 2.5, null], \"s\": \"\\u00e9\"}", "```py\nx\n```\n---\n",
    "#include <stdio.h>\r\n\r\nint main(void) { return 0; }\r\n", "\\frac{a}{b} $x_i^2$",
)  # fmt: skip
_SPACES: Final = " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2009\u2028\u2029\u202f\u205f\u3000"
_BETWEEN: Final = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "", ", ", ". ", "\u00a0", "\r\n", " \n ")
_PLANES: Final = ((0x20, 0x7E), (0x80, 0x2FF), (0x300, 0xFFF), (0x1000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF))


def specials_of(source: Vocabulary | Header) -> list[str]:
    """The texts of the special tokens, in the order of their ids. Raises: ArtifactInvalid (for a header)."""
    vocabulary = read_vocabulary(source) if isinstance(source, Header) else source
    return [text for token_id in vocabulary.special_ids if (text := vocabulary.texts[token_id])]


def probe_corpus(source: Vocabulary | Header, seed: int = _SEED) -> list[str]:
    """Some 700 texts that bring out differences: the same for the same vocabulary and seed; 30 kB in all.

    White space, digits, scripts, marks, emoji, control characters, unassigned code points, code, the texts of special
    tokens whole and in pieces, and tokens of the vocabulary itself. No run is long enough to end the engine.
    Raises: ArtifactInvalid (for a header).
    """
    vocabulary = read_vocabulary(source) if isinstance(source, Header) else source
    return list(dict.fromkeys(_texts(vocabulary, random.Random(seed))))


def _texts(vocabulary: Vocabulary, rng: random.Random) -> Iterator[str]:
    yield from ("", " ", "'", "''")
    yield from _WORDS
    yield from _CODE
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 65, 130, 257, 515):
        yield from (" " * length, " " * length + "a", "a" + " " * length, "\n" * min(length, 40), "1" * length)
        yield from ("=" * min(length, 70), "\t" * min(length, 20), "a" * length, "が" * min(length, 30))
    for space in _SPACES:
        yield from (space, space * 3 + "x", f"a{space}b", f"a {space}1{space}.{space} {space}")
    for _ in range(100):
        yield "".join(rng.choice(_WORDS + _CODE) + rng.choice(_BETWEEN) for _ in range(rng.randint(2, 12)))
    for low, high in _PLANES:
        for _ in range(12):
            yield "".join(chr(rng.randint(low, high)) + rng.choice(("", "", " ", "a", "1")) for _ in range(20))

    readable = [text for text in rng.sample(vocabulary.texts, min(len(vocabulary), 400)) if text]
    for _ in range(60):
        yield "".join(rng.choice(readable) + rng.choice(_BETWEEN) for _ in range(rng.randint(1, 8)))[:400]
    specials = [text for text in specials_of(vocabulary) if len(text) <= 200]
    if not specials:
        return
    for text in rng.sample(specials, min(len(specials), _MAX_SPECIALS)):
        yield from (text, text + text, f" {text} ", f"a{text}b", f"{text}\n x", f"x \n{text}", text[:-1], text[1:])
    for _ in range(60):
        parts = (rng.choice(specials), rng.choice(_WORDS), " ", "\n", rng.choice(specials)[: rng.randint(1, 5)])
        yield "".join(rng.choice(parts) + rng.choice(_BETWEEN) for _ in range(rng.randint(1, 8)))
