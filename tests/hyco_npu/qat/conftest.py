"""A tiny random family on disk, recorded texts of its verifier, and runs of the whole command on it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from export.checkpoint.mtp import read_mtp_checkpoint
from export.graphs.mtp import load_mtp_head
from hyco_npu.family.corpus import Document
from hyco_npu.qat.chain import Trunk, centroids_of
from hyco_npu.qat.data import Recorded, RowBuilder, record
from hyco_npu.qat.options import QatOptions, Recipe
from tests.export.mtp.conftest import STOP_IDS, tiny_tokenizer, tiny_verifier
from tests.export.tiny import TinyHead, tiny_head

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Gemma4ForCausalLM

CPU = torch.device("cpu")
TRAINING = ["How many apples are in 3 baskets?", "A train goes 60 miles. How far in 2 hours?"]
VALIDATION = ["Tom has 5 cats and buys 2.", "A hen lays 2 eggs a day. How many in 9 days?"]


@dataclass(frozen=True)
class Tiny:
    """Head, verifier and prompts that belong together."""

    head: TinyHead
    verifier_folder: Path
    verifier: Gemma4ForCausalLM
    prompts: Path
    validation: Path

    def options(self, out: Path, **changes: Any) -> QatOptions:
        """Six steps of four answers, three rows of each."""
        recipe = Recipe(steps=6, sequences=4, rows=3, answer_tokens=8, learning_rate=0.01)
        options = QatOptions(
            self.head.folder,
            self.verifier_folder,
            self.prompts,
            self.validation,
            out,
            out.with_name(f"{out.name}.work"),
            recipe,
            device="cpu",
        )
        of_recipe = {name: changes.pop(name) for name in list(changes) if hasattr(recipe, name)}
        return replace(options, recipe=replace(recipe, **of_recipe), **changes)


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The family; its verifier never stops, so that every answer has its full length."""
    folder = tmp_path_factory.mktemp("tiny")
    verifier = tiny_verifier()
    with torch.no_grad():
        # one direction of the hidden state away from the stop tokens' rows would do; zero rows never win
        verifier.get_input_embeddings().weight[STOP_IDS] = 0.0
    verifier.save_pretrained(folder / "verifier")
    tiny_tokenizer().save_pretrained(folder / "verifier")
    files = {}
    for name, questions in (("prompts", TRAINING), ("validation", VALIDATION)):
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps({"question": q, "answer": "7"}) + "\n" for q in questions))
    return Tiny(tiny_head(folder / "head"), folder / "verifier", verifier, files["prompts"], files["validation"])


@pytest.fixture(scope="package")
def texts(tiny: Tiny) -> list[Recorded]:
    """Random texts of unequal lengths, longer than the head's window of 8 rows."""
    generator = torch.Generator().manual_seed(3)
    documents = [
        Document(torch.randint(6, 300, (length,), generator=generator).tolist(), prompt)
        for length, prompt in ((22, 9), (17, 5), (30, 14), (12, 10))
    ]
    return [record(tiny.verifier, document, CPU) for document in documents]


@pytest.fixture
def trunk(tiny: Tiny) -> Trunk:
    return trunk_of(tiny.head.folder)


@pytest.fixture
def builder(tiny: Tiny) -> RowBuilder:
    return RowBuilder(tiny.head.config, 1024)


def trunk_of(folder: Path) -> Trunk:
    """The trunk of the checkpoint at `folder`."""
    checkpoint = read_mtp_checkpoint(folder)
    state = checkpoint.state_dict()
    return Trunk(load_mtp_head(checkpoint.config, state), centroids_of(checkpoint.config, state))
