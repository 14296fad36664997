"""The embedded architectures have the parts of the real ones, in transformers' own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import Gemma4ForCausalLM
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts, Gemma4TextRouter

from hyco_npu.family import architecture

if TYPE_CHECKING:
    from pathlib import Path


def test_verifier_has_experts_beside_the_dense_mlp() -> None:
    model = architecture.build_verifier()
    for layer in model.model.layers:
        assert isinstance(layer.experts, Gemma4TextExperts)
        assert isinstance(layer.router, Gemma4TextRouter)
        assert layer.mlp.gate_proj.weight.shape == (192, 192)
        assert layer.experts.gate_up_proj.shape == (8, 2 * 128, 192)
        assert layer.router.config.top_k_experts == 2


def test_verifier_takes_keys_as_values_on_full_layers_only() -> None:
    attentions = [layer.self_attn for layer in architecture.build_verifier().model.layers]
    assert [a.is_sliding for a in attentions] == [True, True, False, True, True, False]
    assert [a.v_proj is None for a in attentions] == [not a.is_sliding for a in attentions]
    assert {a.head_dim for a in attentions if a.is_sliding} == {48}
    assert {a.head_dim for a in attentions if not a.is_sliding} == {96}
    assert all(a.k_proj.out_features == 2 * 48 for a in attentions if a.is_sliding)
    assert all(a.k_proj.out_features == 1 * 96 for a in attentions if not a.is_sliding)
    assert {a.num_key_value_groups for a in attentions if not a.is_sliding} == {4}
    assert {a.sliding_window for a in attentions if a.is_sliding} == {architecture.SLIDING_WINDOW}


def test_verifier_caps_its_logits_at_30() -> None:
    model = architecture.build_verifier().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)
        logits = model(torch.tensor([[2, 7, 9]])).logits
    assert 29.9 < logits.abs().max() <= 30.0


def test_mtp_head_owns_no_keys_and_ties_its_dense_output_layer() -> None:
    model = architecture.build_mtp()
    assert model.masked_embedding is None
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.pre_projection.weight.shape == (128, 2 * 192)
    assert model.post_projection.weight.shape == (192, 128)
    assert model.config.get_text_config().final_logit_softcapping is None
    attentions = [layer.self_attn for layer in model.model.layers]
    assert all(a.is_kv_shared_layer and not hasattr(a, "k_proj") for a in attentions)
    assert [a.is_sliding for a in attentions] == [True, True, True, False]


def test_mtp_head_reads_the_keys_that_the_verifier_stores() -> None:
    verifier, mtp = architecture.build_verifier(), architecture.build_mtp()
    out = verifier(torch.tensor([[2, 7, 9]]), use_cache=False, return_shared_kv_states=True)
    for layer in mtp.model.layers:
        keys, _ = out.shared_kv_states[layer.self_attn.layer_type]
        assert keys.shape[-1] == layer.self_attn.head_dim
        assert keys.shape[1] * layer.self_attn.num_key_value_groups == 4


def test_slm_has_per_layer_embeddings_kv_sharing_double_wide_mlps_and_its_own_output_layer() -> None:
    model = architecture.build_slm()
    assert model.model.embed_tokens_per_layer.weight.shape == (2048, 6 * 32)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    shared = [layer.self_attn.is_kv_shared_layer for layer in model.model.layers]
    assert shared == [False, False, False, True, True, True]
    assert [layer.mlp.gate_proj.out_features for layer in model.model.layers] == [320] * 3 + [640] * 3
    assert all(layer.per_layer_input_gate.weight.shape == (32, 128) for layer in model.model.layers)


@pytest.mark.parametrize("build", [architecture.build_verifier, architecture.build_mtp, architecture.build_slm])
def test_models_stop_at_end_of_text_and_end_of_turn(build: object) -> None:
    assert build().generation_config.eos_token_id == [1, 5]


def test_layer_scalars_train_as_parameters_and_reload_as_transformers_buffers(tmp_path: Path) -> None:
    model = architecture.build_slm().eval()
    names = [name for name, _ in model.named_buffers() if name.endswith("layer_scalar")]
    ids = torch.tensor([[2, 7, 9, 30]])
    with torch.no_grad():
        before = model(ids).logits

    architecture.layer_scalars_as_parameters(model, trainable=True)
    parameters = dict(model.named_parameters())
    model(ids).logits.sum().backward()
    assert len(names) == 6
    assert all(parameters[name].grad.abs() > 0 for name in names)
    with torch.no_grad():
        for index, name in enumerate(names):
            parameters[name].fill_(0.5 + 0.25 * index)
    architecture.layer_scalars_as_parameters(model, trainable=False)

    assert not any(name.endswith("layer_scalar") for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path)
    reloaded = Gemma4ForCausalLM.from_pretrained(tmp_path).eval()
    assert [layer.layer_scalar.item() for layer in reloaded.model.layers] == [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    with torch.no_grad():
        after = reloaded(ids).logits
        assert torch.equal(after, model(ids).logits)
    assert not torch.allclose(after, before, atol=1e-3)
