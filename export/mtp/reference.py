"""Two slow references of the step graph: transformers' own head, and the torch head with fake-quantised weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from export.graphs.feeds import MASKED
from export.graphs.mtp import KINDS, MtpInputs
from quant.fake import fake_quantize_weight

if TYPE_CHECKING:
    from pathlib import Path

    from export.engines.graph_io import Feed
    from export.graphs.mtp import MtpHead
    from quant.weights import QuantizedWeight


class TransformersHead:
    """transformers' Gemma4AssistantForCausalLM behind the step graph's interface, over the keep set's columns.

    It knows no window slots: the masked ones are cut away before the call. It computes cosines itself: set
    `position` before every call, for a feed holds cosines, not positions.
    """

    def __init__(self, folder: Path, keep: np.ndarray) -> None:
        from transformers import Gemma4AssistantForCausalLM

        self._model = Gemma4AssistantForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if self._model.config.use_ordered_embeddings:
            # The graph scores every kept token; compare with the dense product, not with the centroid shortcut.
            self._model.config.use_ordered_embeddings = False
        self._keep = torch.from_numpy(keep)
        self.position = 0

    def run(self, feed: Feed) -> Feed:
        """One step at `self.position`."""
        shared = {}
        for kind in KINDS:
            visible = torch.from_numpy(feed[f"mask_{kind}"][0, 0, 0] > MASKED / 2)
            keys = torch.from_numpy(feed[f"keys_{kind}"]).transpose(2, 3)[:, :, visible]
            values = torch.from_numpy(feed[f"values_{kind}"])[:, :, visible]
            shared[f"{kind}_attention"] = (keys, values)
        embeds = torch.from_numpy(np.concatenate([feed["embedding"], feed["hidden"]], -1)[0])
        with torch.no_grad():
            out = self._model(
                inputs_embeds=embeds, position_ids=torch.tensor([[self.position]]), shared_kv_states=shared
            )
        return {
            "next_hidden": out.last_hidden_state[None].numpy(),
            "logits_0": out.logits[..., self._keep][None].numpy(),
        }


class FakeQuantizedHead:
    """The static torch module with weights rounded by the very function that QAT trains through; float activations."""

    def __init__(self, head: MtpHead, weights: dict[str, QuantizedWeight], keep: np.ndarray, window: int) -> None:
        self._inputs = list(MtpInputs(head.config, window).shapes())
        overrides = {}
        for name, parameter in head.named_parameters():
            if name == "lm_head.weight":
                scales = torch.cat([weights[chunk].scale for chunk in _chunks_of_head(weights)])
                kept = parameter[torch.from_numpy(keep)]
                overrides[name] = fake_quantize_weight(kept, scales, weights[_chunks_of_head(weights)[0]].dtype)
            elif name in weights:
                overrides[name] = fake_quantize_weight(parameter, weights[name].scale, weights[name].dtype)
        self._head, self._overrides = head, overrides

    def run(self, feed: Feed) -> Feed:
        arguments = tuple(torch.from_numpy(feed[name]) for name in self._inputs)
        with torch.no_grad():
            hidden, logits = torch.func.functional_call(self._head, self._overrides, arguments)
        return {"next_hidden": hidden.numpy(), "logits_0": logits.numpy()}


def _chunks_of_head(weights: dict[str, QuantizedWeight]) -> list[str]:
    chunks = [name for name in weights if name.startswith("lm_head.weight")]
    return sorted(chunks, key=lambda name: int(name.rsplit(".", 1)[1]))
