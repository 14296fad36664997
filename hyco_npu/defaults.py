"""Defaults of every command: the embedded family, so that each runs with no other argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.mtp.options import MtpExportOptions
from export.slm.options import SlmExportOptions
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, MTP_DIR, SLM_DIR, VERIFIER_DIR


def mtp_export_options(out: Path, checkpoint: str | None = None, verifier: str | None = None, **others: Any) -> Any:
    """Export options with the family filled in: its head, and for its head its verifier."""
    if checkpoint is None or Path(checkpoint).resolve() == MTP_DIR.resolve():
        checkpoint, verifier = str(MTP_DIR), verifier or str(VERIFIER_DIR)
    return MtpExportOptions(
        checkpoint=checkpoint,
        verifier=verifier,
        out=out,
        default_prompts=CALIBRATION_PROMPTS,
        held_out_prompts=HELD_OUT_PROMPTS,
        **others,
    )


def slm_export_options(out: Path, checkpoint: str | None = None, verifier: str | None = None, **others: Any) -> Any:
    """Export options with the family filled in: its SLM, and for its SLM its verifier."""
    if checkpoint is None or Path(checkpoint).resolve() == SLM_DIR.resolve():
        checkpoint, verifier = str(SLM_DIR), verifier or str(VERIFIER_DIR)
    return SlmExportOptions(
        checkpoint=checkpoint,
        verifier=verifier,
        out=out,
        default_prompts=CALIBRATION_PROMPTS,
        held_out_prompts=HELD_OUT_PROMPTS,
        **others,
    )


def decode_models(
    engine: Any,
    verifier: Path | None = None,
    mtp: Path | None = None,
    slm: Path | None = None,
    bundles: tuple[Path | None, Path | None] = (None, None),
) -> Any:
    """The models of a decoding run with the family filled in; `bundles` are the head's and the SLM's."""
    from transformers.utils import logging as transformers_logging

    from hyco_npu.decode.models import ModelPaths, Models

    transformers_logging.disable_progress_bar()
    return Models(ModelPaths(verifier or VERIFIER_DIR, mtp or MTP_DIR, slm or SLM_DIR, *bundles), engine)
