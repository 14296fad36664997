"""`hyco-npu fit-scores`: temperature and bias of each drafter's scores, so that the tree ranks their drafts fairly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.decode_options import ConfigOption, HeadOption, SlmOption, TokensOption, VerifierOption
from hyco_npu.cli.output import JsonOption, emit, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

    from hyco_npu.decode.fit_scores import FittedScores

app = typer.Typer()


@command(app, "fit-scores", example="hyco-npu fit-scores --config hyco --out scores.toml")
def fit_scores(
    config: ConfigOption = "hyco",
    prompts: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Prompts to fit on, never those that results are reported on.",
            show_default="the family's calibration prompts",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first prompts.", show_default="all")] = None,
    max_new_tokens: TokensOption = 96,
    verifier: VerifierOption = None,
    mtp: HeadOption = None,
    slm: SlmOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Tables to append to a configuration (.toml).")] = Path(
        "scores.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the scores of head and SLM for the most accepted tokens per round when a configuration's trees are cut."""
    from calibration.jsonfile import replace_file
    from hyco_npu.cli.files import require_output_file
    from hyco_npu.cli.progress import progress_bar
    from hyco_npu.decode.config import load_config
    from hyco_npu.decode.fit_scores import fit, fitting_prompts, toml_tables
    from hyco_npu.decode.recording import RecordingModels, record_text
    from hyco_npu.defaults import decode_models
    from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS

    require_output_file(out, "--out", ".toml", force=force)
    chosen = load_config(config)
    paths = decode_models("torch", verifier, mtp, slm).paths
    models = RecordingModels(paths)
    texts = fitting_prompts(models.tokenizer, prompts or CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, limit)
    with progress_bar(stderr_console(), "texts", len(texts)) as done:
        recorded = []
        for number, token_ids in enumerate(texts, start=1):
            recorded.append(record_text(models, chosen, token_ids, max_new_tokens))
            done(number)
    fitted = fit(chosen, recorded, seed)
    replace_file(out, toml_tables(chosen, fitted).encode())
    result = {**dataclasses.asdict(fitted), "config": chosen.name, "out": out}
    emit(result, as_json, lambda console: render_fit(console, fitted, out))


def render_fit(console: Console, fitted: FittedScores, out: Path) -> None:
    """Scores, what they are worth, and what to do with the file."""
    from rich.table import Table

    table = Table("Source", "Temperature", "Bias")
    for source, score in fitted.scores.items():
        table.add_row(source, f"{score.temperature:g}", f"{score.bias:g}")
    console.print(table)
    console.print(fitted.verdict, highlight=False)
    console.print(f"{out}: append it to a copy of the configuration", highlight=False)
