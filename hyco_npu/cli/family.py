"""`hyco-npu family`: show the embedded checkpoints, train them again, write random ones of the real dimensions."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, flatten, format_value
from hyco_npu.family import MTP_DIR, SLM_DIR, VERIFIER_DIR
from quant.errors import HycoError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    help="The embedded family: a verifier, an MTP head and an SLM of true Gemma 4 architecture, in small.",
    epilog="Example: hyco-npu family show",
)


class Like(str, Enum):
    """Real checkpoints whose dimensions and file layout `family random` copies."""

    ASSISTANT_26B = "26b-a4b-assistant"
    SLM_E2B = "e2b-qat-mobile"
    VERIFIER_26B = "26b-a4b"


@command(app, "show", example="hyco-npu family show --json")
def show(as_json: JsonOption = False) -> None:
    """Show the three embedded checkpoints: where they lie, their size, their figures on held-out prompts."""
    models = [_describe(folder) for folder in (VERIFIER_DIR, MTP_DIR, SLM_DIR)]
    emit({"models": models}, as_json, lambda console: _render_models(console, models))


@command(
    app,
    "train",
    example="hyco-npu family train --corpus ../shared/data/gsm8k/train.jsonl --seed 0 --out my-family",
)
def train(
    corpus: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="GSM8K JSONL to train on.")],
    held_out: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSONL for held-out figures; default: test.jsonl beside CORPUS.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, corpus and machine: same weights.")] = 0,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the three checkpoints.")] = Path("family"),
    work_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="State of the run, from which a broken run goes on; default: OUT.work.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the family again from a corpus: tokenizer, verifier, its own text, MTP head, SLM. Takes hours on a CPU."""
    held_out = held_out or _default_held_out(corpus)
    from hyco_npu.family.train import train_family

    result = train_family(corpus, held_out, out, work_dir or out.with_name(out.name + ".work"), seed)
    emit(result, as_json, lambda console: _render_figures(console, f"Trained into {out}", result))


@command(
    app,
    "random",
    example="hyco-npu family random --like 26b-a4b --tensors embed_tokens --out /tmp/random-26b",
)
def random(
    like: Annotated[Like, typer.Option(help="Checkpoint whose dimensions and files to copy.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder to write.")],
    tensors: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Write only tensors in whose name this regular expression is found."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed: same weights.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint of random weights with a real checkpoint's dimensions and file layout, for size and speed."""
    from hyco_npu.family.random import write_random_checkpoint

    written = write_random_checkpoint(like.value, out, tensors, seed, force=force)
    result = {
        "folder": str(written.folder),
        "files": [str(file) for file in written.files],
        "tensor_count": written.tensor_count,
        "size_bytes": written.size_bytes,
    }
    emit(result, as_json, lambda console: _render_figures(console, f"Random {like.value}", result))


def _default_held_out(corpus: Path) -> Path:
    held_out = corpus.with_name("test.jsonl")
    if not held_out.is_file():
        raise UsageError(f"no held-out prompts: {held_out} does not exist; name a file with --held-out")
    return held_out


def _describe(folder: Path) -> dict[str, object]:
    """A checkpoint's name, folder, size in bytes (0 when absent) and held-out figures (None when there are none)."""
    metrics_file = folder / "metrics.json"
    metrics: dict[str, object] | None = None
    if metrics_file.is_file():
        try:
            metrics = json.loads(metrics_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise HycoError(f"{metrics_file} is not JSON: {error}; restore it from the repository") from error
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"name": folder.name, "folder": str(folder), "size_bytes": size_bytes, "metrics": metrics}


def _render_models(console: Console, models: Sequence[Mapping[str, object]]) -> None:
    from rich.table import Table

    table = Table("Model", "Figure", "Value", title="The embedded family")
    for model in models:
        table.add_section()
        table.add_row(str(model["name"]), "size_bytes", format_value(model["size_bytes"]))
        metrics = model["metrics"]
        if not isinstance(metrics, dict):
            table.add_row("", "held-out figures", "none recorded")
            continue
        for name, value in flatten(metrics):
            table.add_row("", name, format_value(value))
    console.print(table)


def _render_figures(console: Console, title: str, figures: Mapping[str, object]) -> None:
    from rich.table import Table

    table = Table("Figure", "Value", title=title)
    for name, value in flatten(figures):
        table.add_row(name, format_value(value))
    console.print(table)
