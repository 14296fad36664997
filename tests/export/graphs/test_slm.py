"""The static SLM against transformers' Gemma4ForCausalLM: prompts in chunks, windows, loading, the trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from export.checkpoint.slm import read_slm_checkpoint, read_slm_config
from export.checkpoint.slm_tensors import linear_shapes, vector_shapes
from export.engines.cpu import FloatGraph
from export.errors import CheckpointError
from export.graphs.feeds import MASKED
from export.graphs.rope import inverse_frequencies, signed_rotation
from export.graphs.slm import SlmInputs, cache_shapes, load_slm, per_layer_factor
from export.graphs.trace import OPSET, trace_module
from export.graphs.tree_feeds import RowTree
from export.passes.common import weight_matmuls

from ..checkpoint.slm_builders import slm_text_config, write_slm
from ..tiny_slm import VOCAB_SIZE, Session, TinySlm, tiny_slm, token_inputs

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 1e-4
SLIDING, FULL = "sliding_attention", "full_attention"
PROVED = {
    "RMSNormalization", "Gelu", "MatMul", "Reshape", "Transpose", "Split", "Concat", "Mul", "Add", "Softmax",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "e2b": {},
    "no_sharing": {"num_kv_shared_layers": 0, "num_key_value_heads": 2},
    "sharing_not_wide": {"use_double_wide_mlp": False, "num_key_value_heads": 2, "num_attention_heads": 8},
    "constant_norms": {"norms": 0.3, "rms_norm_eps": 1e-2},
    "no_softcap": {"final_logit_softcapping": None, "rms_norm_eps": 1e-6, "num_kv_shared_layers": 2},
    "low_softcap": {"final_logit_softcapping": 2.0, "layer_types": [SLIDING, FULL] * 3},
    "full_only": {
        "layer_types": [FULL] * 3, "num_hidden_layers": 3, "num_kv_shared_layers": 1, "global_head_dim": 12,
    },
}  # fmt: skip


def text(length: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(VOCAB_SIZE, size=length)]


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("window", [8, 32])
def test_whole_prompt_equals_transformers(tmp_path: Path, changes: dict[str, Any], window: int) -> None:
    tiny, tokens = tiny_slm(tmp_path, **changes), text(20)
    logits = Session(tiny, 4, window).prefill(tokens)
    # A window above the prompt is no window: transformers makes its own masks.
    wanted = tiny.reference(tokens, None if window > len(tokens) else window)
    assert np.abs(logits - wanted).max() <= TOLERANCE
    assert wanted.std() > 0.3


def test_windows_differ(e2b: TinySlm) -> None:
    """Otherwise the test above would prove nothing about the smaller window."""
    assert np.abs(e2b.reference(text(20)) - e2b.reference(text(20), 8))[:9].max() <= TOLERANCE
    assert np.abs(e2b.reference(text(20)) - e2b.reference(text(20), 8))[9:].max() > 100 * TOLERANCE


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> TinySlm:
    """Six layers, full ones at 2 and 5, the upper three share; nobody changes it."""
    return tiny_slm(tmp_path_factory.mktemp("slm"))


@pytest.mark.parametrize("length", range(1, 21))
@pytest.mark.parametrize(("rows", "window"), [(4, 8), (4, 32), (16, 8)])
def test_every_length_and_chunk_equals_one_shot(e2b: TinySlm, rows: int, window: int, length: int) -> None:
    tokens = text(length)
    logits = Session(e2b, rows, window).prefill(tokens)
    assert np.abs(logits - e2b.reference(tokens, window)).max() <= TOLERANCE


@pytest.mark.parametrize("window", [8, 32])
def test_token_0_counts_as_in_transformers(e2b: TinySlm, window: int) -> None:
    """Through several layers a token reaches further than the window, as it does in the reference."""
    tokens = text(20)
    other = [(tokens[0] + 1) % VOCAB_SIZE, *tokens[1:]]
    change = Session(e2b, 4, window).prefill(other) - Session(e2b, 4, window).prefill(tokens)
    wanted = e2b.reference(other, window) - e2b.reference(tokens, window)
    assert np.abs(change - wanted).max() <= TOLERANCE
    assert np.abs(wanted).max(axis=1).min() > 10 * TOLERANCE


@pytest.mark.parametrize("window", [1, 5, 8])
def test_one_layer_forgets_token_0_exactly_behind_its_window(tmp_path: Path, window: int) -> None:
    changes: dict[str, Any] = {"layer_types": [FULL], "num_hidden_layers": 1, "num_kv_shared_layers": 0}
    tiny, tokens = tiny_slm(tmp_path, **changes), text(20)
    other = [(tokens[0] + 1) % VOCAB_SIZE, *tokens[1:]]
    change = np.abs(Session(tiny, 4, window).prefill(other) - Session(tiny, 4, window).prefill(tokens)).max(axis=1)
    assert (change[: window + 1] > 10 * TOLERANCE).all()
    assert (change[window + 1 :] == 0.0).all()


@pytest.mark.parametrize("layer", range(6))
def test_every_layer_scalar_counts(tmp_path: Path, layer: int) -> None:
    tiny = tiny_slm(tmp_path, rms_norm_eps=0.1)  # the last norm undoes the last scalar, but for a large epsilon
    before = Session(tiny, 8, 8).prefill(text(7))
    for module in (tiny.model.model, tiny.slm):
        module.get_buffer(f"layers.{layer}.layer_scalar").mul_(2.0)
    after = Session(tiny, 8, 8).prefill(text(7))
    assert np.abs(after - before).max() > 10 * TOLERANCE
    assert np.abs(after - tiny.reference(text(7))).max() <= TOLERANCE


def test_the_module_trains_on_whole_texts(e2b: TinySlm) -> None:
    """A window of 0, a batch of two texts, gradients everywhere: the whole model's causal forward."""
    texts, length = [text(12), text(12, seed=4)], 12
    slm = load_slm(e2b.config, e2b.model.state_dict()).requires_grad_(True)
    shapes = SlmInputs(e2b.config, length, 0).shapes()
    feed = {name: torch.zeros(2, *shape[1:]) for name, shape in shapes.items()}
    tables = [np.stack(parts)[:, None] for parts in zip(*(token_inputs(e2b, t) for t in texts), strict=True)]
    feed["embedding"], feed["per_layer"] = map(torch.from_numpy, tables)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    for rope in e2b.config.ropes:
        kind = rope.kind.removesuffix("_attention")
        reach = e2b.config.sliding_window if kind == "sliding" else length
        feed[f"mask_{kind}"][:] = torch.where((distance >= 0) & (distance < reach), 0.0, MASKED)
        frequencies = inverse_frequencies(rope, shapes[f"cos_{kind}"][-1])
        for position in range(length):
            cos, sin = signed_rotation(frequencies, position)
            feed[f"cos_{kind}"][:, :, position] = torch.from_numpy(cos)[0, 0, 0]
            feed[f"sin_{kind}"][:, :, position] = torch.from_numpy(sin)[0, 0, 0]
    logits = slm(*(feed[name] for name in shapes))[0]
    for index, tokens in enumerate(texts):
        capped = 30 * torch.tanh(logits[index, 0] / 30)
        assert np.abs(capped.detach().numpy() - e2b.reference(tokens)).max() <= TOLERANCE
    logits.square().mean().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in slm.parameters())


def test_boundary_of_e2b(tmp_path: Path) -> None:
    """35 layers own 15 caches (cases.md row 18); sizes as released."""
    changes = {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
        "layer_types": ([SLIDING] * 4 + [FULL]) * 7, "head_dim": 256, "global_head_dim": 512,
        "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256, "sliding_window": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(slm_text_config(**changes)))
    config = read_slm_config(tmp_path)
    shapes = cache_shapes(config)
    assert list(shapes) == list(range(15))
    assert {owner for owner, (_, dim) in shapes.items() if dim == 512} == {4, 9, 14}
    assert set(shapes.values()) == {(1, 256), (1, 512)}
    inputs = SlmInputs(config, 32, 1024).shapes()
    assert len(inputs) == 2 + 2 * 3 + 2 * 15
    assert inputs["per_layer"] == (1, 1, 32, 35 * 256)
    assert inputs["mask_full"] == (1, 1, 32, 1056)
    assert inputs["past_keys_14"] == (1, 1, 512, 1024)
    # A sliding layer sees 511 earlier tokens: 512 slots, and one more a row for drafted rows that were stored.
    assert inputs["mask_sliding"] == (1, 1, 32, 512 + 32 + 32)
    assert inputs["past_values_13"] == (1, 1, 544, 256)
    assert SlmInputs(config, 32, 1024).output_shapes()["new_keys_4"] == (1, 1, 512, 32)
    assert per_layer_factor(config) == pytest.approx(16 / 2**0.5)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", ""])
def test_load_takes_every_prefix_and_ignores_shared_keys(e2b: TinySlm, prefix: str) -> None:
    state = {name.replace("model.", prefix, 1): tensor for name, tensor in e2b.model.state_dict().items()}
    for index in (3, 4, 5):
        for part in ("k_proj", "v_proj", "k_norm", "v_norm"):
            state[f"{prefix}layers.{index}.self_attn.{part}.weight"] = torch.ones(1)
    loaded = TinySlm(e2b.model, e2b.config, load_slm(e2b.config, state))
    np.testing.assert_array_equal(Session(loaded, 4, 8).prefill(text(6)), Session(e2b, 4, 8).prefill(text(6)))


def test_load_refuses_what_does_not_fit(e2b: TinySlm) -> None:
    state = dict(e2b.model.state_dict())
    name = "model.layers.4.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match=r"layers\.4\.self_attn\.q_proj\.weight is missing"):
        load_slm(e2b.config, {key: tensor for key, tensor in state.items() if key != name})
    with pytest.raises(CheckpointError, match=r"extra\.weight is unknown"):
        load_slm(e2b.config, {**state, "model.extra.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.k_proj\.weight is missing"):
        load_slm(e2b.config, {k: t for k, t in state.items() if k != "model.layers.0.self_attn.k_proj.weight"})
    with pytest.raises(CheckpointError, match=r"q_proj\.weight is \[3, 24\], not \[64, 24\]"):
        load_slm(e2b.config, {**state, name.replace("4", "5"): torch.zeros(3, 24)})


def test_load_takes_a_quantised_checkpoint_dequantised(tmp_path: Path) -> None:
    """What `quant_method: gemma` stores, read by the checkpoint's reader, fills the same module."""
    checkpoint = read_slm_checkpoint(write_slm(tmp_path))
    state = {name: checkpoint.floats(name) for name in vector_shapes(checkpoint.config)}
    for module in linear_shapes(checkpoint.config):
        quantised = checkpoint.bits_of(module) is not None
        weight = checkpoint.weight(module).dequantize() if quantised else checkpoint.floats(f"{module}.weight")
        state[f"{module}.weight"] = weight
    slm = load_slm(checkpoint.config, state)
    for module in ("lm_head", "layers.4.mlp.down_proj", "per_layer_model_projection"):
        assert torch.equal(slm.get_parameter(f"{module}.weight"), state[f"{module}.weight"])


@pytest.fixture(scope="module")
def traced(e2b: TinySlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = SlmInputs(e2b.config, 4, 8)
    path = tmp_path_factory.mktemp("trace") / "slm.onnx"
    ir.save(trace_module(e2b.slm, inputs.shapes(), list(inputs.output_shapes())), path)
    return path


def test_trace_has_only_proved_operators(e2b: TinySlm, traced: Path) -> None:
    model = ir.load(traced)
    assert model.opset_imports[""] == OPSET
    operators = [node.op_type for node in model.graph]
    assert set(operators) <= PROVED
    assert {node.domain for node in model.graph} == {""}
    # Per layer 5 norms and one on the queries, per owner two more; one of the projection, one at the end.
    assert operators.count("RMSNormalization") == 6 * 6 + 3 * 2 + 2
    assert operators.count("Gelu") == 2 * 6
    assert operators.count("Softmax") == 6
    # q, o, three of the MLP, gate and projection; k and v of the owners; the shared projection and the head.
    assert len(list(weight_matmuls(model.graph))) == 7 * 6 + 2 * 3 + 2


def test_trace_has_the_given_boundary(e2b: TinySlm, traced: Path) -> None:
    graph, boundary = ir.load(traced).graph, SlmInputs(e2b.config, 4, 8)
    assert {v.name: tuple(v.shape or ()) for v in graph.inputs} == boundary.shapes()
    assert [v.name for v in graph.inputs] == list(boundary.shapes())
    assert {v.name: tuple(v.shape or ()) for v in graph.outputs} == boundary.output_shapes()


def test_onnxruntime_equals_torch(e2b: TinySlm, traced: Path) -> None:
    graph, tokens = FloatGraph(traced), text(15)
    session, other = Session(e2b, 4, 8), Session(e2b, 4, 8, run=lambda feed: graph.run(feed))
    assert np.abs(session.prefill(tokens) - other.prefill(tokens)).max() <= TOLERANCE
    tree = RowTree((None, 0, 0))
    assert np.abs(session.draft(tree, [1, 2, 3]) - other.draft(tree, [1, 2, 3])).max() <= TOLERANCE
    for ours, theirs in zip(session.cache.view().caches.values(), other.cache.view().caches.values(), strict=True):
        np.testing.assert_allclose(ours.keys, theirs.keys, atol=TOLERANCE)
        np.testing.assert_allclose(ours.values, theirs.values, atol=TOLERANCE)
