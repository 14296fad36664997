"""Rejected rows never reach the head, though transformers' own assisted generation hands them to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from hyco_npu.decode.tree import DraftTree
from hyco_npu.decode.verifier import VerifierModel
from tests.hyco_npu.decode.tiny_models import VOCABULARY, WINDOW, random_ids, tiny_model

if TYPE_CHECKING:
    import pytest

Rows = dict[str, np.ndarray]
_KINDS = {"sliding_attention": "sliding", "full_attention": "full"}


@dataclass(frozen=True, eq=False)
class Handed:
    """What the head was given when the text was `ids`: keys by kind [kv_heads, rows, head_dim], and what it drafted."""

    ids: list[int]
    keys: Rows
    draft: list[int]


def tiny_head() -> Gemma4AssistantForCausalLM:
    """A random head for the tiny verifier: nearly all of its drafts are rejected."""
    torch.manual_seed(4)
    text = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=2,
    )
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32, use_ordered_embeddings=False)
    head = Gemma4AssistantForCausalLM(config).float().eval()
    head.generation_config.num_assistant_tokens = 4
    return head


@torch.no_grad()
def true_keys(model: Any, ids: list[int]) -> Rows:
    """Keys of a text that was never drafted."""
    shared = model(torch.tensor([ids]), use_cache=False, return_shared_kv_states=True).shared_kv_states
    return {_KINDS[kind]: keys[0].numpy() for kind, (keys, _) in shared.items()}


def stale_rows(given: Rows, true: Rows) -> dict[str, int]:
    """By kind, how many of the rows given are no row of the text."""
    return {
        kind: sum(
            all(np.abs(keys[:, row] - true[kind][:, place]).max() > 1e-3 for place in range(true[kind].shape[1]))
            for row in range(keys.shape[1])
        )
        for kind, keys in given.items()
    }


def assisted_generation(model: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Handed]:
    """Every round of transformers' own loop in which the head drafted."""
    handed: list[Handed] = []
    head = tiny_head()
    given: list[Rows] = []
    forward, candidates = head.forward, SinglePositionMultiTokenCandidateGenerator.get_candidates

    def spy_forward(*args: Any, **kwargs: Any) -> Any:
        given.append({_KINDS[kind]: keys[0].numpy().copy() for kind, (keys, _) in kwargs["shared_kv_states"].items()})
        return forward(*args, **kwargs)

    def spy_candidates(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given.clear()
        result = candidates(self, input_ids, *args, **kwargs)
        if given:
            ids = input_ids[0].tolist()
            handed.append(Handed(ids, given[0], result[0][0, len(ids) :].tolist()))
        return result

    monkeypatch.setattr(head, "forward", spy_forward)
    monkeypatch.setattr(SinglePositionMultiTokenCandidateGenerator, "get_candidates", spy_candidates)
    model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, assistant_model=head)
    return handed


def test_rejected_rows_reach_the_head_in_transformers_but_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model("gemma4-moe")
    model.generation_config.eos_token_id = None
    prompt = random_ids(np.random.default_rng(0), 20)
    handed = assisted_generation(model, prompt, monkeypatch)
    assert len(handed) > 3
    stale = [stale_rows(one.keys, true_keys(model, one.ids)) for one in handed]
    assert sum(counts["full"] for counts in stale) > 0
    assert sum(counts["sliding"] for counts in stale) > 0

    # The same text with the same drafts through our verifier.
    text = VerifierModel(model).begin()
    text.prefill(prompt)
    update = text.commit((), handed[0].ids[len(prompt)])
    assert update is not None
    keys = update.keys
    for now, later in pairwise(handed):
        tree = DraftTree.chain([now.ids[-1], *now.draft], "mtp")
        text.verify(tree)
        emitted = later.ids[len(now.ids) :]
        assert emitted[:-1] == now.draft[: len(emitted) - 1]
        update = text.commit(tuple(range(1, len(emitted))), emitted[-1])
        assert update is not None
        keys = {kind: np.concatenate([keys[kind], rows], axis=1) for kind, rows in update.keys.items()}
        true = true_keys(model, later.ids)
        assert stale_rows(keys, true) == {"sliding": 0, "full": 0}
        for kind, rows in keys.items():
            np.testing.assert_allclose(rows, true[kind][:, :-1], rtol=0, atol=1e-4)  # the last token has no row
