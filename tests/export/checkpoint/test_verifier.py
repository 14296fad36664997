"""The verifier's scaled embedding rows against transformers' embed_tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextScaledWordEmbedding

from export.checkpoint.verifier import VerifierEmbeddings
from export.errors import CheckpointError
from tests.export.checkpoint.builders import VOCAB_SIZE, write_verifier

if TYPE_CHECKING:
    from pathlib import Path

INNER, OUTER = "model.embed_tokens.weight", "model.language_model.embed_tokens.weight"


def write_table(folder: Path, weight: torch.Tensor, config: dict[str, Any] | None = None, name: str = OUTER) -> Path:
    """A folder with config.json and nothing but the table."""
    text = {"vocab_size": weight.shape[0], "hidden_size": weight.shape[1]}
    settings = {"model_type": "gemma4", "text_config": text, **(config or {})}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: weight}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_equal_a_whole_model_of_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    model = write_verifier(tmp_path, dtype)
    embeddings = VerifierEmbeddings(tmp_path)
    assert embeddings.dtype == model.dtype == dtype
    ids = torch.tensor([0, 1, 63, 5, 5])
    with torch.no_grad():
        assert torch.equal(embeddings.rows(ids), model.get_input_embeddings()(ids).float())


@pytest.mark.parametrize("declared", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("width", [1536, 2816])
def test_scale_and_product_are_rounded_in_the_declared_type(tmp_path: Path, declared: str, width: int) -> None:
    # Stored as float32, declared otherwise: transformers casts first, then multiplies in that type.
    weight = torch.randn(8, width)
    layer = Gemma4TextScaledWordEmbedding(8, width, 0, embed_scale=width**0.5)
    with torch.no_grad():
        layer.weight.copy_(weight)
        expected = layer.to(getattr(torch, declared))(torch.arange(8)).float()
    embeddings = VerifierEmbeddings(write_table(tmp_path, weight, {"dtype": declared}))
    assert torch.equal(embeddings.rows(torch.arange(8)), expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, torch.float16),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float32"}, torch.float32),
        ({"text_config": {"vocab_size": 4, "hidden_size": 6, "dtype": "bfloat16"}}, torch.bfloat16),
        ({"dtype": "float32", "text_config": {"vocab_size": 4, "hidden_size": 6, "dtype": "bfloat16"}}, torch.float32),
    ],
)
def test_the_declared_type_is_found(tmp_path: Path, config: dict[str, Any], expected: torch.dtype) -> None:
    folder = write_table(tmp_path, torch.ones(4, 6, dtype=torch.float16), config)
    assert VerifierEmbeddings(folder).dtype == expected


def test_chunks_cover_all_ids_in_order(tmp_path: Path) -> None:
    embeddings = VerifierEmbeddings(write_table(tmp_path, torch.randn(10, 6)))
    ids = torch.tensor([9, 0, 4, 4, 2])
    parts = list(embeddings.chunks(ids, chunk_rows=2))
    assert [part.tolist() for part, _ in parts] == [[9, 0], [4, 4], [2]]
    assert torch.equal(torch.cat([rows for _, rows in parts]), embeddings.rows(ids))


def test_one_shard_of_many_is_enough(tmp_path: Path) -> None:
    write_table(tmp_path, torch.ones(4, 6))
    shard = "model-00001-of-00002.safetensors"
    (tmp_path / "model.safetensors").rename(tmp_path / shard)
    weight_map = {OUTER: shard, "model.language_model.norm.weight": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert VerifierEmbeddings(tmp_path).rows(torch.tensor([3])).shape == (1, 6)


def test_per_layer_tables_are_not_mistaken_for_it(tmp_path: Path) -> None:
    write_table(tmp_path, torch.ones(4, 6))
    other = {"model.language_model.embed_tokens_per_layer.weight": torch.ones(4, 8), OUTER: torch.ones(4, 6)}
    save_file(other, tmp_path / "model.safetensors")
    assert VerifierEmbeddings(tmp_path).name == OUTER


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE])
def test_ids_outside_the_vocabulary_never_wrap(tmp_path: Path, token_id: int) -> None:
    embeddings = VerifierEmbeddings(write_table(tmp_path, torch.ones(VOCAB_SIZE, 6)))
    with pytest.raises(CheckpointError, match=f"not {token_id}"):
        embeddings.rows(torch.tensor([0, token_id]))


def test_a_head_for_another_verifier_is_refused(tmp_path: Path) -> None:
    embeddings = VerifierEmbeddings(write_table(tmp_path, torch.ones(4, 6)))
    embeddings.require_backbone(6)
    with pytest.raises(CheckpointError, match=r"config\.json: hidden_size is 6, .* verifier with 2816"):
        embeddings.require_backbone(2816)


@pytest.mark.parametrize(
    ("weight", "config", "name", "words"),
    [
        (torch.ones(4, 6), {"model_type": "gemma4_assistant"}, OUTER, "model_type is 'gemma4_assistant'"),
        (torch.ones(4, 6), {"text_config": []}, OUTER, "text_config holds a list"),
        (torch.ones(4, 6), {"text_config": {"vocab_size": 4}}, OUTER, "hidden_size is None"),
        (torch.ones(4, 6), {"text_config": {"vocab_size": "4", "hidden_size": 6}}, OUTER, "vocab_size is '4'"),
        (torch.ones(4, 6), {"text_config": {"vocab_size": 5, "hidden_size": 6}}, OUTER, r"\[4, 6\].*\[5, 6\]"),
        (torch.ones(4, 6, dtype=torch.uint8), {}, OUTER, "is torch.uint8, expected floats"),
        (torch.ones(4, 6), {"dtype": "int4"}, OUTER, "dtype is 'int4'"),
        (torch.ones(4, 6), {"dtype": ["float32"]}, OUTER, "dtype is "),
        (torch.ones(4, 6), {}, "model.wte.weight", f"looked for {OUTER} and {INNER}"),
    ],
)
def test_other_checkpoints_are_refused(
    tmp_path: Path, weight: torch.Tensor, config: dict[str, Any], name: str, words: str
) -> None:
    write_table(tmp_path, weight, config, name)
    with pytest.raises(CheckpointError, match=words) as caught:
        VerifierEmbeddings(tmp_path)
    assert str(tmp_path) in str(caught.value)
