"""Model cards: what a model of the family is, what it was trained on, what was measured, what it cannot do.

Everything in a card is read from the stored weights, the configuration, the curves of the run and the figures handed
in; this module measures nothing.
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from transformers import AutoConfig

from hyco_npu.family.quantization_card import parameter_count, quantization_sections, table
from quant.errors import HycoError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from hyco_npu.family.stages import Recipe

MODEL_NAMES = ("verifier", "mtp", "slm")
_TITLES = {
    "verifier": "Verifier of the embedded family",
    "mtp": "MTP head of the embedded family",
    "slm": "SLM of the embedded family",
}
_ROLES = {
    "verifier": "The model whose greedy text the drafters predict: a Gemma 4 26B-A4B in small (`Gemma4ForCausalLM`, "
    "model type `gemma4_text`), with a mixture of experts in parallel with the dense MLP.",
    "mtp": "Drafts chains of four tokens from the verifier's last hidden state, its keys and values and its input "
    "embeddings: a Gemma 4 26B-A4B-it-assistant in small (`Gemma4AssistantForCausalLM`). It cannot run without the "
    "verifier beside it, and shares its tokenizer.",
    "slm": "Drafts on its own from the text alone: a Gemma 4 E2B in small (`Gemma4ForCausalLM`, model type "
    "`gemma4_text`), with per-layer embeddings and KV sharing, in 2, 4 and 8-bit codes (`quant_method: gemma`).",
}
_STAGES = {
    "verifier": "Next-token training on the corpus, in chat form, prompts included.",
    "mtp": "KL to the verifier at chain steps 1 to 4, the head's own hidden state fed back, tokens teacher-forced, on "
    "the verifier's own text and the corpus.",
    "slm": "KL to the verifier at every position, on the verifier's own text and the corpus: `slm_epochs` in floats, "
    "then `slm_qat_epochs` with weights, activations, keys and values rounded in the forward and their scales learned. "
    "Curve and optimiser steps are the second stage's.",
}
_STORED = {"verifier": "rounded to bf16", "mtp": "rounded to bf16", "slm": "stored as codes, others rounded to bf16,"}
_RECIPE_FIELDS = {
    "verifier": ("tokens_per_batch", "verifier_epochs", "verifier_learning_rate"),
    "mtp": ("tokens_per_batch", "mtp_epochs", "drafter_learning_rate", "own_text_share", "answer_tokens"),
    "slm": (
        "tokens_per_batch",
        "slm_epochs",
        "drafter_learning_rate",
        "slm_qat_epochs",
        "slm_qat_learning_rate",
        "own_text_share",
        "answer_tokens",
    ),
}
_LIMITS = """\
- Its arithmetic is wrong: the text reads like a worked answer, the numbers in it do not follow from the question.
- It is a testbed for drafting, quantisation and export, not an assistant: trained on nothing but the texts below.
- English grade-school word problems only. Other text, and contexts beyond 288 tokens, were never trained on.
- Acceptance measured on it says nothing about that of the full-size models."""
_CURVES = {
    "verifier": ({"loss": "training loss", "held_out_answer_nll": "held-out answers"}, "nats per token", {}, ""),
    "mtp": (
        {f"top1_step{step}": f"chain step {step}" for step in range(1, 5)},
        "top-1 agreement with the verifier",
        {},
        "",
    ),
    "slm": ({"loss": "KL to the verifier"}, "nats per token", {"top1_agreement": "top-1"}, "top-1 agreement"),
}
"""Model -> columns and label of the left axis, columns and label of the right axis."""


@dataclass(frozen=True)
class TextCounts:
    """Documents and tokens of the corpus, of the part of it that the drafters see, of the verifier's own text."""

    corpus: tuple[int, int]
    drafters_corpus: tuple[int, int]
    own: tuple[int, int]


@dataclass(frozen=True)
class Training:
    """A finished run: `work_dir` holds the curves, `corpus_name` is the corpus' file name."""

    work_dir: Path
    corpus_name: str
    seed: int
    recipe: Recipe
    texts: TextCounts


def require_matplotlib() -> None:
    """Raise HycoError where the curves cannot be drawn, before hours are spent on training."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HycoError("the model cards' curves need matplotlib, which is not installed: pip install matplotlib")


def write_card(folder: Path, training: Training, figures: Mapping[str, object]) -> None:
    """Write README.md and curve.png into a model's `folder`, whose name says which of the three it is."""
    name = folder.name
    rows = read_curve(training.work_dir / f"{name}.csv")
    draw_curve(name, rows, folder / "curve.png")
    text = render_card(folder, training, figures, steps=int(rows[-1]["step"]))
    (folder / "README.md").write_text(text, encoding="utf-8")


def render_card(folder: Path, training: Training, figures: Mapping[str, object], steps: int) -> str:
    """The model card in Markdown with a Hugging Face header."""
    name = folder.name
    recipe = asdict(training.recipe)
    recipe_rows = [("seed", training.seed), ("optimiser steps", steps)]
    recipe_rows += [(field, recipe[field]) for field in _RECIPE_FIELDS[name]]
    sections = [
        "---\nlicense: apache-2.0\nlibrary_name: transformers\nlanguage: en\ndatasets: [openai/gsm8k]\n---",
        f"# {_TITLES[name]}",
        _ROLES[name],
        "## What it cannot do",
        _LIMITS,
        "## Architecture",
        table(("Property", "Value"), _architecture_rows(folder)),
        *(quantization_sections(folder, figures) if name == "slm" else ()),
        "## Training data",
        table(("Text", "Documents", "Tokens"), _text_rows(name, training)),
        "GSM8K: MIT licence, Copyright (c) 2021 OpenAI. Trained on, not shipped.",
        "## Recipe",
        f"{_STAGES[name]} Muon for matrices, AdamW for the rest, cosine schedule; weights {_STORED[name]} at the end.",
        table(("Setting", "Value"), recipe_rows),
        "![Training curve](curve.png)",
        "## Held-out figures",
        "GSM8K test problems from row 101 on, float32 with the weights as stored; `ci95` is the 95 % interval of a "
        "bootstrap over prompts, `nll` is in nats per token of the human answers.",
        table(("Figure", "Value"), [(key, _format(value)) for key, value in figures.items()]),
    ]
    return "\n\n".join(sections) + "\n"


def read_curve(path: Path) -> list[dict[str, float]]:
    """Rows of a stage's curve by rising step; a step written twice around a resume counts once, the later row."""
    by_step: dict[float, dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            numbers = {key: float(value) for key, value in row.items()}
            by_step[numbers["step"]] = numbers
    if not by_step:
        raise HycoError(f"{path} holds no step of the training curve; remove it and its .pt file and train again")
    return [by_step[step] for step in sorted(by_step)]


def draw_curve(name: str, rows: list[dict[str, float]], path: Path) -> None:
    """The training curve of one model as a PNG of 560 x 320 pixels."""
    from matplotlib.figure import Figure

    left, left_label, right, right_label = _CURVES[name]
    figure = Figure(figsize=(7, 4), dpi=80, layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{name}: training, smoothed")
    axes.set_xlabel("optimiser step")
    lines = _plot(axes, rows, left, left_label, "-")
    axes.grid(alpha=0.3)
    if right:
        axes = axes.twinx()  # the legend goes with the axis drawn last, else its lines cross it
        lines += _plot(axes, rows, right, right_label, "--")
    axes.legend(handles=lines, loc="center right")
    figure.savefig(path, format="png")


def _plot(axes: Axes, rows: list[dict[str, float]], columns: Mapping[str, str], label: str, style: str) -> list[Any]:
    axes.set_ylabel(label)
    steps = [row["step"] for row in rows]
    color = "tab:orange" if style == "--" else None  # a second axis would begin the colours anew
    return [
        axes.plot(steps, [row[column] for row in rows], style, label=title, marker=".", color=color)[0]
        for column, title in columns.items()
    ]


def _architecture_rows(folder: Path) -> list[tuple[str, object]]:
    config: Any = AutoConfig.from_pretrained(folder)
    text = config.get_text_config()
    kinds = [kind.removesuffix("_attention") for kind in text.layer_types]
    layers = {kind: text.per_layer_config[index] for index, kind in enumerate(kinds)}
    rows: list[tuple[str, object]] = [
        ("model type", config.model_type),
        ("layers", f"{len(kinds)}: {', '.join(kinds)}"),
        ("layers that share keys and values", text.num_kv_shared_layers),
        ("hidden size", text.hidden_size),
        ("attention heads", text.num_attention_heads),
    ]
    for kind, layer in layers.items():
        rows.append((f"{kind}: KV heads, head dim", f"{layer.num_key_value_heads}, {layer.head_dim}"))
    double = ", doubled in layers that share" if text.use_double_wide_mlp else ""
    rows += [
        ("keys are values in full layers", text.attention_k_eq_v),
        ("window", f"{text.sliding_window} tokens"),
        ("MLP size", f"{text.intermediate_size}{double}"),
    ]
    if text.enable_moe_block:
        rows.append(("experts", f"{text.num_experts} of size {text.moe_intermediate_size}, top {text.top_k_experts}"))
    if text.hidden_size_per_layer_input:
        rows.append(("per-layer embedding", text.hidden_size_per_layer_input))
    if backbone := getattr(config, "backbone_hidden_size", None):
        rows.append(("verifier's hidden size", backbone))
    rows += [
        ("vocabulary", f"{text.vocab_size}, output layer {'tied' if config.tie_word_embeddings else 'untied'}"),
        ("logit softcap", text.final_logit_softcapping or "none"),
    ]
    return rows + _weight_rows(folder)


def _weight_rows(folder: Path) -> list[tuple[str, object]]:
    path = folder / "model.safetensors"
    numbers, scalars, types = 0, [], set()
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
            tensor = file.get_tensor(name)
            numbers += tensor.numel()
            types.add(str(tensor.dtype).removeprefix("torch."))
            if name.endswith("layer_scalar"):
                scalars.append(f"{tensor.item():.3f}")
    # Bytes hold several codes each, and scales are no parameters of the architecture.
    parameters = parameter_count(folder) if folder.name == "slm" else numbers
    return [
        ("layer_scalar by layer", ", ".join(scalars)),
        ("parameters", f"{parameters:,}"),
        ("weights", f"{path.stat().st_size:,} bytes, {', '.join(sorted(types))}"),
    ]


def _text_rows(name: str, training: Training) -> list[tuple[str, str, str]]:
    texts = training.texts
    gsm8k, own = f"GSM8K, `{training.corpus_name}`", "The verifier's own answers to its questions with other numbers"
    counts = {gsm8k: texts.corpus} if name == "verifier" else {own: texts.own, gsm8k: texts.drafters_corpus}
    return [(text, f"{documents:,}", f"{tokens:,}") for text, (documents, tokens) in counts.items()]


def _format(value: object) -> str:
    if isinstance(value, list | tuple):
        return " to ".join(_format(entry) for entry in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
