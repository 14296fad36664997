"""`hyco-npu keepset`: choose the part of the vocabulary that a drafter keeps, and look at such a choice."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit
from hyco_npu.cli.prompts import ChatOption
from hyco_npu.family import CALIBRATION_PROMPTS, VERIFIER_DIR
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

    from calibration.coverage import Coverage, Text
    from calibration.keepset import KeepSet
    from export.sources import Vocabulary

app = typer.Typer(
    no_args_is_help=True,
    help="Keep sets: the part of the vocabulary that a drafter can draft.",
    epilog="Example: hyco-npu keepset build --out keep.json",
)

_SHOWN_IDS = 8


@command(
    app, "build", example="hyco-npu keepset build --prompts train.jsonl --responses responses.jsonl --out keep.json"
)
def build(
    more_prompts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Further prompt files: --prompts A B C.", show_default=False),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens to keep.", show_default="86016, or 3/4 of a smaller vocabulary"),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts whose tokens are counted; several files, or several times.",
            show_default="the family's calibration prompts, where no responses are given",
        ),
    ] = None,
    responses: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Files of `prompts generate`, whose response tokens are counted; may be given several times.",
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Responses, or prompts, on which coverage is measured and not counted."),
    ] = None,
    verifier: Annotated[
        Path,
        typer.Option(
            "--verifier",
            "--tokenizer",
            exists=True,
            file_okay=False,
            help="Folder with the verifier's configuration and tokenizer.",
            show_default="the family's",
        ),
    ] = VERIFIER_DIR,
    chat: ChatOption = True,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE.json", help="The keep set; its coverage goes beside it (.coverage.json, .png)."),
    ] = Path("keep.json"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the most frequent tokens of prompts and responses, and always specials, stop set and byte fallback."""
    from calibration.coverage import (
        count_keep_set,
        coverage_path,
        prompt_text,
        response_text,
        save_coverage,
        save_curve,
    )
    from export.sources import default_keep_size, vocabulary_in
    from hyco_npu.cli.files import require_output_file

    chart = out.with_suffix(".png")
    for path, suffix in ((out, ".json"), (coverage_path(out), ".json"), (chart, ".png")):
        require_output_file(path, "--out", suffix, force=force)
    vocabulary = vocabulary_in(verifier)
    tokenizer = _tokenizer(vocabulary)
    if size is None:
        size = default_keep_size(vocabulary.size)
    _require_size(size, vocabulary)
    prompts = [*(prompts or ()), *(more_prompts or ())]
    if not prompts and not responses:
        prompts = [CALIBRATION_PROMPTS]
    texts = [prompt_text(path, tokenizer, chat=chat) for path in prompts]
    texts += [response_text(path) for path in responses or ()]
    held_out = _held_out(validation, tokenizer, chat)
    counted = count_keep_set(texts, held_out, size, vocabulary.required_ids, vocabulary.size)
    save_coverage(counted, coverage_path(out))
    save_curve(counted, chart)
    counted.keep_set.save(out)
    record = counted.record
    files = {"out": out, "coverage_file": coverage_path(out), "chart": chart}
    result = {**files, "sha256": counted.keep_set.sha256, **{k: record[k] for k in record if k != "curve"}}
    emit(result, as_json, lambda console: _render_build(console, result, (counted.coverage, counted.held_out)))


@command(app, "show", example="hyco-npu keepset show keep.json --verifier my-verifier")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A keep set.")],
    verifier: Annotated[
        Path | None,
        typer.Option(
            "--verifier",
            "--tokenizer",
            exists=True,
            file_okay=False,
            help="Folder with configuration and tokenizer, to tell which tokens must be there.",
            show_default="the family's, for a set of its vocabulary",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a keep set and show its size, hash, first and last ids, required tokens and recorded coverage."""
    from calibration.coverage import coverage_path, load_coverage
    from calibration.keepset import KeepSet
    from export.sources import vocabulary_in

    vocabulary = vocabulary_in(verifier or VERIFIER_DIR)
    keep_set = KeepSet.load(file, None, ())
    known = verifier is not None or keep_set.vocab_size == vocabulary.size
    if known:
        keep_set = KeepSet.load(file, vocabulary.size, vocabulary.stop_ids)
    record = coverage_path(file)
    result = {
        "file": file,
        "size": keep_set.size,
        "vocab_size": keep_set.vocab_size,
        "sha256": keep_set.sha256,
        "first_ids": keep_set.token_ids[:_SHOWN_IDS].tolist(),
        "last_ids": keep_set.token_ids[-_SHOWN_IDS:].tolist(),
        "required": _required(keep_set, vocabulary) if known else None,
        "coverage": load_coverage(record, keep_set) if record.is_file() else None,
    }
    emit(result, as_json, lambda console: _render_show(console, result))


def _tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerBase:
    assert vocabulary.tokenizer is not None  # vocabulary_in reads it or raises
    return vocabulary.tokenizer


def _require_size(size: int, vocabulary: Vocabulary) -> None:
    required = len(vocabulary.required_ids)
    if not required <= size <= vocabulary.size:
        raise UsageError(f"--size {size} must lie between {required} required and {vocabulary.size} tokens")


def _held_out(path: Path | None, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Text | None:
    from calibration.coverage import prompt_text, response_text
    from calibration.responses import is_response_file

    if path is None:
        return None
    return response_text(path) if is_response_file(path) else prompt_text(path, tokenizer, chat=chat)


def _required(keep_set: KeepSet, vocabulary: Vocabulary) -> dict[str, dict[str, list[int]]]:
    """Kept and missing ids by the reason for which they are required."""
    kept = set(keep_set.token_ids.tolist())
    return {
        reason: {"kept": sorted(ids & kept), "missing": sorted(ids - kept)}
        for reason, ids in vocabulary.required_by_reason.items()
    }


def _render_build(console: Console, result: Mapping[str, Any], coverage: Sequence[Coverage | None]) -> None:
    console.print(
        f"{result['out']}: {result['size']:,} of {result['vocab_size']:,} tokens, sha256 {result['sha256']}",
        highlight=False,
    )
    console.print(
        f"{result['occurring']:,} of them occur in the counted text, {result['required']:,} are kept in any case",
        highlight=False,
    )
    counted, held_out = (None if one is None else asdict(one) for one in coverage)
    _render_coverage(console, counted, held_out)
    console.print(f"coverage: {result['coverage_file']}, curve: {result['chart']}", highlight=False)


def _render_show(console: Console, result: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table("Keep set", "Value", title=str(result["file"]))
    table.add_row("size", f"{result['size']:,} of {result['vocab_size']:,} tokens")
    table.add_row("sha256", result["sha256"])
    for name in ("first_ids", "last_ids"):
        table.add_row(name.replace("_", " "), ", ".join(map(str, result[name])))
    if result["required"] is None:
        table.add_row("required tokens", "not known; name the vocabulary with --verifier")
    for reason, ids in (result["required"] or {}).items():
        missing = f", MISSING: {ids['missing']}" if ids["missing"] else ""
        table.add_row(f"required: {reason}", f"{_some(ids['kept'])}{missing}")
    console.print(table)
    recorded = result["coverage"]
    if recorded is None:
        console.print("no coverage is recorded beside it", highlight=False)
    else:
        _render_coverage(console, recorded["coverage"], recorded["held_out"])


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return (", ".join(map(str, ids[:_SHOWN_IDS])) or "none") + more


def _render_coverage(console: Console, counted: Mapping[str, Any] | None, held_out: Mapping[str, Any] | None) -> None:
    from rich.table import Table

    for title, coverage in (("Coverage of the counted text", counted), ("Coverage, held out", held_out)):
        if coverage is None:
            continue
        table = Table("Category", "Tokens", "Kept", "Share", title=f"{title}: {coverage['kind']}")
        for name, share in (*coverage["categories"].items(), ("total", coverage["total"])):
            percent = "-" if share["share"] is None else f"{100 * share['share']:.2f} %"
            table.add_row(name, f"{share['tokens']:,}", f"{share['kept']:,}", percent)
        console.print(table)
