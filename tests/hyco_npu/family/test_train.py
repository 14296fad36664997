"""One whole run of a few steps: what it writes, what transformers loads of it, and what it refuses."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoTokenizer,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    GenerationConfig,
)

from hyco_npu.family import card, loop, stages, train
from hyco_npu.family.stages import Recipe
from hyco_npu.family.train import train_family
from quant.errors import HycoError, UsageError
from tests.hyco_npu.family.builders import write_problems

if TYPE_CHECKING:
    from pathlib import Path

# Learning rates that move a layer scalar by more than a bf16 step within the one or two steps there are.
RECIPE = Recipe(
    tokens_per_batch=512,
    verifier_epochs=0.5,
    verifier_learning_rate=0.5,
    generated_tokens=300,
    mtp_epochs=0.5,
    slm_epochs=0.5,
    drafter_learning_rate=0.5,
    slm_qat_epochs=0.5,
    slm_qat_learning_rate=0.5,
    answer_tokens=6,
)
CLASSES = {"verifier": Gemma4ForCausalLM, "mtp": Gemma4AssistantForCausalLM, "slm": Gemma4ForCausalLM}


@dataclass(frozen=True)
class Trained:
    corpus: Path
    held_out: Path
    work_dir: Path
    out: Path
    figures: dict[str, object]

    def again(self, out: Path, work_dir: Path | None = None, seed: int = 0) -> dict[str, object]:
        return train_family(self.corpus, self.held_out, out, work_dir or self.work_dir, seed, RECIPE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("family")
    corpus = write_problems(folder / "toy.jsonl", 24)
    held_out = write_problems(folder / "held_out.jsonl", 101)
    figures = train_family(corpus, held_out, folder / "out", folder / "work", 0, RECIPE)
    return Trained(corpus, held_out, folder / "work", folder / "out", figures)


@pytest.mark.parametrize("name", CLASSES)
def test_transformers_loads_every_model(trained: Trained, name: str) -> None:
    model, report = CLASSES[name].from_pretrained(trained.out / name, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.model.norm.weight.dtype == torch.bfloat16
    assert GenerationConfig.from_pretrained(trained.out / name).eos_token_id == [1, 5]
    scalars = [layer.layer_scalar for layer in model.model.layers]
    # The last layer's is the exception: the final norm undoes it, so that nothing draws it away from 1.
    assert all(scalar.item() != 1.0 for scalar in scalars[:-1])
    assert (trained.out / name / "model.safetensors").stat().st_mode & 0o044 == 0o044


@pytest.mark.parametrize("name", ["verifier", "slm"])
def test_tokenizer_lies_beside_the_models_that_read_text(trained: Trained, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained.out / name)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Tom has 12 apples"}])["input_ids"]
    assert ids[0] == tokenizer.bos_token_id == 2
    assert "Tom has 12 apples" in tokenizer.decode(ids)
    assert max(ids) < 2048


def test_figures_and_sizes_are_those_on_disk(trained: Trained) -> None:
    files = [file for file in trained.out.rglob("*") if file.is_file() and file.parent != trained.out]
    assert trained.figures["size_bytes"] == sum(file.stat().st_size for file in files) < 20_000_000
    assert trained.figures["prompts"] == trained.figures["answer_problems"] == 1
    assert 0 <= trained.figures["mtp_accepted_per_round"] <= trained.figures["draft_tokens"] == 4
    assert trained.figures["union_accepted_per_round"] >= 0
    for name, key in [("verifier", "verifier_answer_nll"), ("mtp", "mtp_rounds"), ("slm", "slm_rounds")]:
        metrics = json.loads((trained.out / name / "metrics.json").read_text())
        assert metrics[key] == trained.figures[key]
    assert not list(trained.out.parent.glob("*.tmp"))


@pytest.mark.parametrize("name", CLASSES)
def test_card_tells_weights_data_and_limits(trained: Trained, name: str) -> None:
    text = (trained.out / name / "README.md").read_text(encoding="utf-8")
    # The SLM has the parameters of its float form, whatever their bits.
    weights = trained.work_dir / "slm_float" if name == "slm" else trained.out / name
    with safe_open(weights / "model.safetensors", framework="pt") as file:
        parameters = sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118
    assert f"| parameters | {parameters:,} |" in text
    for fact in ("| window | 64 tokens |", "bfloat16", "MIT", "Copyright (c) 2021 OpenAI", "arithmetic is wrong"):
        assert fact in text
    assert "| seed | 0 |" in text
    assert str(trained.work_dir) not in text


def test_the_slm_s_card_tells_what_quantisation_cost(trained: Trained) -> None:
    text = (trained.out / "slm" / "README.md").read_text(encoding="utf-8")
    metrics = json.loads((trained.out / "slm" / "metrics.json").read_text())
    for name, reference in (("slm_quantization_cost", "slm_float"), ("slm_rounding_cost", "slm_control")):
        lost = metrics[name]
        assert lost == metrics[f"{reference}_accepted_per_round"] - metrics["slm_accepted_per_round"]
        assert f"a loss of {lost:.3f} (95 % interval" in text
    # By hand from the architecture: 128 wide, 6 layers, MLPs of 320, 640 in the layers that share.
    for row in (
        "| `lm_head` | 2 | 262,144 | 65,536 |",
        "| `embed_tokens` | 2 | 262,144 | 65,536 |",
        "| `embed_tokens_per_layer` | 4 | 393,216 | 196,608 |",
        "| `mlp` of layers 0, 1, 2 | 4 | 368,640 | 184,320 |",
        "| `mlp` of layers 3, 4, 5 | 2 | 737,280 | 184,320 |",
        "| `per_layer_input_gate` of layers 0, 1, 2, 3, 4, 5 | 8 | 24,576 | 24,576 |",
        "| `per_layer_projection` of layers 0, 1, 2, 3, 4, 5 | 8 | 24,576 | 24,576 |",
        "| `per_layer_model_projection` | bf16 | 24,576 | 49,152 |",
    ):
        assert row in text


@pytest.mark.parametrize("name", CLASSES)
def test_curve_is_a_small_png(trained: Trained, name: str) -> None:
    content = (trained.out / name / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (560, 320)
    assert len(content) < 60_000


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "slm.csv"
    path.write_text("step,loss\n100,3.0\n200,2.0\n200,1.5\n")
    assert card.read_curve(path) == [{"step": 100, "loss": 3.0}, {"step": 200, "loss": 1.5}]
    path.write_text("step,loss\n")
    with pytest.raises(HycoError, match="no step"):
        card.read_curve(path)


def test_finished_work_is_returned_without_training(trained: Trained, tmp_path: Path) -> None:
    assert trained.again(trained.out, work_dir=tmp_path / "untouched") == trained.figures
    assert not (tmp_path / "untouched").exists()


def test_other_work_is_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the result of this corpus, seed and recipe"):
        trained.again(trained.out, seed=1)
    with pytest.raises(UsageError, match="state of another run \\(other seed\\)"):
        trained.again(tmp_path / "out", seed=1)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="name another --out"):
        trained.again(tmp_path / "mine")


def test_too_large_family_is_an_error_and_leaves_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "evaluate_family", lambda *_, **__: dict(trained.figures))
    monkeypatch.setattr(train, "MAX_SIZE_BYTES", 1000)
    with pytest.raises(HycoError, match="bytes of at most 1,000"):
        trained.again(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_broken_run_goes_on_with_the_stage_that_is_missing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its last result and checkpoint the SLM is trained again, to the same bytes; the rest is reused."""
    monkeypatch.setattr(train, "evaluate_family", lambda *_, **__: dict(trained.figures))
    work_dir = tmp_path / "work"
    shutil.copytree(trained.work_dir, work_dir)
    shutil.rmtree(work_dir / "slm")
    (work_dir / "slm.pt").unlink()
    trained.again(tmp_path / "out", work_dir)
    for name in CLASSES:
        weights = (tmp_path / "out" / name / "model.safetensors").read_bytes()
        assert weights == (trained.out / name / "model.safetensors").read_bytes()


def test_quantisation_aware_training_goes_on_within_the_stage(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off after its first step, the stage goes on from its checkpoint, learned scales included."""
    run = stages.Run(trained.corpus, trained.held_out, trained.work_dir, 0, replace(RECIPE, slm_qat_epochs=2.0))
    tokenizer = stages.make_tokenizer(run)
    verifier = stages.make_verifier(run, tokenizer)
    texts = stages.drafter_texts(run, tokenizer, stages.make_own_text(run, tokenizer, verifier))
    loss, calls = stages.distillation_loss, 0

    def failing_loss(*args: Any) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return loss(*args)

    def train(work_dir: Path) -> bytes:
        there = replace(run, work_dir=work_dir)
        stages.make_slm(there, verifier, texts, stages.load_slm(run.work_dir / "slm_float"))
        return (work_dir / "slm" / "model.safetensors").read_bytes()

    monkeypatch.setattr(loop, "_CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(stages, "distillation_loss", failing_loss)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken")
    monkeypatch.setattr(stages, "distillation_loss", loss)
    assert train(tmp_path / "broken") == train(tmp_path / "whole")
    assert len((tmp_path / "whole" / "slm.csv").read_text().splitlines()) > 2


def test_missing_matplotlib_is_told_before_training(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(HycoError, match="pip install matplotlib"):
        trained.again(tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "work").exists()
