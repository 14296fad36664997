"""`hyco-npu generate` and `hyco-npu chat`: text from a verifier for which drafters work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.decode_options import (
    ConfigOption,
    DeviceOption,
    DeviceProviderOption,
    EngineChoice,
    EngineOption,
    HeadOption,
    MtpBundleOption,
    ProviderChoice,
    RunnerOption,
    SeedOption,
    SlmBundleOption,
    SlmOption,
    TemperatureOption,
    TokensOption,
    TopKOption,
    TopPOption,
    VerifierOption,
)
from hyco_npu.cli.files import require_output_file
from hyco_npu.cli.output import JsonOption, emit, stderr_console
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import Console

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.loop import Round
    from hyco_npu.decode.models import Models
    from hyco_npu.decode.session import GenerationOptions
    from hyco_npu.decode.trace import Summary
    from hyco_npu.device_models import DeviceModels

app = typer.Typer()


@command(app, "generate", example='hyco-npu generate --config hyco --prompt "Tom has 3 apples and buys 4. How many?"')
def generate(
    prompt: Annotated[
        str | None, typer.Option(help="The prompt's text.", show_default="the first held-out prompt")
    ] = None,
    config: ConfigOption = "hyco",
    max_new_tokens: TokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = 0,
    engine: EngineOption = EngineChoice.TORCH,
    verifier: VerifierOption = None,
    mtp: HeadOption = None,
    slm: SlmOption = None,
    mtp_bundle: MtpBundleOption = None,
    slm_bundle: SlmBundleOption = None,
    device: DeviceOption = None,
    runner: RunnerOption = None,
    provider: DeviceProviderOption = ProviderChoice.AUTO,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the chat template.")] = True,
    show_tree: Annotated[bool, typer.Option("--show-tree", help="Draw every round's tree.")] = False,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the trees as a picture (.svg).")] = None,
    trace: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a JSON line a round (.jsonl).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt, streaming text as it is accepted."""
    from hyco_npu.decode.config import load_config
    from hyco_npu.defaults import decode_models

    for path, option, suffix in ((svg, "--svg", ".svg"), (trace, "--trace", ".jsonl")):
        if path is not None:
            require_output_file(path, option, suffix, force=force)
    chosen = load_config(config)
    wanted = _Wanted(
        chosen, _options(max_new_tokens, temperature, top_k, top_p, seed), prompt, chat, _Shown(show_tree, svg, trace)
    )
    if device is None:
        _require_no_device_options(runner, provider)
        models = decode_models(engine.value, verifier, mtp, slm, (mtp_bundle, slm_bundle))
        _generate(models, wanted, {"engine": engine.value, "measured_on_device": "not measured"}, as_json)
        return
    _refuse_host_options(engine, mtp, slm)
    with _device_models((device, runner, provider), verifier, (mtp_bundle, slm_bundle), chosen) as models:
        on_npu = models.provider == "htp"
        facts = {
            "engine": "device",
            "device": device,
            "provider": models.provider,
            "measured_on_device": "this text alone; see `hyco-npu bench`" if on_npu else "not measured",
        }
        _generate(models, wanted, facts, as_json)


@dataclass(frozen=True)
class _Shown:
    """What is shown of the rounds: trees on the terminal, as a picture, and the rounds as lines."""

    trees: bool
    svg: Path | None
    trace: Path | None


@dataclass(frozen=True)
class _Wanted:
    """A text to make. prompt: None for the first held-out one."""

    config: DecodeConfig
    options: GenerationOptions
    prompt: str | None
    chat: bool
    shown: _Shown


def _generate(models: Models, wanted: _Wanted, facts: Mapping[str, object], as_json: bool) -> None:
    """Decode and report; `facts` say what drafted."""
    from calibration.jsonfile import replace_file
    from hyco_npu.decode.draw import round_tree, save_svg
    from hyco_npu.decode.session import Session, encode_messages
    from hyco_npu.decode.trace import summarize, trace_lines

    config, shown = wanted.config, wanted.shown
    text = wanted.prompt if wanted.prompt is not None else _first_held_out()
    if wanted.chat:
        token_ids = encode_messages(models.tokenizer, [{"role": "user", "content": text}])
    else:
        token_ids = [int(token) for token in models.tokenizer(text)["input_ids"]]
    if not token_ids:
        raise UsageError("--prompt is empty; give a text")
    rounds = _show(models, Session(models, config, wanted.options).generate(token_ids), quiet=as_json)
    trees = [round_tree(one, number, _namer(models)) for number, one in enumerate(rounds) if number]
    if shown.svg is not None:
        save_svg(trees, shown.svg, f"{config.name}: {text}")
    if shown.trace is not None:
        replace_file(shown.trace, "".join(json.dumps(line) + "\n" for line in trace_lines(rounds, config)).encode())
    summary = summarize(rounds, config)
    emitted = [token for one in rounds for token in one.emitted]

    def render(console: Console) -> None:
        for tree in trees if shown.trees else ():
            console.print(tree)
        render_summary(console, summary, config.name)

    if shown.trees and as_json:
        for tree in trees:
            stderr_console().print(tree)
    emit(
        {
            "text": models.tokenizer.decode(emitted, skip_special_tokens=True),
            "token_ids": emitted,
            "config": config.name,
            **dataclasses.asdict(summary),
            **facts,
        },
        as_json,
        render,
    )


@contextmanager
def _device_models(
    device: tuple[str, Path | None, ProviderChoice],
    verifier: Path | None,
    bundles: tuple[Path | None, Path | None],
    config: DecodeConfig,
) -> Iterator[DeviceModels]:
    """Models whose drafters are on the device; `device` is its name, its runner and provider."""
    from device_runner.admission import require_sound
    from export.bundle import open_bundle
    from hyco_npu.bench.choose import named_provider
    from hyco_npu.bench.family import chosen_pairs
    from hyco_npu.bench.host import config_for
    from hyco_npu.cli.progress import progress_lines
    from hyco_npu.decode.models import ModelPaths
    from hyco_npu.device_models import DeviceChoice, device_models
    from hyco_npu.family import VERIFIER_DIR

    for folder in filter(None, bundles):
        require_sound(open_bundle(folder))
    name, runner, provider = device
    with contextlib.ExitStack() as stack:
        # its lines end before the text begins
        with progress_lines(stderr_console()) as progress:
            pair = chosen_pairs(*bundles, None, progress)[0]
            config_for(config, pair)
            choice = DeviceChoice(name, runner, named_provider(provider.value))
            paths = ModelPaths(verifier or VERIFIER_DIR)
            models = stack.enter_context(device_models(paths, choice, pair, progress))
        yield models


def _refuse_host_options(engine: EngineChoice, mtp: Path | None, slm: Path | None) -> None:
    for option, given in (("--engine", engine is not EngineChoice.TORCH), ("--mtp", mtp), ("--slm", slm)):
        if given:
            raise UsageError(f"{option} is for drafting in this process; with --device give --mtp-bundle, --slm-bundle")


def _require_no_device_options(runner: Path | None, provider: ProviderChoice) -> None:
    for option, given in (("--runner", runner), ("--provider", provider is not ProviderChoice.AUTO)):
        if given:
            raise UsageError(f"{option} belongs to --device: name a phone's serial, or local")


@command(app, "chat", example="hyco-npu chat --config hyco")
def chat(
    config: ConfigOption = "hyco",
    max_new_tokens: TokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = 0,
    engine: EngineOption = EngineChoice.TORCH,
    verifier: VerifierOption = None,
    mtp: HeadOption = None,
    slm: SlmOption = None,
    mtp_bundle: MtpBundleOption = None,
    slm_bundle: SlmBundleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Talk with the verifier, a line a turn from the keyboard or a pipe; earlier turns are kept and not run again."""
    import sys

    from hyco_npu.decode.chat import Chat
    from hyco_npu.decode.config import load_config
    from hyco_npu.decode.trace import summarize
    from hyco_npu.defaults import decode_models

    chosen = load_config(config)
    models = decode_models(engine.value, verifier, mtp, slm, (mtp_bundle, slm_bundle))
    talk = Chat(models, chosen, _options(max_new_tokens, temperature, top_k, top_p, seed))
    console = stderr_console()
    if sys.stdin.isatty():
        console.print("[dim]one line a turn; an empty line or Ctrl-D ends the chat[/dim]")
    turns: list[dict[str, object]] = []
    while line := _next_line(console):
        rounds = _show(models, talk.rounds(line), quiet=as_json)
        summary = summarize(rounds, chosen)
        turns.append({"prompt": line, "text": talk.answer, "prefilled": talk.prefilled, **_figures(summary)})
        if not as_json:
            console.print(f"[dim]{_one_line(summary)}[/dim]")
    emit({"config": chosen.name, "engine": engine.value, "turns": turns}, as_json, lambda _: None)


def render_summary(console: Console, summary: Summary, name: str) -> None:
    """The figures of a text as a table."""
    from rich.table import Table

    table = Table("", "Value", title=name)
    table.add_row("tokens emitted", str(summary.tokens))
    table.add_row("rounds", str(summary.rounds))
    table.add_row("tokens a round (MAT, with the bonus)", "-" if summary.mat is None else f"{summary.mat:.2f}")
    rate = "-" if summary.tokens_per_s is None else f"{summary.tokens_per_s:.1f}"
    table.add_row("tokens per second, this host, after the first", rate)
    table.add_row("seconds to the first token", f"{summary.time_to_first_token_s:.3f}")
    for phase, seconds in sorted(summary.phases.items()):
        table.add_row(f"  {phase}, s", f"{seconds:.3f}")
    table.add_row("accounted share of the time", f"{summary.accounted:.1%}")
    table.add_row("bytes up / down, as planned for the wire", f"{summary.bytes_up:,} / {summary.bytes_down:,}")
    console.print(table)


def _figures(summary: Summary) -> dict[str, Any]:
    return {**dataclasses.asdict(summary), "measured_on_device": "not measured"}


def _one_line(summary: Summary) -> str:
    mat = "-" if summary.mat is None else f"{summary.mat:.2f}"
    return f"{summary.tokens} tokens, {summary.rounds} rounds, MAT {mat}"


def _options(
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> GenerationOptions:
    from hyco_npu.decode.sampling import Sampling
    from hyco_npu.decode.session import GenerationOptions

    return GenerationOptions(max_new_tokens, Sampling(temperature, top_k, top_p), seed)


def _show(models: Models, rounds: Iterable[Round], quiet: bool) -> list[Round]:
    """All rounds, their text printed as it comes unless `quiet`."""
    from rich.console import Console

    from hyco_npu.decode.text import TextStream

    stream, console, seen = TextStream(models.tokenizer), Console(soft_wrap=True), []
    for one in rounds:
        seen.append(one)
        piece = stream.push(one.emitted)
        if piece and not quiet:
            console.print(piece, end="", markup=False, highlight=False)
    if not quiet:
        console.print(stream.finish(), markup=False, highlight=False)
    return seen


def _namer(models: Models) -> Any:
    return lambda token_id: repr(models.tokenizer.decode([token_id]))


def _next_line(console: Console) -> str:
    import sys

    if sys.stdin.isatty():
        console.print("[bold]> [/bold]", end="")
    return sys.stdin.readline().strip()


def _first_held_out() -> str:
    from calibration.prompts import read_prompts
    from hyco_npu.family import HELD_OUT_PROMPTS

    return read_prompts(HELD_OUT_PROMPTS)[0].turns[0]
