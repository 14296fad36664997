"""`train_family`: all stages in order, then the finished folder with weights, tokenizer, figures and model cards."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from export.hashing import sha256_file
from hyco_npu.family import card, stages
from hyco_npu.family.evaluate import evaluate_family
from hyco_npu.family.stages import Recipe, Run
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hyco_npu.family.corpus import Document

DEFAULT_RECIPE = Recipe()
MAX_SIZE_BYTES = 20_000_000
"""What the embedded family may weigh in the repository and the wheel."""
RECORD = "family.json"
"""What a family was made of and what was measured, beside the three model folders."""
_SCHEMA_VERSION = 1
_WITH_TOKENIZER = ("verifier", "slm")
_FIGURES = {
    "verifier": ("verifier_answer_nll", "answer_problems"),
    "mtp": ("prompts", "max_new_tokens", "draft_tokens", "mtp_", "union_"),
    "slm": ("prompts", "max_new_tokens", "draft_tokens", "slm_", "union_"),
}


def train_family(
    corpus: Path, held_out: Path, out: Path, work_dir: Path, seed: int, recipe: Recipe = DEFAULT_RECIPE
) -> dict[str, object]:
    """Train the family on `corpus` into `out`/verifier, mtp and slm; returns its held-out figures and sizes in bytes.

    A broken run goes on from `work_dir`. Where `out` already holds the result of the same corpora, seed and recipe, its
    figures are returned. Raises UsageError for any other existing `out` or a `work_dir` of other work, and HycoError
    when the result weighs more than MAX_SIZE_BYTES.
    """
    card.require_matplotlib()
    inputs = _inputs(corpus, held_out, seed, recipe)
    if out.exists():
        return _finished_figures(out, inputs)
    _claim(work_dir, inputs)
    run = Run(corpus, held_out, work_dir, seed, recipe)
    texts = _run_stages(run)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _collect_models(work_dir, temporary)
        figures = evaluate_family(temporary, work_dir, held_out, seed=seed)
        training = card.Training(work_dir, corpus.name, seed, recipe, texts)
        for name, prefixes in _FIGURES.items():
            own = {key: value for key, value in figures.items() if key.startswith(prefixes)}
            _write_json(temporary / name / "metrics.json", own)
            card.write_card(temporary / name, training, own)
        sizes = _sizes(temporary)
        _write_json(temporary / RECORD, {"schema_version": _SCHEMA_VERSION, "inputs": inputs, "figures": figures})
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return figures | sizes


def _inputs(corpus: Path, held_out: Path, seed: int, recipe: Recipe) -> dict[str, object]:
    """What decides the result; equal inputs mean the same work."""
    return {
        "corpus_sha256": sha256_file(corpus),
        "held_out_sha256": sha256_file(held_out),
        "seed": seed,
        "recipe": asdict(recipe),
    }


def _finished_figures(out: Path, inputs: dict[str, object]) -> dict[str, object]:
    record = _read_json(out / RECORD)
    if record is None or record.get("inputs") != inputs:
        raise UsageError(f"{out} exists and is not the result of this corpus, seed and recipe; name another --out")
    figures = record["figures"]
    if not isinstance(figures, dict):
        raise HycoError(f"{out / RECORD} has no figures; remove {out} and train again")
    return figures | _sizes(out)


def _claim(work_dir: Path, inputs: dict[str, object]) -> None:
    """Mark `work_dir` as this work's, so that the state of another seed or corpus is never taken for its own."""
    work_dir.mkdir(parents=True, exist_ok=True)
    owner = _read_json(work_dir / "inputs.json")
    if owner is not None and owner != inputs:
        changed = sorted(key for key in inputs if owner.get(key) != inputs[key])
        raise UsageError(
            f"{work_dir} holds the state of another run (other {', '.join(changed)}); name another --work-dir"
        )
    _write_json(work_dir / "inputs.json", inputs)


def _run_stages(run: Run) -> card.TextCounts:
    tokenizer = stages.make_tokenizer(run)
    verifier = stages.make_verifier(run, tokenizer)
    own_text = stages.make_own_text(run, tokenizer, verifier)
    texts = stages.drafter_texts(run, tokenizer, own_text)
    stages.make_mtp(run, verifier, texts)
    for second_stage in (stages.make_slm, stages.make_slm_control):
        second_stage(run, verifier, texts, stages.make_float_slm(run, verifier, texts))
    return card.TextCounts(_count(texts.human), _count(texts.human_share(run.recipe)), _count(own_text))


def _count(documents: list[Document]) -> tuple[int, int]:
    return len(documents), sum(len(document.ids) for document in documents)


def _collect_models(work_dir: Path, folder: Path) -> None:
    # copyfile leaves the permissions behind: safetensors writes files that only their owner may read.
    for name in card.MODEL_NAMES:
        sources = [work_dir / name, work_dir / "tokenizer"] if name in _WITH_TOKENIZER else [work_dir / name]
        for source in sources:
            shutil.copytree(source, folder / name, copy_function=shutil.copyfile, dirs_exist_ok=True)


def _sizes(folder: Path) -> dict[str, object]:
    sizes = {
        f"{name}_size_bytes": sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        for name in card.MODEL_NAMES
    }
    total = sum(sizes.values())
    if total > MAX_SIZE_BYTES:
        raise HycoError(
            f"the family takes {total:,} bytes of at most {MAX_SIZE_BYTES:,}; make its architecture smaller"
        )
    return {**sizes, "size_bytes": total}


def _read_json(path: Path) -> dict[str, object] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HycoError(f"{path} is not JSON ({error}); remove its folder and train again") from error
    return content if isinstance(content, dict) else {}


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
