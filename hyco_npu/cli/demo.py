"""`hyco-npu demo`: export, check, draft, and say what was not measured."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from hyco_npu.cli.check import check_json, stage_table
from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, stderr_console, write_json
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from transformers import PreTrainedTokenizerBase

    from export.mtp.options import MtpExportResult
    from export.parity import CheckResult
    from export.slm.options import SlmExportResult
    from hyco_npu.demo import DemoRound, ShownTree


app = typer.Typer()


@command(app, "demo", example="hyco-npu demo --max-new-tokens 64")
def demo(
    prompt: Annotated[
        str | None, typer.Option(help="Question to answer.", show_default="a held-out word problem")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of the answer, at most.")] = 96,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Keep the head's bundle here, the SLM's in OUT-slm.",
            show_default="a temporary folder",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing bundles at --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Export the family's MTP head and SLM for Hexagon, check them on the simulator, and let them draft."""
    from rich.console import Console

    from hyco_npu import demo as steps
    from hyco_npu.cli.progress import progress_lines

    console = stderr_console() if as_json else Console()
    with TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        bundle_dir = Path(folder) / "bundle" if out is None else out
        slm_dir = bundle_dir.with_name(f"{bundle_dir.name}-slm")
        if slm_dir.exists() and not force:
            raise UsageError(f"{slm_dir} exists; choose another --out, or replace both bundles with --force")
        with progress_lines(stderr_console()) as progress:
            exported, bundle, checked = steps.export_and_check(bundle_dir, force, progress)
            slm_exported, slm_bundle, slm_checked = steps.export_and_check_slm(slm_dir, force, progress)
        text, ids, tokenizer = steps.demo_prompt(prompt)
        console.rule("Prompt")
        console.print(text, highlight=False)
        console.rule("Drafting: [green]accepted[/green] [red]rejected[/red] [bold cyan]bonus[/bold cyan]")
        rounds = []
        for one in steps.draft_rounds(bundle, ids, max_new_tokens):
            rounds.append(one)
            _print_round(console, len(rounds) - 1, one, tokenizer)
        tokens = [token for one in rounds for token in one.emitted]
        identical = tokens == steps.plain_greedy(ids, max_new_tokens)
        shown = steps.show_tree(slm_bundle, ids, rounds)
    console.rule("Text")
    console.print(tokenizer.decode(tokens, skip_special_tokens=True), highlight=False, markup=False)
    if shown is not None:
        console.rule(f"One tree pass of the SLM, round {shown.round}, on {shown.tree.engine}")
        console.print(_tree(shown, tokenizer))
    _print_summary(console, exported, checked, rounds, identical)
    _print_slm(console, slm_exported, slm_checked)
    if as_json:
        result = _json(tokens, rounds, identical, checked, exported)
        write_json(result | {"slm": _slm_json(slm_exported, slm_checked), "tree": _tree_json(shown)})
    if not (identical and checked.ok and slm_checked.ok):
        raise typer.Exit(1)


def _print_round(console: Console, number: int, one: DemoRound, tokenizer: PreTrainedTokenizerBase) -> None:
    from rich.text import Text

    line = Text(f"{number:3d} {one.engine:14s} ")
    accepted = len(one.accepted)
    for index, token in enumerate(one.drafted):
        line.append(_piece(tokenizer, token), style="green" if index < accepted else "red strike")
    line.append(_piece(tokenizer, one.emitted[-1]), style="bold cyan")
    line.append(f"   {accepted}/{len(one.drafted)}", style="dim")
    console.print(line)


def _piece(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    return str(tokenizer.decode([token])).replace("\n", "\\n") + "|"


def _print_summary(
    console: Console, exported: MtpExportResult, checked: CheckResult, rounds: Sequence[DemoRound], identical: bool
) -> None:
    from rich.table import Table

    from hyco_npu.demo import NOT_MEASURED, accepted_per_round

    console.print(stage_table(checked))
    engines = [one.engine for one in rounds[1:]]
    table = Table("Figure", "Value", title="This run")
    table.add_row("accepted draft tokens per round (K=4)", f"{accepted_per_round(rounds):.2f}")
    table.add_row("rounds", ", ".join(f"{engines.count(name)} on {name}" for name in dict.fromkeys(engines)))
    table.add_row("text equals plain greedy decoding", "yes, token for token" if identical else "[red]NO[/red]")
    graph = "not compiled" if exported.graph_bytes is None else f"{exported.graph_bytes:,} bytes"
    table.add_row(f"graph for {exported.target} (W{exported.bits})", graph)
    table.add_row("embedding table", f"{exported.lut_bytes:,} bytes")
    for what in NOT_MEASURED:
        table.add_row(what, "not measured (no phone)")
    console.print(table)
    for name, reason in checked.not_run.items():
        console.print(f"[yellow]{name} was not run:[/yellow] {reason}")


def _tree(shown: ShownTree, tokenizer: PreTrainedTokenizerBase) -> RenderableType:
    """The chain downwards, the SLM's children of every node beside it; what the verifier wrote is green."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    tree, chain = shown.tree, shown.tree.tokens[1:]
    accepted, with_branches = tree.accepted(shown.truth)
    root = node = Tree(Text(_piece(tokenizer, tree.tokens[0]), style="bold cyan"))
    for row, children in enumerate(tree.children):
        for child in children:
            if not child.in_chain:
                right = row == accepted and with_branches > accepted and child.token_id == shown.truth[row]
                label = f"{_piece(tokenizer, child.token_id)} SLM, p {child.probability:.3f}"
                node.add(Text(label, style="green" if right else "dim"))
        if row < len(chain):
            found = next((f", SLM p {c.probability:.3f}" for c in children if c.in_chain), "")
            label = f"{_piece(tokenizer, chain[row])} chain{found}"
            node = node.add(Text(label, style="green" if row < accepted else "red"))
    total = f"{tree.added} branches added to a chain of {len(chain)}; accepted here: {accepted} by the chain alone, "
    return Group(root, Text(f"{total}{with_branches} with the SLM's branches"))


def _tree_json(shown: ShownTree | None) -> dict[str, object] | None:
    if shown is None:
        return None
    accepted, with_branches = shown.tree.accepted(shown.truth)
    return {
        "round": shown.round,
        "engine": shown.tree.engine,
        "tokens": list(shown.tree.tokens),
        "children": [[asdict(child) for child in row] for row in shown.tree.children],
        "truth": list(shown.truth),
        "branches_added": shown.tree.added,
        "accepted_by_chain": accepted,
        "accepted_with_branches": with_branches,
    }


def _print_slm(console: Console, exported: SlmExportResult, checked: CheckResult) -> None:
    from rich.table import Table

    console.print(stage_table(checked))
    table = Table("Figure", "Value", title="The SLM")
    graph = "not compiled" if exported.graph_bytes is None else f"{exported.graph_bytes:,} bytes"
    table.add_row(f"draft graph ({exported.rows} rows) and prefill graph ({exported.prefill_rows}) in one", graph)
    table.add_row("token table, per-layer table", f"{exported.lut_bytes:,}, {exported.per_layer_lut_bytes:,} bytes")
    table.add_row("milliseconds per pass on a phone's NPU", "not measured (no phone)")
    console.print(table)
    for name, reason in checked.not_run.items():
        console.print(f"[yellow]{name} was not run:[/yellow] {reason}")


def _slm_json(exported: SlmExportResult, checked: CheckResult) -> dict[str, object]:
    return {
        "check": check_json(checked),
        "graph_bytes": exported.graph_bytes,
        "lut_bytes": exported.lut_bytes,
        "per_layer_lut_bytes": exported.per_layer_lut_bytes,
        "weight_bytes_by_kind": exported.weight_bytes_by_kind,
    }


def _json(
    tokens: list[int], rounds: Sequence[DemoRound], identical: bool, checked: CheckResult, exported: MtpExportResult
) -> dict[str, object]:
    from hyco_npu.demo import NOT_MEASURED, accepted_per_round

    return {
        "tokens": tokens,
        "rounds": [
            {
                "engine": one.engine,
                "drafted": list(one.drafted),
                "accepted": list(one.accepted),
                "bonus": one.round.reply.bonus,
            }
            for one in rounds
        ],
        "accepted_per_round": accepted_per_round(rounds),
        "identical_to_greedy": identical,
        "check": check_json(checked),
        "graph_bytes": exported.graph_bytes,
        "lut_bytes": exported.lut_bytes,
        "not_measured": list(NOT_MEASURED),
    }
