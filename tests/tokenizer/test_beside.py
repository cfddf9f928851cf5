"""A tokenizer.json beside a model is compared and never believed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from synapse.artifacts.gguf import read_header
from synapse.artifacts.tokenizer import differences_beside, read_vocabulary
from synapse.artifacts.tokenizer.beside import MAX_BYTES, differences
from tests import models


def model_and_document(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = models.tiny_llama(tmp_path / "m.gguf")
    tokens, types, merges = models.bpe_vocabulary()
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "special": True} for i, token in enumerate(tokens) if types[i] == models.CONTROL
        ],
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return path, document


def said(path: Path, document: object) -> list[str]:
    (path.parent / "tokenizer.json").write_text(document if isinstance(document, str) else json.dumps(document))
    header = read_header(path)
    return differences_beside(path, header, read_vocabulary(header))


def test_nothing_to_say_where_it_agrees_or_is_missing(tmp_path: Path) -> None:
    path, document = model_and_document(tmp_path)
    header = read_header(path)
    assert differences_beside(path, header, read_vocabulary(header)) == []
    assert said(path, document) == []


def test_every_difference_is_named(tmp_path: Path) -> None:
    path, document = model_and_document(tmp_path)
    document["model"]["vocab"]["zzz"] = document["model"]["vocab"].pop("the")
    document["model"]["vocab"]["new"] = 5000
    document["model"]["merges"][1] = ["h", "e"]
    document["added_tokens"].append({"id": 4, "content": models.bpe_vocabulary()[0][4], "special": True})
    document["truncation"] = {"max_length": 128}
    document["padding"] = {"strategy": {"Fixed": 10**9}}
    found = "\n".join(said(path, document))
    for words in ("'zzz' and not 'the'", "1 tokens of tokenizer.json are not", "merge 1 is 'h e' and not 'th e'",
                  "is special in tokenizer.json", "would cut texts", "would pad texts"):  # fmt: skip
        assert words in found


def test_another_type(tmp_path: Path) -> None:
    path, _ = model_and_document(tmp_path)
    found = said(path, {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}})
    assert found[0] == "tokenizer.json is a Unigram model, the GGUF a gpt2 one"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{" * 1000,
        '{"model":' + "[" * 100_000,
        '{"x":' + "[" * 100_000 + "]" * 100_000 + ',"model":{}}',
        '{"model":{"vocab":{"a":1e99}}}',
        '{"model":{"vocab":{"a":18446744073709551616}}}',
        '{"model":{"merges":[["a"]]}}',
        '{"model":{"vocab":{}},"added_tokens":[{"id":-1,"content":"x"},{"id":4000000000,"content":"y"}]}',
        '{"model":{"vocab":{"a":NaN}}}',
    ],
)
def test_hostile_content_is_only_a_difference(content: str, tmp_path: Path) -> None:
    path, _ = model_and_document(tmp_path)
    assert said(path, content)


def test_what_is_no_plain_file_of_bearable_size(tmp_path: Path) -> None:
    path, _ = model_and_document(tmp_path)
    header = read_header(path)
    vocabulary = read_vocabulary(header)
    beside = tmp_path / "tokenizer.json"
    with open(beside, "wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "over the limit" in differences_beside(path, header, vocabulary)[0]
    beside.unlink()
    os.mkfifo(beside)
    assert "not a regular file" in differences_beside(path, header, vocabulary)[0]
    beside.unlink()
    beside.mkdir()
    assert differences_beside(path, header, vocabulary)


def test_the_published_one_of_minilm(tmp_path: Path) -> None:
    """It would cut at 128 tokens and pad to as many, which is why nobody runs it."""
    header = read_header(models.minilm_f16_gguf())
    shutil.copy(models.minilm_dir() / "tokenizer.json", tmp_path)
    found = differences((tmp_path / "tokenizer.json").read_bytes(), header, read_vocabulary(header))
    assert len(found) == 2
    assert "cut" in found[0]
    assert "pad" in found[1]
