"""GBNF as llguidance gets it, against a recognizer that knows no lexer: both notations keep the language."""

from __future__ import annotations

import itertools
import random

import llguidance
import pytest

from synapse.artifacts.gbnf import Chars, Choice, Node, Reference, Repeat, Sequence, parse
from synapse.artifacts.gbnf_lark import gbnf_to_lark, over_characters
from synapse.artifacts.grammar import _byte_tokens

WORDS = ["".join(letters) for n in range(4) for letters in itertools.product("abc<>", repeat=n)]
WORDS += ["<a>b", "<<b>>", "<abc>c", "ab<>", "<ab><c>", "abcabc", "aabbcc", "abababc", "<<<a>>>", "ccccc"]


class Recognizer:
    """Which texts a grammar takes, by growing the set of what each rule can span until nothing is new."""

    def __init__(self, rules: dict[str, Node], text: str) -> None:
        self.rules, self.text = rules, text
        self.ends: dict[tuple[str, int], set[int]] = {
            (name, start): set() for name in rules for start in range(len(text) + 1)
        }

    def takes(self) -> bool:
        grown = True
        while grown:
            grown = False
            for (name, start), ends in self.ends.items():
                found = self._ends(self.rules[name], start)
                grown = grown or not found <= ends
                ends |= found
        return len(self.text) in self.ends["root", 0]

    def _ends(self, node: Node, start: int) -> set[int]:
        match node:
            case Chars(ranges, negated):
                if start == len(self.text):
                    return set()
                inside = any(low <= ord(self.text[start]) <= high for low, high in ranges)
                return {start + 1} if inside != negated else set()
            case Reference(name):
                return self.ends[name, start]
            case Choice(options):
                return set().union(*(self._ends(option, start) for option in options))
            case Sequence(items):
                here = {start}
                for item in items:
                    here = set().union(*(self._ends(item, at) for at in here))
                return here
            case Repeat(item, least, most):
                here, found = {start}, {start} if least == 0 else set()
                for count in range(1, (most if most is not None else least + len(self.text) + 1) + 1):
                    here = set().union(*(self._ends(item, at) for at in here))
                    found |= here if count >= least else set()
                return found
        raise AssertionError(node)


def accepted(lark: str) -> list[str]:
    matcher = llguidance.LLMatcher(_byte_tokens(), llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    found = []
    for word in WORDS:
        data = list(word.encode())
        if matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting():
            found.append(word)
        matcher.reset()
        assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
    return found


def random_grammar(dice: random.Random) -> str:
    names = ["root", "x", "y"]

    def part(depth: int) -> str:
        kind = dice.random()
        if depth <= 0 or kind < 0.3:
            return dice.choice(['"a"', '"b"', '"c"', "[ab]", "[^a]", '"ab"', '"abc"', '"bc"', "[bc]", '"<"', '">"'])
        if kind < 0.5:
            return dice.choice([*names, "z"])
        if kind < 0.7:
            return " ".join(part(depth - 1) for _ in range(dice.randint(2, 4)))
        if kind < 0.85:
            options = [part(depth - 1) for _ in range(dice.randint(2, 3))] + [""] * (dice.random() < 0.15)
            return f"({' | '.join(options)})"
        return f"({part(depth - 1)})" + dice.choice(["*", "+", "?", "{2}", "{1,2}", "{2,}", "{0}"])

    rules = [f"{name} ::= {part(3)} | {part(2)}" for name in names]
    return "\n".join([*rules, 'z ::= "<" root ">" | "a"' if dice.random() < 0.7 else 'z ::= "<" [ab]* ">" | "a"'])


@pytest.mark.parametrize("seed", range(3))
def test_random_grammars_keep_their_language(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(15):
        text = random_grammar(dice)
        rules = parse(text)
        wanted = [word for word in WORDS if Recognizer(rules, word).takes()]
        assert accepted(gbnf_to_lark(text)) == wanted, text
        assert accepted(over_characters(rules)) == wanted, text


def lexemes(text: str) -> list[str]:
    """The patterns of more than one character that the grammar is written with."""
    patterns = {line.partition(": ")[2] for line in gbnf_to_lark(text).splitlines() if line.startswith("C")}
    alone = {line.partition(": ")[2] for line in over_characters(parse(text)).splitlines() if line.startswith("C")}
    return sorted(patterns - alone)


def test_what_cannot_be_confused_is_one_lexeme() -> None:
    quoted = 'root ::= "[" root "]" | string\nstring ::= "q" [^q]* "q" " "*'
    assert lexemes(quoted) == ["/q([^q]){0,}q/"]


def test_what_can_be_confused_is_not() -> None:
    assert lexemes('root ::= "(" root ")" | [a-z] [a-z]* "!" | x\nx ::= "ab" root') == []
    assert lexemes('root ::= "(" root ")" | "a" root | "abc"') == []
    assert lexemes('root ::= "(" root ")" | "b" root | "abc"') == ["/abc/"]
