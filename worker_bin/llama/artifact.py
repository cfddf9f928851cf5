"""The model file: opened once, digested and read through the same descriptor that the engine maps."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from synapse.artifacts.digest import open_artifact, sha256_of
from synapse.artifacts.gguf import ArtifactInvalid, Header, read_header
from synapse.artifacts.model import describe
from synapse.wire.messages import ModelInfo
from worker_bin.engine import Refused

_MAX_BLOCKS: Final = 512
"""llama.cpp asserts on more."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Artifact:
    """A verified model file. `path` names the very file that was digested, for as long as the block lasts."""

    path: str
    header: Header
    info: ModelInfo


@contextmanager
def open_verified(path: str, digest: str) -> Iterator[Artifact]:
    """Open a GGUF file, compare its SHA-256 and read its header. Inside the block the engine may map `Artifact.path`.

    On Linux that path is /proc/self/fd/N: what is mapped is what was digested, whatever happens to the name meanwhile.
    Elsewhere the name is compared with the descriptor when the block ends.
    Raises: Refused(artifact_invalid). Blocks: for the reading of the whole file.
    """
    if not _DIGEST.fullmatch(digest):
        raise Refused("artifact_invalid", "the digest is not sha256: and 64 lower-case hex digits")
    try:
        with open_artifact(path) as descriptor:
            if sha256_of(descriptor) != digest:
                raise ArtifactInvalid("the file's SHA-256 is not the one that was announced")
            header = read_header(descriptor)
            if header.shards > 1:
                raise ArtifactInvalid(f"the model is split into {header.shards} files: merge them first")
            _check_metadata(header)
            on_linux = sys.platform == "linux"
            yield Artifact(f"/proc/self/fd/{descriptor}" if on_linux else path, header, describe(header, digest))
            if not on_linux and not os.path.samestat(os.stat(path), os.fstat(descriptor)):
                raise ArtifactInvalid("the file was replaced while it was loaded")
    except ArtifactInvalid as error:
        raise Refused("artifact_invalid", str(error)) from error


def _check_metadata(header: Header) -> None:
    """Refuse what llama.cpp takes from a header and aborts on, at load or only at the first decode.

    Raises: ArtifactInvalid.
    """
    blocks = header.integer(f"{header.architecture}.block_count")
    if not 1 <= blocks <= _MAX_BLOCKS:
        raise ArtifactInvalid(f"the model has {blocks} blocks")
    for key, value in header.metadata.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ArtifactInvalid(f"key {key!r} is {value}")


def check_reranker(artifact: Artifact) -> None:
    """Refuse a reranker whose scores would mean nothing (D10).

    Raises: Refused(artifact_invalid) without a ranking head (llama.cpp would score all the same), with several outputs,
    or where the pair needs a prompt template that is not built here.
    """
    if not artifact.info.ranking_head:
        raise Refused("artifact_invalid", "the model has no ranking head (cls.output.weight): it cannot rerank")
    outputs = artifact.header.tensors["cls.output.weight"].dims
    if len(outputs) > 1 and outputs[1] != 1:
        raise Refused("artifact_invalid", f"the head has {outputs[1]} outputs: a classifier, not a reranker")
    if not artifact.info.faithful_pairs:
        raise Refused(
            "artifact_invalid",
            f"a reranker of type {artifact.info.architecture} wants its pairs in a prompt template that is not "
            "reproduced here",
        )
