"""Makes the data files beside it from llama.cpp's sources: `python -m synapse.artifacts.tokenizer.generate SRC`.

SRC is the directory that holds llama-vocab.cpp and unicode-data.cpp of the engine's pinned version (in the source
distribution of llama-cpp-python: vendor/llama.cpp/src). The tables are facts that equality needs: which pre-tokenizer
name means which expressions and flags, and which class the engine puts each code point in. Only data is taken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from synapse.artifacts.tokenizer import data

_CLASS_BITS: Final = {"N": 0x02, "L": 0x04, "M": 0x10, "P": 0x20, "S": 0x40, "C": 0x80}
_LITERAL: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_PAIR: Final = re.compile(r"\{0x([0-9A-Fa-f]+), 0x([0-9A-Fa-f]+)\}")
_TRIPLE: Final = re.compile(r"\{0x([0-9A-Fa-f]+), 0x([0-9A-Fa-f]+), 0x([0-9A-Fa-f]+)\}")


def main(arguments: list[str]) -> int:
    """Write both data files. Returns the exit status."""
    if len(arguments) != 1:
        print(f"usage: python -m {__spec__.name} SRC", file=sys.stderr)
        return 2
    source = Path(arguments[0])
    here = Path(__file__).parent
    vocabulary = (source / "llama-vocab.cpp").read_text(encoding="utf-8")
    unicode = (source / "unicode-data.cpp").read_text(encoding="utf-8")
    _write(here / data.GROUPS_FILE, pretokenizers(vocabulary))
    _write(here / data.UNICODE_FILE, unicode_tables(unicode))
    return 0


def pretokenizers(source: str) -> data.PreTokenizers:
    """The groups (engine's constant → its expressions) and the names (pre → group and flags) of llama-vocab.cpp."""
    constructor = _between(source, "switch (vocab.get_pre_type())", "std::vector<std::string> regex_exprs;")
    expressions: dict[str, tuple[list[str], bool]] = {}
    labels: list[str] = []
    for block in re.split(r"\bbreak;", constructor):
        labels = re.findall(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", block) or (["DEFAULT"] if "default:" in block else [])
        if not labels:
            continue
        code = re.sub(r"^\s*//.*$|(?<=,)\s*//.*$", "", block, flags=re.MULTILINE)
        listed = _between(code, "regex_exprs = {", "};")
        regexes = [_unescape(literal) for literal in _LITERAL.findall(listed)]
        for label in labels:
            expressions[label] = (regexes, "byte_encode = false" not in code)

    chain = _between(source, "if (tokenizer_pre.empty())", "unknown pre-tokenizer type")
    names: dict[str, data.PreName] = {}
    for block in chain.split("} else if (")[1:]:
        group = re.search(r"pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);", block)
        if group is None:
            raise SystemExit(f"no group in: {block[:200]}")
        for name in re.findall(r'tokenizer_pre == "([^"]+)"', block):
            names[name] = data.PreName(
                group=group[1],
                ignore_merges="ignore_merges = true" in block,
                add_bos="add_bos = true" in block,
                no_bos="special_bos_id = LLAMA_TOKEN_NULL" in block,
                escape_whitespaces="escape_whitespaces = true" in block,
                keep_case="normalizer_opts.lowercase = false" in block,
                clean_spaces="clean_spaces = false" not in block,
            )

    # Engine constants that share their expressions are one group, named after the first pre-tokenizer that uses it.
    groups: dict[str, data.PreGroup] = {}
    chosen: dict[tuple[tuple[str, ...], bool], str] = {}
    for name, entry in names.items():
        regexes, byte_encode = expressions.get(entry.group) or expressions["DEFAULT"]
        key = (tuple(regexes), byte_encode)
        group_name = chosen.setdefault(key, name)
        groups[group_name] = data.PreGroup(regexes=regexes, byte_encode=byte_encode)
        names[name] = msgspec.structs.replace(entry, group=group_name, engine=entry.group)
    return data.PreTokenizers(names=names, groups=groups)


def unicode_tables(source: str) -> data.UnicodeTables:
    """Classes as ranges, white space, lower case and base characters of unicode-data.cpp."""
    starts = [(int(a, 16), int(b, 16)) for a, b in _PAIR.findall(_table(source, "unicode_ranges_flags"))]
    classes = {
        name: _ranges(
            (start, following - 1)
            for (start, flags), (following, _) in zip(starts, starts[1:], strict=False)
            if flags & bit
        )
        for name, bit in _CLASS_BITS.items()
    }
    spaces = sorted(
        int(value, 16) for value in re.findall(r"0x([0-9A-Fa-f]+)", _table(source, "unicode_set_whitespace"))
    )
    lower = [(int(a, 16), int(b, 16)) for a, b in _PAIR.findall(_table(source, "unicode_map_lowercase"))]
    base = [(int(a, 16), int(b, 16), int(c, 16)) for a, b, c in _TRIPLE.findall(_table(source, "unicode_ranges_nfd"))]
    return data.UnicodeTables(classes=classes, spaces=spaces, lower=lower, base=base)


def _table(source: str, name: str) -> str:
    return _between(source, f" {name} = {{", "\n};")


def _between(text: str, begin: str, end: str) -> str:
    at = text.index(begin) + len(begin)
    return text[at : text.index(end, at)]


def _unescape(literal: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), literal, flags=re.DOTALL)


def _ranges(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(_joined(parts))


def _joined(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for low, high in parts:
        if current is not None and low == current[1] + 1:
            current = (current[0], high)
            continue
        if current is not None:
            yield current
        current = (low, high)
    if current is not None:
        yield current


def _write(path: Path, value: msgspec.Struct) -> None:
    text = msgspec.json.encode(value)
    # One entry a line where that makes a change readable.
    path.write_bytes(re.sub(rb"(\"[\w.\-]+\":\{|\"(?:spaces|lower|base)\":)", rb"\n\1", text) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
