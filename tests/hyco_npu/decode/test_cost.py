"""Bytes and memory floors against arithmetic by hand on the released models' dimensions, and against a file's bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, cast

import pytest

from export.checkpoint.gemma_bits import BitMap
from export.checkpoint.mtp import LayerShape, MtpConfig
from export.checkpoint.slm import SlmCheckpoint, SlmConfig, SlmLayer, read_slm_checkpoint
from hyco_npu.decode.config import MtpSettings, SlmSettings, parse_config
from hyco_npu.decode.cost import DraftCost, draft_cost, mtp_cost, slm_cost
from hyco_npu.family import SLM_DIR

KEPT = 86_016
SLIDING, FULL = "sliding_attention", "full_attention"
HEAD_LINEARS = (
    5632 * 1024  # pre_projection
    + 1024 * 2816  # post_projection
    + 4 * 3 * 1024 * 8192  # gate, up, down
    + 3 * 2 * 1024 * 16 * 256  # queries and outputs of the sliding layers
    + 2 * 1024 * 16 * 512  # and of the full one
)
ROUND_KEYS_VALUES = 1024 * (2 * 8 * 256 + 2 * 2 * 512)
"""Values of the last sliding and the last full layer of the verifier in a window."""


@pytest.fixture
def head() -> MtpConfig:
    """The assistant of 26B-A4B."""
    layers = (*[LayerShape(SLIDING, 256, 8)] * 3, LayerShape(FULL, 512, 2))
    return MtpConfig(1024, 2816, 8192, 16, layers, (), 262_144, 1e-6, 1024, use_ordered_embeddings=False)


@pytest.fixture
def e2b() -> SlmCheckpoint:
    """E2B's QAT mobile checkpoint, without its tensors."""
    layers = []
    for index in range(35):
        full = index % 5 == 4
        owner = index if index < 15 else (14 if full else 13)
        layers.append(
            SlmLayer(FULL if full else SLIDING, 512 if full else 256, 1, 6144 if index < 15 else 12_288, owner)
        )
    config = SlmConfig(1536, 8, tuple(layers), (), 262_144, 262_144, 256, 512, 1e-6, 30.0)
    rules = {
        r"^lm_head$": 2,
        r"embed_tokens$": 2,
        r"embed_tokens_per_layer$": 4,
        r"layers\.(\d|1[0-4])\.mlp\.": 4,
        r"\.mlp\.": 2,
        r"\.per_layer_input_gate$": 8,
        r"\.per_layer_projection$": 8,
        r"\.self_attn\.": 4,
    }
    bits = BitMap(Path("config.json"), tuple(rules.items()), None, ("per_layer_model_projection",), True)
    return SlmCheckpoint(config, cast("Any", None), bits, "model.language_model.")


def test_the_head_has_the_bytes_of_its_release(head: MtpConfig) -> None:
    """151.3M weights in linear layers, 119.7 MB of graph at 4 bits, a table of 242.2 MB."""
    assert round(HEAD_LINEARS / 1e6, 1) == 151.3
    cost = mtp_cost(MtpSettings(window=1024), head, KEPT)
    assert cost.graph_bytes == (HEAD_LINEARS + KEPT * 1024) // 2
    assert round(cost.graph_bytes / 1e6, 1) == 119.7
    assert cost.table_bytes == KEPT * 2816
    assert round(cost.table_bytes / 1e6, 1) == 242.2


@pytest.mark.parametrize(("bits", "steps"), [(4, 4), (8, 1), (2, 3), (16, 2)])
def test_every_step_of_the_head_reads_its_weights_and_its_window(head: MtpConfig, bits: int, steps: int) -> None:
    settings = MtpSettings(window=1024, steps=steps, bits=bits)  # type: ignore[arg-type]
    cost = mtp_cost(settings, head, KEPT)
    weights = (HEAD_LINEARS + KEPT * 1024) * bits / 8
    assert cost.round_bytes == steps * (weights + 2 * ROUND_KEYS_VALUES)
    assert mtp_cost(settings.model_copy(update={"window": None}), head, KEPT).round_bytes == steps * weights


def test_the_floor_is_bytes_over_sixty_gigabytes_a_second() -> None:
    assert DraftCost(round_bytes=480_000_000).floor_ms == pytest.approx(8.0)
    assert (DraftCost(1, 2, 3) + DraftCost(10, 20, 30)) == DraftCost(11, 22, 33)


def e2b_graph_bytes(kept: int) -> int:
    """Layer by layer."""
    total = kept * 1536 // 4 + 35 * 256 * 1536 * 2
    for index in range(35):
        head_dim, early = (512 if index % 5 == 4 else 256), index < 15
        attention = 2 * 8 * head_dim * 1536 + (2 * head_dim * 1536 if early else 0)
        mlp = 3 * 6144 * 1536 // 2 if early else 3 * 12_288 * 1536 // 4
        total += attention // 2 + mlp + 2 * 256 * 1536
    return total


@pytest.mark.parametrize("kept", [KEPT, 21_504])
def test_the_slm_has_the_bytes_of_its_release(e2b: SlmCheckpoint, kept: int) -> None:
    cost = slm_cost(SlmSettings(), 33, e2b, kept)
    assert cost.graph_bytes == e2b_graph_bytes(kept)
    # the whole vocabulary: 2 bits a value for tokens, 4 for the 35 layers' own rows
    assert cost.table_bytes == 262_144 * (1536 // 4 + 35 * 256 // 2)


def test_the_slms_graph_lies_between_the_papers_bounds(e2b: SlmCheckpoint) -> None:
    """709 to 756 MB, by the bits of the output layer and of the projection that the checkpoint leaves in BF16."""
    assert 709e6 < slm_cost(SlmSettings(), 33, e2b, KEPT).graph_bytes < 756e6


@pytest.mark.parametrize(("passes", "window"), [(1, 1024), (4, 1024), (2, 256)])
def test_every_pass_of_the_slm_reads_its_weights_and_its_caches(e2b: SlmCheckpoint, passes: int, window: int) -> None:
    settings = SlmSettings(passes=passes, window=window, proactive_passes=2)
    sliding = min(window, 512 + 33)
    # of 15 layers with a cache of one head at 8 bits, 3 are full
    caches = 12 * 2 * 256 * sliding + 3 * 2 * 512 * window
    assert slm_cost(settings, 33, e2b, KEPT).round_bytes == passes * (e2b_graph_bytes(KEPT) + caches)


def test_a_configuration_costs_what_its_device_parts_cost(head: MtpConfig, e2b: SlmCheckpoint) -> None:
    keep = {"mtp": KEPT, "slm": 21_504}
    sections = {"mtp": {"window": 1024, "steps": 3}, "slm": {"window": 512, "passes": 2}}

    def cost(**changes: Any) -> DraftCost:
        return draft_cost(parse_config({"name": "test", "drafter": "hybrid", **changes}, "test"), head, e2b, keep)

    mtp = mtp_cost(MtpSettings(window=1024, steps=3), head, KEPT)
    slm = slm_cost(SlmSettings(window=512, passes=2), 9, e2b, 21_504)
    assert cost(**sections, tree={"nodes": 8}) == mtp + slm
    assert cost(mtp=sections["mtp"]) == mtp
    assert cost(mtp={"place": "server"}) == cost() == DraftCost()


def test_the_familys_slm_is_as_large_as_its_file() -> None:
    """The whole vocabulary: every stored weight and table, without scales and norms, byte for byte."""
    checkpoint = read_slm_checkpoint(SLM_DIR)
    with (SLM_DIR / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    sizes = {name: e["data_offsets"][1] - e["data_offsets"][0] for name, e in header.items() if name != "__metadata__"}
    linears = (".q_proj", ".k_proj", ".v_proj", ".o_proj", "_proj", "lm_head", "_gate", "_projection")
    graph = sum(size for name, size in sizes.items() if name.removesuffix(".weight").endswith(linears))
    tables = sum(size for name, size in sizes.items() if name.endswith(".embedding_quantized"))
    cost = slm_cost(SlmSettings(), 33, checkpoint, checkpoint.config.vocab_size)
    assert (cost.graph_bytes, cost.table_bytes) == (graph, tables)
