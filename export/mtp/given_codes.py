"""Codes that come with a trained head, under the names that its weights have in the cut graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from export.checkpoint.weight_codes import WEIGHT_CODES_FILE, read_weight_codes
from export.passes.chunk_head import chunk_bounds
from quant.errors import UsageError
from quant.weights import QuantizedWeight

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from export.graphs.mtp import MtpHead

_OUTPUT_LAYER = "lm_head.weight"


def given_codes(folder: Path, head: MtpHead, keep: np.ndarray, bits: int) -> dict[str, QuantizedWeight]:
    """Codes of every weight of the graph, the output layer's cut to the token ids `keep` and into chunks.

    Empty for a checkpoint without codes. Raises UsageError where they have other `bits`, CheckpointError where they are
    not this head's.
    """
    shapes = {name: tuple(weight.shape) for name, weight in head.named_parameters() if weight.ndim == 2}
    codes = read_weight_codes(folder, shapes)
    if codes is None:
        return {}
    output = codes.pop(_OUTPUT_LAYER)
    if output.dtype.bits != bits:
        raise UsageError(
            f"{folder} was trained for {output.dtype.bits} bits, --bits {bits} would round it again; export it with "
            f"--bits {output.dtype.bits}, or remove its {WEIGHT_CODES_FILE}"
        )
    for index, (start, end) in enumerate(chunk_bounds(len(keep))):
        rows = torch.tensor(keep[start:end])
        codes[f"{_OUTPUT_LAYER}.kept.{index}"] = QuantizedWeight(output.codes[rows], output.scale[rows], output.dtype)
    return codes
