"""The options of `hyco-npu bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyco_npu.cli.decode_options import ProviderChoice

_WHAT, _HOW, _CHECKS, _OUTPUT = "What is measured", "How it is run", "Honesty", "Output"

DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="SERIAL|local|hub:NAME",
        help="A phone's serial, `local`: this machine, or `hub:NAME`: a phone hosted by Qualcomm AI Hub.",
        show_default="the only phone",
        rich_help_panel=_WHAT,
    ),
]
ProviderOption = Annotated[
    ProviderChoice,
    typer.Option(help="What runs the graphs; auto: the phone's NPU, else the CPU.", rich_help_panel=_WHAT),
]
RunnerOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Folder of the native runner (`hyco-npu runner build`), or `qnn-net-run`: each graph by Qualcomm's tool.",
        show_default="phone.runner here; for x86-64 this machine's, built once",
        rich_help_panel=_WHAT,
    ),
]
QairtSdkOption = Annotated[
    Path | None,
    typer.Option(file_okay=False, metavar="DIR", help="QAIRT SDK, for --runner qnn-net-run.", rich_help_panel=_WHAT),
]
MtpBundleOption = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="The head's bundle.", show_default="the family's", rich_help_panel=_WHAT),
]
SlmBundleOption = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="The SLM's bundle.", show_default="the family's", rich_help_panel=_WHAT),
]
AgainstOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, metavar="BUNDLE", help="Another head or SLM: A/B, interleaved.", rich_help_panel=_WHAT
    ),
]
RoundsOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        metavar="FILE",
        help="Rounds recorded before.",
        show_default="recorded anew",
        rich_help_panel=_WHAT,
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", help="Decoding configuration to record.", show_default="hyco", rich_help_panel=_WHAT
    ),
]
VerifierOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Verifier that writes the texts.",
        show_default="the family's",
        rich_help_panel=_WHAT,
    ),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        metavar="FILE",
        help="Prompts of the texts.",
        show_default="the family's held-out ones",
        rich_help_panel=_WHAT,
    ),
]
TextsOption = Annotated[
    int | None, typer.Option(min=1, help="Texts to record.", show_default="8", rich_help_panel=_WHAT)
]
TokensOption = Annotated[
    int | None, typer.Option(min=3, help="Longest text, in tokens.", show_default="64", rich_help_panel=_WHAT)
]

CountOption = Annotated[
    int | None,
    typer.Option(min=1, help="Timed rounds in a block.", show_default="each recorded round once", rich_help_panel=_HOW),
]
BlocksOption = Annotated[
    int, typer.Option(min=1, help="Blocks, each a fresh process, a bundle pair and mode.", rich_help_panel=_HOW)
]
WarmUpOption = Annotated[
    int, typer.Option(min=1, help="Rounds at a block's beginning that are not timed.", rich_help_panel=_HOW)
]
PerfModeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="The NPU's performance mode; may be given several times.",
        show_default="burst and sustained_high_performance",
        rich_help_panel=_HOW,
    ),
]
CpuMaskOption = Annotated[
    str | None, typer.Option(metavar="HEX", help="Cores that the runner may use.", rich_help_panel=_HOW)
]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Threads of the CPU provider.", rich_help_panel=_HOW)]
ProfileOption = Annotated[
    bool, typer.Option("--profile", help="A further block under QNN's profiler, not timed.", rich_help_panel=_HOW)
]
SilenceOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        help="Seconds that the runner may print nothing.",
        show_default="cpu 300, simulator 1800, htp 120",
        rich_help_panel=_HOW,
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Leave the files on the phone for the next run.", rich_help_panel=_HOW)
]

GateTimeoutOption = Annotated[
    float, typer.Option(min=0.0, help="Seconds to wait for a cool phone before each block.", rich_help_panel=_CHECKS)
]
MaxSkinOption = Annotated[
    float | None, typer.Option(help="Wait also for the skin to have this many °C.", rich_help_panel=_CHECKS)
]
NoGateOption = Annotated[
    bool, typer.Option("--no-gate", help="Do not wait for a cool phone; recorded.", rich_help_panel=_CHECKS)
]
CheckRoundsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rounds whose trees are compared with the host's.",
        show_default="all; 16 on the simulator",
        rich_help_panel=_CHECKS,
    ),
]
AgreementOption = Annotated[
    float | None,
    typer.Option(
        help="Lowest share of common nodes in a round.",
        show_default="cpu and simulator 0.9, htp 0.8",
        rich_help_panel=_CHECKS,
    ),
]
MaxDriftOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Largest drift of a block's times, as a share.",
        show_default="htp 0.05, else 0.2",
        rich_help_panel=_CHECKS,
    ),
]
MinRoundsOption = Annotated[int, typer.Option(min=1, help="Timed rounds that a result needs.", rich_help_panel=_CHECKS)]

OutOption = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        metavar="DIR",
        help="Folder of the report.",
        show_default="hyco-bench-DATE-TIME",
        rich_help_panel=_OUTPUT,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a report.", rich_help_panel=_OUTPUT)]
EstimateOption = Annotated[
    bool | None,
    typer.Option(
        "--estimate/--no-estimate",
        help="The compiler's estimate beside the times.",
        show_default="on the NPU",
        rich_help_panel=_OUTPUT,
    ),
]
FitScaleOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        metavar="FILE.json",
        help="Save the factor between estimate and phone.",
        rich_help_panel=_OUTPUT,
    ),
]
