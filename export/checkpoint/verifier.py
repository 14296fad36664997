"""The verifier's input embeddings: the one thing that the phone needs of a 26B model.

An MTP head reads them scaled by sqrt(hidden_size), rounded as transformers rounds: scale and product in the declared
type. A folder that holds nothing but config.json and the shard with this table is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from export.checkpoint.config import CONFIG_FILE, read_config
from export.checkpoint.reader import CheckpointReader
from export.errors import CheckpointError
from quant.table import embedding_scale

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL_TYPES = ("gemma4", "gemma4_text")
TABLE_NAMES = ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight")
TABLE_PATTERN = r"^model\.(language_model\.)?embed_tokens\.weight$"
"""Finds the tensor of either name; for resolve_checkpoint, so that only its shard is fetched."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CHUNK_ROWS = 8192


class VerifierEmbeddings:
    """Scaled rows of a verifier's embedding table [vocab_size, hidden_size].

    Raises CheckpointError where the table is absent, quantised or not of the shape that config.json says.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / CONFIG_FILE
        config = read_config(folder, *MODEL_TYPES)
        text = config.get("text_config", config)
        if not isinstance(text, dict):
            raise CheckpointError(f"{path}: text_config holds a {type(text).__name__}, expected an object")
        self.hidden_size = _size(path, text, "hidden_size")
        self.vocab_size = _size(path, text, "vocab_size")
        self.reader = CheckpointReader(folder, only=TABLE_PATTERN)
        if not self.reader.names:
            raise CheckpointError(f"{folder}: holds no input embeddings; looked for {' and '.join(TABLE_NAMES)}")
        self.name = self.reader.names[0]
        self.reader.require({self.name: (self.vocab_size, self.hidden_size)})
        stored = self.reader.dtype(self.name)
        if stored not in _DTYPES.values():
            raise CheckpointError(f"{self.reader.file(self.name)}: tensor {self.name!r} is {stored}, expected floats")
        self.dtype = _declared_dtype(path, config, text) or stored
        self.scale = embedding_scale(self.hidden_size, self.dtype)

    def require_backbone(self, backbone_hidden_size: int) -> None:
        """Check that these are the embeddings a head with this `backbone_hidden_size` reads."""
        if self.hidden_size != backbone_hidden_size:
            raise CheckpointError(
                f"{self.reader.folder / CONFIG_FILE}: hidden_size is {self.hidden_size}, but the head was trained for "
                f"a verifier with {backbone_hidden_size}; head and verifier do not belong together"
            )

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Scaled embeddings float32 [n, hidden_size] of token ids int64 [n], equal to transformers' embed_tokens."""
        raw = self.reader.rows(self.name, ids).to(self.dtype)
        return (raw * self.scale).float()

    def chunks(self, ids: torch.Tensor, chunk_rows: int = _CHUNK_ROWS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(ids, scaled rows) in pieces of at most `chunk_rows`, so that a large keep set needs little memory."""
        for part in ids.split(chunk_rows):
            yield part, self.rows(part)


def _size(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r}, expected a positive whole number")
    return value


def _declared_dtype(path: Path, *configs: dict[str, Any]) -> torch.dtype | None:
    """The type transformers would load the weights in (`torch_dtype` is the older spelling); None if none is named."""
    for config in configs:
        value = config.get("dtype") or config.get("torch_dtype")
        if value is None:
            continue
        if not isinstance(value, str) or value not in _DTYPES:
            raise CheckpointError(f"{path}: dtype is {value!r}; known are {', '.join(_DTYPES)}")
        return _DTYPES[value]
    return None
