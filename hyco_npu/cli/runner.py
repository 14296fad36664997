"""`hyco-npu runner build`: the native runner and what goes beside it, in one folder, for this machine or a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from device_runner.android_folder import AndroidInputs
    from device_runner.runner_folder import RunnerFolder

_NOT_RUN = "not run here"

app = typer.Typer(
    no_args_is_help=True,
    help="Build the native runner that drafts on a device.",
    epilog="Example: hyco-npu runner build --host",
)


@app.callback()
def runner() -> None:
    """A group also while it has one command."""


@command(app, "build", example="hyco-npu runner build --host --out host.runner")
def build(
    host: Annotated[bool, typer.Option("--host", help="For this machine (x86-64 Linux): CPU and simulator.")] = False,
    android_ndk: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="For a phone: folder of the Android NDK.")
    ] = None,
    ort_aar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="com.microsoft.onnxruntime:onnxruntime-android, as .aar.")
    ] = None,
    qnn_aar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="com.qualcomm.qti:onnxruntime-android-qnn, as .aar.")
    ] = None,
    qnn_runtime_aar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="com.qualcomm.qti:qnn-runtime, as .aar.")
    ] = None,
    qairt_sdk: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Qualcomm's QAIRT SDK, instead of --qnn-runtime-aar.")
    ] = None,
    htp_arch: Annotated[
        list[str] | None,
        typer.Option(metavar="VNN", help="Hexagon architecture, repeatable: v81.", show_default="all that are there"),
    ] = None,
    bundle: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A bundle that the phone is to run, repeatable: is QNN new enough for it?"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder to make.", show_default="host.runner or phone.runner")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing runner's folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the runner and put it into a folder with ONNX Runtime and QNN, checked: what `bench` pushes."""
    from device_runner.runner_folder import HOST_RUNNER, PHONE_RUNNER
    from quant.errors import UsageError

    files = {"--ort-aar": ort_aar, "--qnn-aar": qnn_aar, "--qnn-runtime-aar": qnn_runtime_aar, "--qairt-sdk": qairt_sdk}
    of_a_phone = {**files, "--htp-arch": htp_arch, "--bundle": bundle}
    if host == (android_ndk is not None):
        raise UsageError("choose one: --host for this machine, or --android-ndk DIR for a phone")
    if android_ndk is None:
        given = [name for name, value in of_a_phone.items() if value]
        if given:
            raise UsageError(f"{given[0]} is for a phone's runner; leave it out with --host")
        result = _build_host(out or HOST_RUNNER, force=force)
    else:
        if ort_aar is None or qnn_aar is None:
            raise UsageError(
                "a phone's runner needs --ort-aar FILE and --qnn-aar FILE, and --qnn-runtime-aar FILE or "
                "--qairt-sdk DIR; docs/runner-build.md says where they come from"
            )
        from device_runner.android_folder import AndroidInputs

        libraries = (ort_aar, qnn_aar, qnn_runtime_aar, qairt_sdk)
        inputs = AndroidInputs(android_ndk, *libraries, tuple(htp_arch or ()), tuple(bundle or ()))
        result = _build_android(inputs, out or PHONE_RUNNER, force=force)
    emit(result, as_json, lambda console: render_build(console, result))


def _build_host(out: Path, *, force: bool) -> dict[str, Any]:
    from device_runner.host_folder import build_host_runner

    return describe(build_host_runner(out, force=force), ())


def _build_android(inputs: AndroidInputs, out: Path, *, force: bool) -> dict[str, Any]:
    from device_runner.android_folder import build_android_runner

    made = build_android_runner(inputs, out, force=force)
    return {**describe(made.folder, made.warnings), "android_run": _NOT_RUN}


def describe(made: RunnerFolder, warnings: Sequence[str]) -> dict[str, Any]:
    """The result as JSON: what runner.json says, and of each piece its machine and the build of QNN that it states."""
    from device_runner.piece_checks import inspect

    facts = made.description
    pieces = []
    for file in facts.files:
        piece = inspect(made.folder / file.path)
        stated = {"machine": piece.machine, "qnn_build": piece.qnn_build}
        pieces.append({"name": file.path, "source": file.source, **stated, "size_bytes": file.size_bytes})
    return {
        "out": made.folder,
        "abi": facts.abi,
        "providers": facts.providers,
        "htp_archs": facts.htp_archs,
        "ort_version": facts.ort_version,
        "qnn_build": facts.qnn_build,
        "pieces": pieces,
        "warnings": warnings,
    }


def render_build(console: Console, result: Mapping[str, Any]) -> None:
    """A row a piece, then where it lies and what could not be made sure."""
    from rich.markup import escape
    from rich.table import Table

    archs = f", NPU {' '.join(result['htp_archs'])}" if result["htp_archs"] else ""
    table = Table("Piece", "Machine", "QNN build", "From", title=f"Runner for {result['abi']}{archs}")
    for piece in result["pieces"]:
        table.add_row(piece["name"], piece["machine"], piece["qnn_build"] or "-", escape(piece["source"]))
    console.print(table)
    console.print(f"{result['out']}: providers {', '.join(result['providers'])}", markup=False, soft_wrap=True)
    if "android_run" in result:
        console.print(f"on a phone: {result['android_run']}")
    for warning in result["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
