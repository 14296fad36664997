"""What a configuration costs the device, from dimensions alone: bytes, and the floor that they set.

A step or pass reads all its weights and its window of keys and values; a drafting round cannot end before these bytes
have crossed the phone's bus (export/estimate/floor.py). The floor is no measurement: `hyco-npu estimate` asks
Qualcomm's compiler, and a phone has the last word. What the server runs costs the device nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export.checkpoint.slm_tensors import HEAD, linear_shapes, table_shapes
from export.estimate.floor import ASSUMED_BANDWIDTH_GBPS, floor_us
from export.graphs.mtp import KINDS, layer_of_kind
from export.graphs.slm import SlmInputs, cache_shapes, kind_of_owner

if TYPE_CHECKING:
    from export.checkpoint.mtp import MtpConfig
    from export.checkpoint.slm import SlmCheckpoint
    from hyco_npu.decode.config import DecodeConfig, MtpSettings, SlmSettings

_KV_BYTES = 2
"""The head's keys and values, 16 bits; the SLM's cache has 8."""
_UNQUANTISED_BYTES = 2
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class DraftCost:
    """graph_bytes: weights of the graphs. table_bytes: embedding tables on the CPU. round_bytes: what crosses the bus
    in a round's steps and passes. floor_ms: the milliseconds that takes at ASSUMED_BANDWIDTH_GBPS."""

    graph_bytes: int = 0
    table_bytes: int = 0
    round_bytes: int = 0

    @property
    def floor_ms(self) -> float:
        """Milliseconds."""
        return floor_us(self.round_bytes, ASSUMED_BANDWIDTH_GBPS) / 1e3

    def __add__(self, other: DraftCost) -> DraftCost:
        return DraftCost(
            self.graph_bytes + other.graph_bytes,
            self.table_bytes + other.table_bytes,
            self.round_bytes + other.round_bytes,
        )


def draft_cost(config: DecodeConfig, mtp: MtpConfig, slm: SlmCheckpoint, keep: dict[str, int]) -> DraftCost:
    """Cost of a round; `keep` is the size of each drafter's keep set, by "mtp" and "slm"."""
    cost = DraftCost()
    if config.mtp is not None and config.mtp.place == "device":
        cost += mtp_cost(config.mtp, mtp, keep["mtp"])
    if config.slm is not None:
        cost += slm_cost(config.slm, config.tree.nodes + 1, slm, keep["slm"])
    return cost


def mtp_cost(settings: MtpSettings, config: MtpConfig, kept: int) -> DraftCost:
    """The head's steps; a window over the whole text counts no keys and values, for their number is open."""
    shapes = config.tensor_shapes()
    linear = sum(math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name != _EMBEDDING)
    graph = (linear + kept * config.hidden_size) * settings.bits // 8
    layers = (layer_of_kind(config, kind) for kind in KINDS)
    values = sum(2 * layer.num_key_value_heads * layer.head_dim for layer in layers) * (settings.window or 0)
    return DraftCost(graph, kept * config.backbone_hidden_size, settings.steps * (graph + values * _KV_BYTES))


def slm_cost(settings: SlmSettings, rows: int, checkpoint: SlmCheckpoint, kept: int) -> DraftCost:
    """The SLM's passes; those while the reply is under way are not counted, for they cost no waiting."""
    config, graph = checkpoint.config, 0
    for module, (out, width) in linear_shapes(config).items():
        values = (kept if module == HEAD else out) * width
        bits = checkpoint.bits_of(module)
        graph += values * bits // 8 if bits is not None else values * _UNQUANTISED_BYTES
    inputs = SlmInputs(config, rows, settings.window)
    cache = sum(
        2 * heads * dim * inputs.slots(kind_of_owner(config, owner))
        for owner, (heads, dim) in cache_shapes(config).items()
    )
    tables = sum(_table_bytes(checkpoint, module, shape) for module, shape in table_shapes(config).items())
    return DraftCost(graph, tables, settings.passes * (graph + cache))


def _table_bytes(checkpoint: SlmCheckpoint, module: str, shape: tuple[int, int]) -> int:
    bits = checkpoint.bits.table(checkpoint.prefix + module)
    return math.prod(shape) * (bits or 8) // 8
