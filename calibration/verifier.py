"""The verifier as transformers runs it: the numerical reference that states and texts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from calibration.errors import CalibrationError

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Gemma4ForCausalLM

_COMPOSITE_PREFIX = {r"^model\.language_model\.": "model."}


def load_verifier(folder: Path) -> Gemma4ForCausalLM:
    """The text model of the checkpoint at `folder` in float32; a multimodal checkpoint gives its language part.

    transformers fills weights that it does not find with random numbers and goes on: here that is a CalibrationError
    naming them.
    """
    from transformers import AutoConfig, Gemma4ForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    loaded: Any = Gemma4ForCausalLM.from_pretrained(
        folder,
        config=config,
        key_mapping=_COMPOSITE_PREFIX,
        dtype=torch.float32,
        local_files_only=True,
        output_loading_info=True,
    )
    model: Gemma4ForCausalLM = loaded[0]
    report: dict[str, set[str]] = loaded[1]
    missing = sorted(report["missing_keys"])
    if missing:
        raise CalibrationError(
            f"{folder}: {len(missing)} weights of the verifier were not found, the first is {missing[0]!r}; "
            "transformers would run it with random numbers"
        )
    model.eval()
    return model
