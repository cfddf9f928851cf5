"""Vocabulary-only GGUF files that tests make on the spot."""

from __future__ import annotations

from pathlib import Path

from tests.models import BYTE, CHATML, CONTROL, NORMAL, UNKNOWN, bpe_vocabulary


def tied_spm(path: Path, *, chat_template: str = CHATML) -> Path:
    """A SentencePiece vocabulary whose scores tie, so that only the engine knows which merge comes first."""
    import gguf

    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    types = [UNKNOWN] + [CONTROL] * 4
    tokens += [f"<0x{value:02X}>" for value in range(256)]
    types += [BYTE] * 256
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz.,!-", "ab", "bc", "abc", "▁a", "▁ab", "th", "he", "the", "--", "---"]
    tokens += words
    types += [NORMAL] * len(words)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tied")
    writer.add_context_length(128)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores([-1.0] * len(tokens))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(chat_template)
    return _written(writer, path)


def nameless_bpe(path: Path) -> Path:
    """A byte-level BPE vocabulary with two fill-in-the-middle candidates: which one it is, only the engine knows."""
    import gguf

    tokens, types, merges = bpe_vocabulary()
    tokens += ["<fim_prefix>", "<|fim_prefix|>"]
    types += [NORMAL, NORMAL]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("nameless")
    writer.add_context_length(128)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    return _written(writer, path)


def _written(writer, path: Path) -> Path:  # type: ignore[no-untyped-def]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
