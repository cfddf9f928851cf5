"""A BERT forward pass in NumPy, f32, from the published safetensors: the independent judge of our embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumas.demo import read_safetensors

Array = NDArray[np.float32]


class Bert:
    """The published weights; `embed` pools one text's last hidden states."""

    def __init__(self, directory: Path, heads: int = 12, epsilon: float = 1e-12) -> None:
        self._w: dict[str, Any] = {k: np.array(v) for k, v in read_safetensors(directory / "model.safetensors")}
        self._heads, self._epsilon = heads, epsilon
        self._layers = len({name.split(".")[2] for name in self._w if name.startswith("encoder.layer.")})

    def embed(self, ids: Sequence[int], pooling: str = "mean") -> Array:
        """The pooled vector, normalized: f32[384]."""
        hidden = self.hidden(ids)
        pooled = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        return np.asarray(pooled / np.linalg.norm(pooled))

    def hidden(self, ids: Sequence[int]) -> Array:
        """The last hidden states: f32[len(ids), 384]."""
        w = self._w
        x = w["embeddings.word_embeddings.weight"][list(ids)]
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(x, "embeddings.LayerNorm")
        for i in range(self._layers):
            name = f"encoder.layer.{i}"
            x = self._norm(x + self._attention(x, f"{name}.attention"), f"{name}.attention.output.LayerNorm")
            inner = self._linear(x, f"{name}.intermediate.dense")
            inner = 0.5 * inner * (1 + _erf(inner / math.sqrt(2)))
            x = self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        return np.asarray(x, np.float32)

    def _attention(self, x: Array, name: str) -> Array:
        q, k, v = (self._split(self._linear(x, f"{name}.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        joined = (weights @ v).transpose(1, 0, 2).reshape(x.shape)
        return self._linear(joined, f"{name}.output.dense")

    def _split(self, x: Array) -> Array:
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)

    def _linear(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self._w[f"{name}.weight"].T + self._w[f"{name}.bias"])

    def _norm(self, x: Array, name: str) -> Array:
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + self._epsilon)
        return np.asarray(scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"])


def _erf(x: Array) -> Array:
    """The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26); math.erf would take a minute."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    terms = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.asarray(np.sign(x) * (1 - terms * np.exp(-x * x)))
