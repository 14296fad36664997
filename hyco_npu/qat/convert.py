"""The checkpoint that training leaves: float weights in transformers' names, and beside them the codes for export.

Everything that was not trained keeps its bytes and its type. Codes are round(w / s) of the stored weights, so that both
files say the same.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from export.checkpoint.config import CONFIG_FILE
from export.checkpoint.weight_codes import save_weight_codes
from hyco_npu.qat.chain import OUTPUT_LAYER
from quant.errors import HycoError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from export.checkpoint.mtp import MtpCheckpoint
    from hyco_npu.qat.train import Student
    from quant.weights import QuantizedWeight

_EMBEDDING = "model.embed_tokens.weight"
_GENERATION_FILE = "generation_config.json"
_OUTSIDE_MODEL = ("pre_projection.", "post_projection.")


def checkpoint_name(name: str) -> str:
    """transformers' name of a linear layer's weight in the static module; the output layer is the tied embedding."""
    if name == OUTPUT_LAYER:
        return _EMBEDDING
    return name if name.startswith(_OUTSIDE_MODEL) else f"model.{name}"


def save_checkpoint(folder: Path, source: MtpCheckpoint, source_folder: Path, student: Student) -> None:
    """Write the trained head into the empty `folder`; `source` is the head that it was trained from.

    Raises HycoError where the codes do not give the very weights that training saw.
    """
    codes = student.codes()
    require_same_weights(student, codes)
    trained = {checkpoint_name(name): weight.detach().cpu() for name, weight in student.weights.items()}
    frozen = {name: source.reader.load(name) for name in source.config.tensor_shapes() if name not in trained}
    path = folder / "model.safetensors"
    save_file(frozen | trained, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes 0600
    save_weight_codes(folder, codes)
    config = json.loads((source_folder / CONFIG_FILE).read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (source_folder / _GENERATION_FILE).is_file():
        shutil.copyfile(source_folder / _GENERATION_FILE, folder / _GENERATION_FILE)


def require_same_weights(student: Student, codes: Mapping[str, QuantizedWeight]) -> None:
    """Raise HycoError unless codes times scale are bit for bit the weights of the training's forward pass."""
    with torch.no_grad():
        for name, rounded in student.rounded().items():
            if not torch.equal(codes[name].dequantize(), rounded.cpu()):
                raise HycoError(f"{name}: the codes do not give the weights that were trained; please report this")
