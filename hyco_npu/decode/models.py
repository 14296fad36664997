"""Opens what a configuration names: verifier, head and SLM, on one of four engines, each model once.

Engines: "torch" and "onnx" (floats, weights rounded as configured; the latter is traced at first and then faster),
"qdq" (quantised graphs on ONNX Runtime's CPU provider) and "simulator" (the compiled graphs on Qualcomm's HTP
simulator). The latter two take bundles, whose bits and window must be those of the configuration; their keep set is
their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from export.bundle import open_bundle
from export.checkpoint.mtp import read_mtp_checkpoint
from export.checkpoint.slm import read_slm_checkpoint
from export.checkpoint.slm_tables import per_layer_table, token_table
from export.checkpoint.verifier import VerifierEmbeddings
from export.engines.htp import why_unavailable
from export.graphs.feeds import FeedBuilder
from export.mtp.chain import MtpChain
from export.slm.runner import SlmModel, SlmTables
from export.sources import DEFAULT_KEEP_SIZE, counted_keep_set, default_keep_size, load_tokenizer, read_vocabulary
from hyco_npu.decode import bundles
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.drafters.parts import MtpEngine, Parts, SlmEngine
from hyco_npu.decode.drafters.registry import build_drafter
from hyco_npu.decode.engines import TimedGraph, TorchMtp, TorchSlm
from hyco_npu.decode.fused_norms import fuse_norms
from hyco_npu.decode.load import is_gemma4, load_any_verifier
from hyco_npu.decode.onnx_engine import onnx_mtp, onnx_slm
from hyco_npu.decode.verifier import VerifierModel
from hyco_npu.family import CALIBRATION_PROMPTS, MTP_DIR, SLM_DIR, VERIFIER_DIR
from quant.errors import UsageError
from quant.table import build_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from export.bundle.reader import Bundle
    from export.engines.graph_io import StepGraph
    from export.slm.runner import PassGraph
    from hyco_npu.decode.config import DecodeConfig, MtpSettings, SlmSettings
    from hyco_npu.decode.protocols import Drafter

Engine = Literal["torch", "onnx", "qdq", "simulator"]
_FLOAT = ("torch", "onnx")
TREE_ROWS = 33
"""Rows of the torch draft graph: a tree of 32 nodes and its root."""
PREFILL_ROWS = 64


@dataclass(frozen=True)
class ModelPaths:
    """Folders of the checkpoints, and of bundles for the engines that run quantised graphs."""

    verifier: Path = VERIFIER_DIR
    mtp: Path = MTP_DIR
    slm: Path = SLM_DIR
    mtp_bundle: Path | None = None
    slm_bundle: Path | None = None
    prompts: Path = CALIBRATION_PROMPTS
    """Counted to make a keep set of a given size."""


@dataclass
class Models:
    """The models of a run; all texts share them and their clock."""

    paths: ModelPaths = ModelPaths()
    engine: Engine = "torch"
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._keeps: dict[int | None, np.ndarray] = {}
        self._heads: dict[object, TorchMtp] = {}
        self._slms: dict[object, TorchSlm] = {}
        self._mtp_engines: dict[object, MtpEngine] = {}
        self._slm_engines: dict[object, SlmEngine] = {}
        if self.engine == "simulator" and (reason := why_unavailable()):
            raise UsageError(f"--engine simulator cannot run here: {reason}; use torch or qdq")

    @cached_property
    def verifier(self) -> VerifierModel:
        """The server's model."""
        return VerifierModel(self._verifier_model)

    @cached_property
    def _verifier_model(self) -> PreTrainedModel:
        model = load_any_verifier(self.paths.verifier)
        fuse_norms(model)
        return model

    @property
    def vocabulary_size(self) -> int:
        """Tokens that the verifier knows."""
        size: int = self._verifier_model.config.get_text_config().vocab_size
        return size

    @torch.inference_mode()
    def _embed(self, token_id: int) -> np.ndarray:
        """The verifier's own scaled embedding [backbone]."""
        row: np.ndarray = self._verifier_model.get_input_embeddings()(torch.tensor([token_id]))[0].numpy()
        return row

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The verifier's tokenizer, which the drafters share."""
        tokenizer = load_tokenizer(self.paths.verifier)
        assert tokenizer is not None  # a folder was given
        return tokenizer

    def drafter(self, config: DecodeConfig) -> Drafter:
        """A drafter for one text. Raises UsageError for an unknown name or a part that the configuration lacks."""
        return build_drafter(config, self.parts(config))

    def parts(self, config: DecodeConfig) -> Parts:
        """The engines of a configuration's sections, opened once for all texts."""
        mtp = slm = None
        if (of_head := config.mtp) is not None:
            if not is_gemma4(self.paths.verifier):
                raise UsageError(f"{config.name} drafts with an MTP head, but {self.paths.verifier} is no Gemma 4")
            key = (of_head.place, of_head.bits, of_head.keep_set, of_head.window)
            if key not in self._mtp_engines:
                self._mtp_engines[key] = self._open_mtp(of_head)
            mtp = self._mtp_engines[key]
        if (of_slm := config.slm) is not None:
            if (of_slm.keep_set, of_slm.window) not in self._slm_engines:
                self._slm_engines[of_slm.keep_set, of_slm.window] = self._open_slm(of_slm)
            slm = self._slm_engines[of_slm.keep_set, of_slm.window]
        return Parts(mtp, slm, self.clock)

    def keep_set(self, size: int | None) -> np.ndarray:
        """The `size` most frequent tokens of the prompts, rising; None is the whole vocabulary.

        The default of 86,016 on a smaller vocabulary is the share that exports keep.
        """
        if size not in self._keeps:
            vocabulary = read_vocabulary(self.paths.verifier, self.vocabulary_size, self.tokenizer)
            if size == DEFAULT_KEEP_SIZE:
                size = default_keep_size(vocabulary.size)
            if size is None:
                self._keeps[None] = np.arange(vocabulary.size)
            else:
                self._keeps[size] = counted_keep_set(str(size), vocabulary, [], self.paths.prompts)[0].token_ids
        return self._keeps[size]

    def _open_mtp(self, settings: MtpSettings) -> MtpEngine:
        phase = f"{settings.place}.mtp"
        if self.engine in _FLOAT or settings.place == "server":
            keep = self.keep_set(settings.keep_set)
            key = (settings.bits, settings.keep_set)
            checkpoint = read_mtp_checkpoint(self.paths.mtp)
            if key not in self._heads:
                self._heads[key] = TorchMtp(checkpoint, keep, settings.bits)
            feeds = FeedBuilder(checkpoint.config, settings.window or 1)
            chain = MtpChain(feeds, keep, self._embedding(settings, keep))
            graph: StepGraph = self._heads[key]
            if self.engine == "onnx":
                graph = onnx_mtp(self._heads[key])
            return MtpEngine(chain, TimedGraph(graph, self.clock, phase), settings.window)
        bundle = self._bundle(self.paths.mtp_bundle, "--mtp-bundle", settings.window)
        _require("bits", settings.bits, bundle.manifest.bits)
        graph = bundles.open_head(bundle, simulator=self.engine == "simulator")
        return MtpEngine(bundles.open_chain(bundle), TimedGraph(graph, self.clock, phase), bundle.manifest.window)

    def _embedding(self, settings: MtpSettings, keep: np.ndarray) -> Callable[[int], np.ndarray]:
        """The server embeds as its model does; the device looks up the 8-bit table of the keep set."""
        if settings.place == "server":
            return self._embed
        table = build_table(VerifierEmbeddings(self.paths.verifier).chunks(torch.from_numpy(np.array(keep))))
        return lambda token_id: table.lookup(token_id).numpy()

    def _open_slm(self, settings: SlmSettings) -> SlmEngine:
        if self.engine in _FLOAT:
            checkpoint = read_slm_checkpoint(self.paths.slm)
            if checkpoint.config.vocab_size != self.vocabulary_size:
                raise UsageError(
                    f"{self.paths.slm} has {checkpoint.config.vocab_size} tokens, the verifier {self.vocabulary_size}: "
                    "drafts of one are no tokens of the other"
                )
            keep = self.keep_set(settings.keep_set)
            key = settings.keep_set
            if key not in self._slms:
                self._slms[key] = TorchSlm(checkpoint, keep, TREE_ROWS)
            tables = SlmTables(token_table(checkpoint), per_layer_table(checkpoint))
            draft: PassGraph = self._slms[key]
            prefill: PassGraph
            prefill, prefill_rows = self._slms[key].with_rows(PREFILL_ROWS), PREFILL_ROWS
            if self.engine == "onnx":
                draft = prefill = onnx_slm(self._slms[key])
                prefill_rows = TREE_ROWS
            model = SlmModel(
                checkpoint.config, tables, draft, TREE_ROWS, prefill, prefill_rows, settings.window, "float32"
            )
        else:
            bundle = self._bundle(self.paths.slm_bundle, "--slm-bundle", settings.window)
            model, keep = bundles.open_slm(bundle, simulator=self.engine == "simulator")
        timed = [TimedGraph(graph, self.clock, "device.slm") for graph in (model.draft, model.prefill)]
        return SlmEngine(replace(model, draft=timed[0], prefill=timed[1]), keep)

    def _bundle(self, folder: Path | None, option: str, window: int | None) -> Bundle:
        if folder is None:
            raise UsageError(f"--engine {self.engine} runs a bundle's graphs: give {option} (see `hyco-npu export`)")
        bundle = open_bundle(folder)
        _require("window", window, bundle.manifest.window)
        _require("vocabulary", self.vocabulary_size, bundle.manifest.keep_set.vocab_size)
        return bundle


def _require(what: str, wanted: object, bundled: object) -> None:
    if wanted != bundled:
        raise UsageError(f"the bundle's {what} is {bundled}, this run needs {wanted}; export it again or change one")
