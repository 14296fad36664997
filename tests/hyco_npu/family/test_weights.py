"""The shipped family: its size, its architecture as transformers loads it, and figures that beat the probes'."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer, Gemma4AssistantForCausalLM, Gemma4ForCausalLM

from hyco_npu.family import FAMILY_DIR, MTP_DIR, SLM_DIR, VERIFIER_DIR

# What throwaway probes reached on held-out GSM8K prompts, greedy, K=4 (the numbers).
PROBE_MTP, PROBE_SLM, PROBE_NLL = 2.45, 1.85, 1.72


def test_all_of_it_fits_in_20_mb() -> None:
    assert sum(file.stat().st_size for file in FAMILY_DIR.rglob("*") if file.is_file()) <= 20_000_000


@pytest.mark.parametrize("folder", [VERIFIER_DIR, MTP_DIR, SLM_DIR], ids=lambda folder: folder.name)
def test_layer_scalars_are_trained_values(folder: object) -> None:
    kind = Gemma4AssistantForCausalLM if folder == MTP_DIR else Gemma4ForCausalLM
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    scalars = [layer.layer_scalar.item() for layer in model.model.layers]
    assert all(abs(scalar - 1.0) > 0.005 for scalar in scalars), scalars
    assert len(set(scalars)) > 1
    assert model.model.norm.weight.dtype == torch.bfloat16


def test_the_figures_beat_the_probes() -> None:
    figures = json.loads((FAMILY_DIR / "family.json").read_text())["figures"]
    assert figures["mtp_accepted_per_round"] > PROBE_MTP
    assert figures["slm_accepted_per_round"] > PROBE_SLM
    assert figures["verifier_answer_nll"] < PROBE_NLL


def test_the_chat_template_makes_the_training_format() -> None:
    tokenizer = AutoTokenizer.from_pretrained(VERIFIER_DIR)
    messages = [{"role": "user", "content": "How many?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><|turn>user\nHow many?<turn|>\n<|turn>model\n"
    assert tokenizer(text, add_special_tokens=False)["input_ids"][:2] == [2, 4]
