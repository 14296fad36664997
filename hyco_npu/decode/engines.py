"""The drafters' graphs in torch, in float32: the modules that export traces, behind the graphs' interfaces.

The head's weights are rounded to a number of bits by the export's own functions, activations stay floats; the SLM has
its checkpoint's codes and activation bounds. Quantised graphs on ONNX Runtime or on the simulator are opened from
bundles (models.py).
"""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from export.checkpoint.slm_tensors import HEAD, linear_shapes, vector_shapes
from export.graphs.clips import add_clips
from export.graphs.mtp import MtpInputs, load_mtp_head
from export.graphs.slm import SlmInputs, load_slm
from hyco_npu.decode.slots import without_empty_slots
from hyco_npu.qat.options import WEIGHT_TYPES
from quant.weights import Clip, quantize_weight

if TYPE_CHECKING:
    from typing import Protocol

    import numpy as np

    from export.checkpoint.mtp import MtpCheckpoint
    from export.checkpoint.slm import SlmCheckpoint
    from export.engines.graph_io import Feed
    from hyco_npu.decode.clock import Clock

    class Runnable(Protocol):
        """A graph of either drafter."""

        def run(self, feed: Feed) -> Feed:
            """One step or pass."""
            ...


UNROUNDED = 16


class TimedGraph:
    """A graph whose runs are booked to a phase of the clock."""

    def __init__(self, graph: Runnable, clock: Clock, phase: str) -> None:
        self._graph, self._clock, self._phase = graph, clock, phase
        self.inputs: tuple[str, ...] = getattr(graph, "inputs", ())

    def run(self, feed: Feed) -> Feed:
        """The graph's own result."""
        with self._clock.phase(self._phase):
            return self._graph.run(feed)


class TorchMtp:
    """The head as a step graph over the token ids `keep` [columns]; `bits` 16 leaves the weights as released."""

    def __init__(self, checkpoint: MtpCheckpoint, keep: np.ndarray, bits: int) -> None:
        head = load_mtp_head(checkpoint.config, checkpoint.state_dict())
        rows = head.lm_head.weight[torch.tensor(keep)]
        head.lm_head = torch.nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
        head.lm_head.weight = torch.nn.Parameter(rows, requires_grad=False)
        if bits != UNROUNDED:
            for module in head.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.copy_(quantize_weight(module.weight, WEIGHT_TYPES[bits], Clip.MSE).dequantize())
        self.module = head
        self._names = tuple(MtpInputs(checkpoint.config, 1).shapes())

    def run(self, feed: Feed) -> Feed:
        """One step."""
        tensors = _tensors(without_empty_slots(feed, rows=0))
        with torch.inference_mode():
            hidden, logits = self.module(*(tensors[name] for name in self._names))
        return {"next_hidden": hidden.numpy(), "logits_0": logits.numpy()}


class TorchSlm:
    """The SLM as a draft and prefill graph of `rows` rows over the token ids `keep` [columns]; caches are float32."""

    def __init__(self, checkpoint: SlmCheckpoint, keep: np.ndarray, rows: int) -> None:
        config = replace(checkpoint.config, vocab_size=len(keep))
        state = {name: checkpoint.floats(name) for name in vector_shapes(config)}
        for module in linear_shapes(config):
            of_head = torch.tensor(keep) if module == HEAD else None
            coded = checkpoint.bits_of(module) is not None
            weight = checkpoint.weight(module, of_head).dequantize() if coded else checkpoint.floats(f"{module}.weight")
            state[f"{module}.weight"] = weight
        self.module = load_slm(config, state)
        add_clips(self.module, {module: checkpoint.activation_scales(module) for module in linear_shapes(config)})
        self.rows = rows
        boundary = SlmInputs(config, rows, 1)
        self.inputs = tuple(boundary.shapes())
        self._outputs = tuple(boundary.output_shapes())

    def with_rows(self, rows: int) -> TorchSlm:
        """The same model as a graph of another number of rows."""
        other = copy(self)
        other.rows = rows
        return other

    def run(self, feed: Feed) -> Feed:
        """One pass."""
        tensors = _tensors(without_empty_slots(feed, self.rows))
        with torch.inference_mode():
            outputs = self.module(*(tensors[name] for name in self.inputs))
        results = zip(self._outputs, outputs, strict=True)
        return {"logits_0" if name == "logits" else name: output.numpy() for name, output in results}


def _tensors(feed: Feed) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        # windows are handed out read-only, and nothing here writes
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(array) for name, array in feed.items()}
