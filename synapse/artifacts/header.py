"""What a GGUF header says, once it is read: metadata, tensors, and the facts that others ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""Type id → (name, elements of a block, bytes of a block)."""

_POOLING: Final = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}

Scalar = bool | int | float | str
Numbers = NDArray[Any]
Value = Scalar | list[bytes] | Numbers
"""A string is a str (bytes that are no UTF-8 are replaced), an array of strings a list of bytes, others are numpy."""


class ArtifactInvalid(ValueError):
    """The file is not a model that can be served. The message names what is wrong and where."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as the header describes it. `offset`: bytes from the start of the data. `nbytes`: without padding."""

    name: str
    dims: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """A GGUF header that passed every check.

    Attributes:
        metadata: key → value.
        tensors: name → tensor, in the file's order.
        data_offset: bytes from the start of the file to the tensors' data.
        size: of the whole file, in bytes.
    """

    version: int
    metadata: dict[str, Value] = field(repr=False)
    tensors: dict[str, Tensor] = field(repr=False)
    data_offset: int
    size: int

    # --- typed access; a value of another type is the file's fault ----------------------------------------------------

    def text(self, key: str, default: str = "") -> str:
        """The string at `key`. Raises: ArtifactInvalid if it is no string."""
        value = self.metadata.get(key, default)
        return value if isinstance(value, str) else _wrong(key, "a string")

    def integer(self, key: str, default: int = 0) -> int:
        """The integer at `key`. Raises: ArtifactInvalid if it is none."""
        value = self.metadata.get(key, default)
        return value if isinstance(value, int) and not isinstance(value, bool) else _wrong(key, "an integer")

    def flag(self, key: str, default: bool = False) -> bool:
        """The bool at `key`. Raises: ArtifactInvalid if it is none."""
        value = self.metadata.get(key, default)
        return value if isinstance(value, bool) else _wrong(key, "a bool")

    def strings(self, key: str) -> list[bytes] | None:
        """The array of strings at `key`, None if there is none. Raises: ArtifactInvalid if it is something else."""
        value = self.metadata.get(key)
        return value if value is None or isinstance(value, list) else _wrong(key, "an array of strings")

    def numbers(self, key: str, *dtypes: str) -> Numbers | None:
        """The array at `key`, None if there is none. Raises: ArtifactInvalid if its type is none of `dtypes` ("i4")."""
        value = self.metadata.get(key)
        if value is None or (isinstance(value, np.ndarray) and value.dtype.str[1:] in dtypes):
            return value
        return _wrong(key, f"an array of {' or '.join(dtypes)}")

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        return self.text("general.name")

    @property
    def context_length(self) -> int:
        """Tokens, as trained; 0 where the file does not say."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def embedding_length(self) -> int:
        return self.integer(f"{self.architecture}.embedding_length")

    @property
    def pooling(self) -> str | None:
        """none, mean, cls, last or rank; None where the file does not say."""
        key = f"{self.architecture}.pooling_type"
        return _POOLING.get(self.integer(key)) if key in self.metadata else None

    @property
    def causal(self) -> bool:
        """False for encoders."""
        return self.flag(f"{self.architecture}.attention.causal", True)

    @property
    def ranking_head(self) -> bool:
        """It holds the head that scores a query and a document."""
        return "cls.output.weight" in self.tensors

    @property
    def weights(self) -> str:
        """The tensor type that holds most of the data, as in `Q4_1`; "" without tensors."""
        total = self.tensor_types
        return max(total, key=total.__getitem__, default="")

    @property
    def tensor_types(self) -> dict[str, int]:
        """Tensor type → bytes of data in it. Counted, not declared."""
        total: dict[str, int] = {}
        for tensor in self.tensors.values():
            total[tensor.type] = total.get(tensor.type, 0) + tensor.nbytes
        return total

    @property
    def shards(self) -> int:
        """How many files the model is split into."""
        return max(1, self.integer("split.count", 1))

    @property
    def chat_template(self) -> str | None:
        """The default chat template, None without one."""
        return self.text("tokenizer.chat_template") or None

    @property
    def chat_templates(self) -> dict[str, str]:
        """The named templates beside the default one ("tool_use", "rag", ...)."""
        prefix = "tokenizer.chat_template."
        return {key.removeprefix(prefix): self.text(key) for key in self.metadata if key.startswith(prefix)}

    @property
    def tokenizer_model(self) -> str:
        return self.text("tokenizer.ggml.model")

    @property
    def vocabulary(self) -> int:
        """How many tokens it lists."""
        return len(self.strings("tokenizer.ggml.tokens") or ())


def _wrong(key: str, wanted: str) -> NoReturn:
    raise ArtifactInvalid(f"key {key!r} is not {wanted}")
