"""A tiny random family on disk: verifier, head and tokenizer that belong together, and bundles exported from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, PreTrainedTokenizerFast

from export.bundle import Bundle, open_bundle
from export.mtp.export import export_mtp
from export.mtp.options import MtpExportOptions, MtpExportResult

from ..checkpoint.builders import text_config
from ..tiny import BACKBONE, VOCAB_SIZE, TinyHead, tiny_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from export.checkpoint.mtp import MtpConfig

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
STOP_IDS = [1, 5]
WINDOW = 16
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|turn>' + m['role'] + '\n' + m['content'] + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
CALIBRATION = ["How many apples are in 3 baskets?", "A train goes 60 miles. How far in 2 hours?"]
HELD_OUT = ["Tom has 5 cats and buys 2."]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 300 tokens with turn markers and a chat template."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([*CALIBRATION, *HELD_OUT] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_verifier(seed: int = 5) -> Gemma4ForCausalLM:
    """A gemma4_text whose last sliding and last full layer have the shapes that the tiny head reads."""
    torch.manual_seed(seed)
    sizes = text_config(
        vocab_size=VOCAB_SIZE,
        hidden_size=BACKBONE,
        intermediate_size=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        head_dim=16,
        global_head_dim=32,
        num_kv_shared_layers=0,
        final_logit_softcapping=30.0,
        eos_token_id=STOP_IDS,
    )
    model: Any = Gemma4ForCausalLM(Gemma4TextConfig(**{k: v for k, v in sizes.items() if k != "model_type"})).eval()
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            tensor.uniform_(0.3, 0.9)
        elif "embed_tokens" not in name:
            tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
        else:
            tensor.normal_(0.0, 1.0)
    return model  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Family:
    """Folders of one family; `verifier` holds the tokenizer too."""

    head: TinyHead
    verifier: Path
    model: Gemma4ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    calibration: Path
    held_out: Path

    def options(self, out: Path, **changes: Any) -> MtpExportOptions:
        """A 4-bit export with a keep set of 100 tokens."""
        defaults = {
            "checkpoint": str(self.head.folder),
            "verifier": str(self.verifier),
            "out": out,
            "default_prompts": self.calibration,
            "held_out_prompts": self.held_out,
            "window": WINDOW,
            "keep_set": "100",
        }
        return MtpExportOptions(**{**defaults, **changes})


@dataclass(frozen=True)
class Exported:
    """One finished export."""

    result: MtpExportResult
    bundle: Bundle
    config: MtpConfig


def write_prompts(path: Path, questions: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"question": q, "answer": "7"}) + "\n" for q in questions))
    return path


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Verifier, head and tokenizer; random, and of true architecture."""
    folder = tmp_path_factory.mktemp("family")
    verifier, tokenizer = tiny_verifier(), tiny_tokenizer()
    verifier.save_pretrained(folder / "verifier")
    tokenizer.save_pretrained(folder / "verifier")
    assert len(tokenizer) <= VOCAB_SIZE
    return Family(
        head=tiny_head(folder / "head"),
        verifier=folder / "verifier",
        model=verifier,
        tokenizer=tokenizer,
        calibration=write_prompts(folder / "calibration.jsonl", CALIBRATION),
        held_out=write_prompts(folder / "held_out.jsonl", HELD_OUT),
    )


@pytest.fixture(scope="session", autouse=True)
def _short_answers() -> Iterator[None]:
    """The random verifier never ends; 12 tokens of it tell as much as 64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.mtp.states._ANSWER_TOKENS", 12)
        yield


@pytest.fixture(scope="session")
def export(family: Family) -> Callable[..., Exported]:
    """Run an export and open what it wrote."""

    def run(out: Path, **changes: Any) -> Exported:
        result = export_mtp(family.options(out, **changes), lambda _: None)
        return Exported(result, open_bundle(out), family.head.config)

    return run


@pytest.fixture(scope="session")
def exported(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The default export: prompts for calibration, table, compiled where the compiler exists."""
    return export(tmp_path_factory.mktemp("bundles") / "bundle")


def random_rows(token_id: int) -> np.ndarray:
    """A stand-in for an embedding table."""
    return np.random.default_rng(token_id).standard_normal(BACKBONE).astype(np.float32)
