"""The drafters' graphs in float32, in torch and traced: the modules that export traces, behind the graphs' interfaces.

The head's weights are rounded to a number of bits by the export's own functions, activations stay floats; the SLM has
its checkpoint's codes and activation bounds. Quantised graphs on ONNX Runtime or on the simulator are opened from
bundles (models.py).
"""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch

from export.checkpoint.slm_tensors import HEAD, linear_shapes, vector_shapes
from export.graphs.clips import add_clips
from export.graphs.feeds import MASKED
from export.graphs.mtp import MtpInputs, load_mtp_head
from export.graphs.slm import SlmInputs, load_slm
from export.graphs.trace import trace_module
from hyco_npu.qat.options import WEIGHT_TYPES
from quant.errors import UsageError
from quant.weights import Clip, quantize_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

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
_LARGEST_TRACED = 1 << 30
_SLOT_BLOCK = 64


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
        tensors = _without_empty_slots(feed, keys="keys_", values="values_", rows=0)
        with torch.inference_mode():
            hidden, logits = self.module(*(tensors[name] for name in self._names))
        return {"next_hidden": hidden.numpy(), "logits_0": logits.numpy()}


class OnnxGraph:
    """A float32 module of fixed shapes, traced and run by ONNX Runtime: several times faster than torch, op by op.

    Raises UsageError for a module that is too large to be handed over in memory.
    """

    def __init__(self, module: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], outputs: Sequence[str]) -> None:
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        if size > _LARGEST_TRACED:
            raise UsageError(
                f"the drafter's weights take {size:,} bytes in float32; use --engine torch, qdq or simulator"
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # torch's threads work between two runs of this session
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        model = ir.to_proto(trace_module(module, shapes, outputs)).SerializeToString()
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = tuple(shapes)
        self._outputs = tuple(outputs)

    @classmethod
    def of_slm(cls, slm: TorchSlm, window: int) -> OnnxGraph:
        """The SLM's draft graph with `window` slots."""
        boundary = SlmInputs(slm.module.config, slm.rows, window)
        outputs = ("logits_0" if name == "logits" else name for name in boundary.output_shapes())
        return cls(slm.module, boundary.shapes(), tuple(outputs))

    def run(self, feed: Feed) -> Feed:
        """One step or pass."""
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))


class OnnxMtp:
    """The head's step graph, traced for each number of slots that it is fed with; for `window` slots at once."""

    def __init__(self, head: TorchMtp, window: int | None) -> None:
        self._module = head.module
        self._graphs: dict[int, OnnxGraph] = {}
        if window is not None:
            self._graph(window)

    def run(self, feed: Feed) -> Feed:
        """One step."""
        return self._graph(feed["mask_full"].shape[-1]).run(feed)

    def _graph(self, window: int) -> OnnxGraph:
        if window not in self._graphs:
            shapes = MtpInputs(self._module.config, window).shapes()
            self._graphs[window] = OnnxGraph(self._module, shapes, ("next_hidden", "logits_0"))
        return self._graphs[window]


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
        tensors = _without_empty_slots(feed, keys="past_keys_", values="past_values_", rows=self.rows)
        with torch.inference_mode():
            outputs = self.module(*(tensors[name] for name in self.inputs))
        results = zip(self._outputs, outputs, strict=True)
        return {"logits_0" if name == "logits" else name: output.numpy() for name, output in results}


@dataclass(frozen=True)
class _Cut:
    """How many slots of a window hold something, by the number of slots that it has."""

    filled: dict[int, int]

    @classmethod
    def of(cls, feed: Feed, rows: int) -> _Cut:
        filled: dict[int, int] = {}
        for name, mask in feed.items():
            if name.startswith("mask_"):
                slots = mask.shape[-1] - rows
                seen = np.flatnonzero((mask[0, 0, :, :slots] > MASKED / 2).any(axis=0))
                used = int(seen[-1]) + 1 if len(seen) else 1
                # blocks, so that kernels see few different shapes
                filled[slots] = max(filled.get(slots, 0), min(slots, -(-used // _SLOT_BLOCK) * _SLOT_BLOCK))
        return cls(filled)


def _without_empty_slots(feed: Feed, *, keys: str, values: str, rows: int) -> Mapping[str, torch.Tensor]:
    """The feed as tensors, without slots that no row sees: a static graph has them all, torch need not.

    Masks end with `rows` columns for the pass's own rows.
    """
    cut = _Cut.of(feed, rows)
    tensors = {}
    for name, array in feed.items():
        tensor = _tensor(array)
        if name.startswith(keys):
            tensor = tensor[..., : cut.filled[array.shape[-1]]]
        elif name.startswith(values):
            tensor = tensor[..., : cut.filled[array.shape[-2]], :]
        elif name.startswith("mask_"):
            slots = array.shape[-1] - rows
            filled = cut.filled[slots]
            if filled < slots:
                tensor = torch.cat([tensor[..., :filled], tensor[..., slots:]], dim=-1)
        tensors[name] = tensor
    return tensors


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # windows are handed out read-only, and nothing here writes
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
