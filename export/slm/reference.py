"""The reference of the SLM's graphs: transformers' own model of the same checkpoint, over whole texts and trees.

transformers rounds activations to 8 bits in every linear layer; the 16-bit graphs keep the bounds of that rounding and
not its steps. So there are three ways to run it: as it is, with the bounds alone, and without either.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from export.checkpoint.slm_tensors import HEAD, PER_LAYER_TABLE, full_name, linear_shapes, table_shapes
from export.errors import CheckpointError
from export.graphs.clips import clip_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import Gemma4ForCausalLM

    from export.checkpoint.slm import SlmCheckpoint
    from export.graphs.tree_feeds import RowTree

Activations = Literal["rounded", "clipped", "free"]
"""What happens around linear layers: rounding to 8 bits within bounds, the bounds alone, nothing."""
_COMPOSITE_PREFIX = {r"^model\.language_model\.": "model."}


class TransformersSlm:
    """Gemma4ForCausalLM in float32 with the checkpoint's codes; logits are softcapped, as the model gives them.

    Raises CheckpointError where transformers does not find a weight or resolves its bits in another way than we do.
    """

    def __init__(self, checkpoint: SlmCheckpoint) -> None:
        self._model = _load(checkpoint)

    def tree_logits(
        self, text: Sequence[int], tree: RowTree, token_ids: Sequence[int], keep: np.ndarray, how: Activations
    ) -> np.ndarray:
        """Logits [rows, kept] of the tree's rows behind `text`: one forward of text and path for every leaf."""
        assert tree.stored == 0
        paths = _paths(tree)
        leaves = [row for row in range(len(paths)) if row not in tree.parents]
        logits = np.empty((len(paths), len(keep)), np.float32)
        kept = torch.tensor(keep)
        for leaf in leaves:
            path = paths[leaf]
            ids = torch.tensor([[*text, *(token_ids[row] for row in path)]])
            with torch.no_grad(), _activations(how), self._output_layer_of(kept):
                logits[path] = self._model(ids, use_cache=False, logits_to_keep=len(path)).logits[0].numpy()
        return logits

    @contextmanager
    def _output_layer_of(self, kept: torch.Tensor) -> Iterator[None]:
        """Cut the output layer to some rows: transformers unpacks all of a layer, gigabytes for this one."""
        whole = self._model.lm_head
        cut = copy.copy(whole)
        rows = {name: getattr(whole, name)[kept] for name in ("weight", "weight_scale")}
        cut._parameters = {
            **whole._parameters,
            **{name: torch.nn.Parameter(of_rows, requires_grad=False) for name, of_rows in rows.items()},
        }
        self._model.lm_head = cut
        try:
            yield
        finally:
            self._model.lm_head = whole


def _paths(tree: RowTree) -> list[list[int]]:
    paths: list[list[int]] = []
    for row, parent in enumerate(tree.parents):
        paths.append([*(paths[parent] if parent is not None else []), row])
    return paths


@contextmanager
def _activations(how: Activations) -> Iterator[None]:
    from transformers.integrations import gemma_quant

    original = gemma_quant.apply_srq

    def clipped(x: torch.Tensor, scale: torch.Tensor, bits: int = 8) -> torch.Tensor:
        return x if not scale else x.clamp(*clip_bounds(float(scale)))

    def free(x: torch.Tensor, scale: torch.Tensor, bits: int = 8) -> torch.Tensor:
        return x

    gemma_quant.apply_srq = {"rounded": original, "clipped": clipped, "free": free}[how]
    try:
        yield
    finally:
        gemma_quant.apply_srq = original


def _load(checkpoint: SlmCheckpoint) -> Gemma4ForCausalLM:
    from transformers import AutoConfig, Gemma4ForCausalLM

    folder = checkpoint.reader.folder
    whole = AutoConfig.from_pretrained(folder, local_files_only=True)
    config = whole.get_text_config()
    config.quantization_config = whole.quantization_config
    with _checked_layout(checkpoint):
        loaded: Any = Gemma4ForCausalLM.from_pretrained(
            folder,
            config=config,
            key_mapping=_COMPOSITE_PREFIX,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    model: Gemma4ForCausalLM = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise CheckpointError(
            f"{folder}: transformers does not find {len(missing)} weights, the first is {missing[0]!r}, and would run "
            "with random numbers"
        )
    model.eval()
    return model


@contextmanager
def _checked_layout(checkpoint: SlmCheckpoint) -> Iterator[None]:
    """Compare bits before transformers reads any weight: it ends in its own depths where a size does not fit.

    And let it load a per-layer table with a scale per layer and row: it computes with them, but makes room for one
    scale a row and refuses the file.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
    from transformers.quantizers.quantizer_gemma import GemmaQuantizer

    shape = checkpoint.reader.shape(f"{full_name(checkpoint.prefix, PER_LAYER_TABLE)}.embedding_scale")

    class Checked(GemmaQuantizer):
        def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
            super()._process_model_before_weight_loading(model, **kwargs)  # type: ignore[no-untyped-call]
            _require_same_bits(model, checkpoint)
            table = model.get_submodule(f"model.{PER_LAYER_TABLE}")
            scale = table.embedding_scale
            table.embedding_scale = torch.nn.Parameter(scale.new_ones(shape), requires_grad=False)

    original = AUTO_QUANTIZER_MAPPING["gemma"]
    AUTO_QUANTIZER_MAPPING["gemma"] = Checked
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING["gemma"] = original


def _require_same_bits(model: Gemma4ForCausalLM, checkpoint: SlmCheckpoint) -> None:
    bits = {module: checkpoint.bits_of(module) for module in linear_shapes(checkpoint.config)}
    bits |= {
        module: checkpoint.bits.table(full_name(checkpoint.prefix, module))
        for module in table_shapes(checkpoint.config)
    }
    for module, ours in bits.items():
        theirs = getattr(model.get_submodule(module if module == HEAD else f"model.{module}"), "num_bits", None)
        if ours != theirs:
            raise CheckpointError(f"{checkpoint.reader.folder}: {module} has {ours} bits, transformers takes {theirs}")
