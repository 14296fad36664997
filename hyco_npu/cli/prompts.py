"""`hyco-npu prompts`: look at prompt files, deal them into splits, let the verifier answer them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, stderr_console
from hyco_npu.family import CALIBRATION_PROMPTS, VERIFIER_DIR
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

    from calibration.prompts import PromptFile

app = typer.Typer(
    no_args_is_help=True,
    help="Prompt files: look at them, deal them into splits, let the verifier answer them.",
    epilog="Example: hyco-npu prompts generate --out responses.jsonl",
)

ChatOption = Annotated[
    bool,
    typer.Option("--chat/--no-chat", help="Put prompts into the chat template, or take them as plain text."),
]


@command(app, "show", example="hyco-npu prompts show questions.jsonl --tokenizer my-verifier")
def show(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE|DIR",
            help="Prompts (.jsonl of Spec-Bench or GSM8K, or a prompt a line), or a folder of splits.",
            show_default="the family's calibration prompts",
        ),
    ] = None,
    tokenizer: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder whose tokenizer counts.", show_default="family")
    ] = VERIFIER_DIR,
    chat: ChatOption = True,
    as_json: JsonOption = False,
) -> None:
    """Show what prompt files hold: counts, categories, lengths in tokens. Splits are checked against their hashes."""
    from calibration.prompts import read_prompt_file
    from calibration.splits import read_split, split_names
    from export.sources import load_tokenizer

    path = path or CALIBRATION_PROMPTS
    files = [read_split(path, name) for name in split_names(path)] if path.is_dir() else [read_prompt_file(path)]
    loaded = load_tokenizer(tokenizer)
    assert loaded is not None
    summaries = [_summary(file, loaded, chat) for file in files]
    emit({"path": path, "files": summaries}, as_json, lambda console: _render_summaries(console, summaries))


@command(
    app, "split", example="hyco-npu prompts split gsm8k.jsonl --train 0.8 --validation 0.1 --test 0.1 --out splits"
)
def split(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Prompt files.")],
    train: Annotated[float, typer.Option(help="Share of the training split.")] = 0.8,
    validation: Annotated[float, typer.Option(help="Share of the validation split.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of the test split.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Another seed deals otherwise.")] = 0,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the splits.")] = Path("splits"),
    force: Annotated[bool, typer.Option("--force", help="Replace splits that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Deal prompts into train, validation and test. A prompt's text decides, so adding prompts moves none."""
    from calibration.prompts import read_prompt_file
    from calibration.splits import SPLITS_FILE, SplitRule, write_splits

    if (out / SPLITS_FILE).exists() and not force:
        raise UsageError(f"--out {out} holds splits; choose another folder, or replace them with --force")
    rule = SplitRule((train, validation, test), seed)
    described = write_splits([read_prompt_file(file) for file in files], out, rule)
    emit({"out": out, **described}, as_json, lambda console: _render_splits(console, out, described))


@command(app, "generate", example="hyco-npu prompts generate --prompts questions.jsonl --out responses.jsonl")
def generate(
    verifier: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="Folder of the verifier.", show_default="the family's"),
    ] = VERIFIER_DIR,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts to answer; may be given several times.",
            show_default="the family's calibration prompts",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="File of the responses.")] = Path("responses.jsonl"),
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy decoding.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer, at most.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Prompts at a time; the answers do not depend on it.")] = 16,
    chat: ChatOption = True,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT and start over.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Let the verifier answer the first turn of every prompt. A run that was broken off goes on where it was."""
    from calibration.generate import Answerer, GenerationOptions, generate_responses, unfinished_path
    from calibration.prompts import encode_prompt, joined_prompts, read_prompt_file
    from calibration.verifier import load_verifier
    from export.checkpoint.reader import CheckpointReader
    from export.sources import vocabulary_in, why_not_runnable
    from hyco_npu.cli.files import require_output_file
    from hyco_npu.cli.progress import progress_bar, progress_lines

    require_output_file(out, "--out", ".jsonl", force=force)
    files = [read_prompt_file(file) for file in prompts or [CALIBRATION_PROMPTS]]
    reason = why_not_runnable(verifier)
    if reason is not None:
        raise UsageError(f"--verifier {verifier} cannot answer: {reason}")
    tokenizer = vocabulary_in(verifier).tokenizer
    assert tokenizer is not None
    encoded = [(prompt, encode_prompt(tokenizer, prompt, chat=chat)) for prompt in joined_prompts(files)]
    console = stderr_console()
    with progress_lines(console) as progress:
        progress("reading the verifier")
        options = GenerationOptions(max_new_tokens, temperature, seed)
        answerer = Answerer(load_verifier(verifier), tokenizer, CheckpointReader(verifier).sha256, options, batch)
    sources = [{"file": file.name, "sha256": file.sha256, "prompts": len(file.prompts)} for file in files]
    if force:
        unfinished_path(out).unlink(missing_ok=True)
    with progress_bar(console, "answers", len(encoded)) as done:
        described = generate_responses(answerer, encoded, out, {"chat": chat, "prompts": sources}, done)
    emit({"out": out, **described}, as_json, lambda console: _render_responses(console, out, described))


def _summary(file: PromptFile, tokenizer: PreTrainedTokenizerBase, chat: bool) -> dict[str, object]:
    import numpy as np

    from calibration.coverage import UNCATEGORISED
    from calibration.prompts import encode_prompt

    lengths = [len(encode_prompt(tokenizer, prompt, chat=chat)) for prompt in file.prompts]
    categories = Counter(prompt.category or UNCATEGORISED for prompt in file.prompts)
    return {
        "file": file.name,
        "sha256": file.sha256,
        "prompts": len(file.prompts),
        "with_answer": sum(prompt.answer is not None for prompt in file.prompts),
        "several_turns": sum(len(prompt.turns) > 1 for prompt in file.prompts),
        "categories": dict(sorted(categories.items())),
        "tokens": {
            "total": sum(lengths),
            "min": min(lengths),
            "median": float(np.median(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "max": max(lengths),
        },
    }


def _render_summaries(console: Console, summaries: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    from hyco_npu.cli.output import flatten, format_value

    for summary in summaries:
        table = Table("Figure", "Value", title=f"{summary['file']}: {summary['prompts']:,} prompts")
        for name, value in flatten({key: value for key, value in summary.items() if key not in ("file", "prompts")}):
            table.add_row(name, format_value(value))
        console.print(table)


def _render_splits(console: Console, out: Path, described: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table("Split", "Share", "Prompts", "SHA-256", title=f"{out}, seed {described['seed']}")
    for name, entry in described["splits"].items():
        table.add_row(name, f"{entry['share']:g}", f"{entry['prompts']:,}", entry["sha256"])
    console.print(table)


def _render_responses(console: Console, out: Path, described: Mapping[str, Any]) -> None:
    console.print(
        f"{out}: {described['responses']:,} responses, {described['prompt_tokens']:,} prompt tokens and "
        f"{described['response_tokens']:,} response tokens, sha256 {described['sha256']}",
        highlight=False,
    )
