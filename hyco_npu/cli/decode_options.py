"""Options that the decoding commands share: configuration, models, sampling."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class EngineChoice(str, Enum):
    """What the drafters run on."""

    TORCH = "torch"
    ONNX = "onnx"
    QDQ = "qdq"
    SIMULATOR = "simulator"


class ProviderChoice(str, Enum):
    """What runs a device's graphs."""

    AUTO = "auto"
    CPU = "cpu"
    SIMULATOR = "simulator"
    HTP = "htp"


ConfigOption = Annotated[
    str, typer.Option("--config", metavar="NAME|FILE", help="Configuration: a name (plain, hyco, ...) or a TOML file.")
]
EngineOption = Annotated[
    EngineChoice, typer.Option(help="torch, onnx: floats; qdq: quantised graphs on the CPU; or the HTP simulator.")
]
VerifierOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Folder of the verifier.", show_default="the family's")
]
HeadOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Folder of its head.", show_default="the family's")
]
SlmOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Folder of the SLM.", show_default="the family's")
]
MtpBundleOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="The head's bundle, for qdq and simulator.")
]
SlmBundleOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="The SLM's bundle, for qdq and simulator.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="SERIAL|local", help="Draft on this phone, or by the native runner here.", show_default="this process"
    ),
]
RunnerOption = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="With --device: folder of the native runner.", show_default="as bench does"),
]
DeviceProviderOption = Annotated[
    ProviderChoice, typer.Option(help="With --device: what runs the graphs; auto: the phone's NPU, else the CPU.")
]
TemperatureOption = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopKOption = Annotated[int | None, typer.Option(help="Sample among the K likeliest tokens.", show_default="all")]
TopPOption = Annotated[float | None, typer.Option(help="Sample within this probability mass.", show_default="all")]
TokensOption = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of sampling.")]
