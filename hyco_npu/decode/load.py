"""Opens a verifier: Gemma 4 as everywhere in this project, or any other causal model that transformers knows.

The latter verifies trees of an SLM that has its vocabulary; only Gemma 4 has an MTP head to update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from calibration.errors import CalibrationError
from calibration.verifier import load_verifier
from export.checkpoint.config import read_config
from export.checkpoint.verifier import MODEL_TYPES
from export.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel


def is_gemma4(folder: Path) -> bool:
    """Whether the checkpoint is a Gemma 4 verifier. Raises CheckpointError for a folder without configuration."""
    return read_config(folder).get("model_type") in MODEL_TYPES


def load_any_verifier(folder: Path) -> PreTrainedModel:
    """The model in float32, as transformers loads it.

    Raises CheckpointError where transformers has no causal model for it, CalibrationError naming weights that it did
    not find and would make up.
    """
    if is_gemma4(folder):
        return load_verifier(folder)
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: transformers loads no causal language model from it ({error})") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise CalibrationError(
            f"{folder}: {len(missing)} weights of the verifier were not found, the first is {missing[0]!r}; "
            "transformers would run it with random numbers"
        )
    model.eval()
    return model
