"""A head's checkpoint against transformers: shapes, values, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

from export.checkpoint.mtp import CentroidShape, LayerShape, RopeSpec, read_mtp_checkpoint, read_mtp_config
from export.errors import CheckpointError
from tests.export.checkpoint.builders import FULL, SLIDING, assistant_config, change_weights, write_assistant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CENTROIDS: dict[str, Any] = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 2}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("shard_size", ["1GB", "8KB"])
@pytest.mark.parametrize("extra", [{}, CENTROIDS])
def test_tensors_equal_those_of_transformers(tmp_path: Path, shard_size: str, extra: dict[str, Any]) -> None:
    model = write_assistant(tmp_path, assistant_config(**extra), torch.bfloat16, shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() is (shard_size == "8KB")
    state = read_mtp_checkpoint(tmp_path).state_dict()
    reference = model.state_dict()
    assert state.keys() == reference.keys()
    for name, tensor in reference.items():
        assert state[name].dtype == (torch.int64 if name.endswith("token_ordering") else torch.float32)
        assert torch.equal(state[name], tensor.to(state[name].dtype)), name
    assert state[HEAD] is state[EMBEDDING]


def test_the_tensors_make_the_same_model(tmp_path: Path) -> None:
    config = assistant_config()
    model = write_assistant(tmp_path, config, torch.float32)
    twin = Gemma4AssistantForCausalLM(Gemma4AssistantConfig.from_dict(config)).eval()
    twin.load_state_dict(read_mtp_checkpoint(tmp_path).state_dict(), strict=True)
    inputs = {
        "inputs_embeds": torch.randn(1, 1, 40),
        "position_ids": torch.tensor([[5]]),
        "shared_kv_states": {
            SLIDING: (torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)),
            FULL: (torch.randn(1, 1, 6, 12), torch.randn(1, 1, 6, 12)),
        },
    }
    with torch.no_grad():
        assert torch.equal(twin(**inputs).logits, model(**inputs).logits)


def test_the_shape_is_resolved_as_transformers_resolves_it(tmp_path: Path) -> None:
    head = read_mtp_config(write_config(tmp_path, assistant_config()))
    assert head.layers == (LayerShape(SLIDING, 8, 2),) * 3 + (LayerShape(FULL, 12, 1),)
    assert head.ropes == (RopeSpec(SLIDING, 1e4, "default", 1.0), RopeSpec(FULL, 1e6, "proportional", 0.25))
    assert (head.hidden_size, head.backbone_hidden_size, head.intermediate_size) == (16, 20, 24)
    assert (head.num_attention_heads, head.vocab_size, head.sliding_window) == (4, 64, 8)
    assert (head.rms_norm_eps, head.use_ordered_embeddings, head.centroids) == (1e-6, False, None)


def test_new_and_old_spelling_of_the_layers_give_one_shape(tmp_path: Path) -> None:
    old = assistant_config()
    new = Gemma4AssistantConfig.from_dict(old).to_dict()
    assert "global_head_dim" not in new["text_config"]
    assert "per_layer_config" not in old["text_config"]
    assert read_mtp_config(write_config(tmp_path, new)) == read_mtp_config(write_config(tmp_path, old))


def test_without_k_eq_v_full_layers_keep_the_common_key_value_heads(tmp_path: Path) -> None:
    config = assistant_config({"attention_k_eq_v": False})
    assert read_mtp_config(write_config(tmp_path, config)).layers[3] == LayerShape(FULL, 12, 2)


def test_centroids_are_read(tmp_path: Path) -> None:
    head = read_mtp_config(write_config(tmp_path, assistant_config(**CENTROIDS)))
    assert head.centroids == CentroidShape(8, 2)
    with pytest.raises(CheckpointError, match="64 cannot be cut into 7 centroids"):
        read_mtp_config(write_config(tmp_path, assistant_config(**{**CENTROIDS, "num_centroids": 7})))


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__setitem__(name, tensor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop(Q_PROJ), f"missing: '{Q_PROJ}'"),
        (drop("model.layers.3.layer_scalar"), "missing: 'model.layers.3.layer_scalar'"),
        (put(Q_PROJ, torch.ones(16, 32)), rf"{Q_PROJ}' has shape \[16, 32\].*\[32, 16\]"),
        # A head reads the verifier's keys: projections of its own mean that this is another model.
        (put("model.layers.0.self_attn.k_proj.weight", torch.ones(16, 16)), "no place for: .*k_proj"),
        (put("model.layers.4.layer_scalar", torch.ones(1)), "no place for: 'model.layers.4.layer_scalar'"),
        (put("masked_embedding.token_ordering", torch.arange(64)), "no place for: .*token_ordering"),
        (put(Q_PROJ, torch.ones(32, 16, dtype=torch.int8)), f"{Q_PROJ}' is stored as torch.int8"),
    ],
)
def test_wrong_tensors_are_refused_before_loading(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    write_assistant(tmp_path, assistant_config(), torch.float32)
    change_weights(tmp_path, change)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_mtp_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_tensor_missing_from_a_shard_is_named(tmp_path: Path) -> None:
    write_assistant(tmp_path, assistant_config(), torch.float32, "8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    (tmp_path / index[Q_PROJ]).unlink()
    with pytest.raises(CheckpointError, match=f"{index[Q_PROJ]}: this shard is absent"):
        read_mtp_checkpoint(tmp_path)


@pytest.mark.parametrize("stored", ["absent", "equal"])
def test_the_tied_output_layer_may_be_stored_or_not(tmp_path: Path, stored: str) -> None:
    model = write_assistant(tmp_path, assistant_config(), torch.bfloat16)
    embedding = model.state_dict()[EMBEDDING].clone()
    if stored == "equal":
        change_weights(tmp_path, put(HEAD, embedding))
    state = read_mtp_checkpoint(tmp_path).state_dict()
    assert torch.equal(state[HEAD], embedding.float())


def test_an_output_layer_unlike_the_embedding_is_refused(tmp_path: Path) -> None:
    model = write_assistant(tmp_path, assistant_config(), torch.float32)
    head = model.state_dict()[EMBEDDING].clone()
    head[63, 15] += 1e-3
    change_weights(tmp_path, put(HEAD, head))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'lm_head\.weight' differs"):
        read_mtp_checkpoint(tmp_path).state_dict()
    change_weights(tmp_path, put(HEAD, torch.ones(63, 16)))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' has shape \[63, 16\]"):
        read_mtp_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    write_assistant(tmp_path, assistant_config(), torch.bfloat16)
    weight = torch.ones(32, 16, dtype=torch.bfloat16)
    weight[3, 4] = value
    change_weights(tmp_path, put(Q_PROJ, weight))
    with pytest.raises(CheckpointError, match=f"{Q_PROJ}' holds NaN or infinite"):
        read_mtp_checkpoint(tmp_path).state_dict()


def test_a_token_ordering_must_be_a_permutation(tmp_path: Path) -> None:
    write_assistant(tmp_path, assistant_config(**CENTROIDS), torch.float32)
    change_weights(tmp_path, put("masked_embedding.token_ordering", torch.zeros(64, dtype=torch.int64)))
    with pytest.raises(CheckpointError, match="token_ordering' is no permutation"):
        read_mtp_checkpoint(tmp_path).state_dict()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (assistant_config(model_type="gemma4"), "model_type is 'gemma4'"),
        (assistant_config(text_config=None), "text_config is absent"),
        (assistant_config({"hidden_size_per_layer_input": 8}), "hidden_size_per_layer_input must be 0"),
        (assistant_config({"hidden_size": "wide"}), "does not accept this configuration"),
        (assistant_config({"layer_types": [SLIDING, FULL]}), "does not accept this configuration"),
        (assistant_config({"num_kv_shared_layers": 2}), "must be shared"),
        (assistant_config({"enable_moe_block": True}), "enable_moe_block must be False"),
        (assistant_config({"layer_types": [FULL] * 4}), "has 0 shapes of sliding_attention"),
        (assistant_config({"hidden_activation": "relu"}), "hidden_activation is 'relu'"),
        (assistant_config({"attention_bias": True}), "attention_bias is true"),
        (assistant_config({"use_bidirectional_attention": "all"}), "use_bidirectional_attention is 'all'"),
        (assistant_config({"num_key_value_heads": 3}), "4 heads cannot share 3"),
        (assistant_config(tie_word_embeddings=False), "tie_word_embeddings is false"),
        (
            assistant_config({"per_layer_config": {"0": {"head_dim": 4}, "3": {"head_dim": 12}}}),
            "has 2 shapes of sliding_attention",
        ),
        (
            assistant_config(
                {"rope_parameters": {SLIDING: {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, FULL: {}}}
            ),
            "config.json: ",
        ),
    ],
)
def test_configurations_that_cannot_be_exported_are_refused(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_mtp_config(write_config(tmp_path, config))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_weights_alone_are_no_checkpoint(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"config\.json: absent"):
        read_mtp_checkpoint(tmp_path)
