"""The `hyco-npu` command line: one file a command group, wired here.

A group is a `typer.Typer` named `app` in its own file, added below with `app.add_typer`; a single command is a function
registered with `hyco_npu.cli.command.command`. Nothing here imports torch: help must come at once.
"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from hyco_npu import __version__
from hyco_npu.cli import (
    bench,
    calibrate,
    check,
    demo,
    devices,
    doctor,
    estimate,
    export,
    export_slm,
    family,
    fit_scores,
    generate,
    keepset,
    prompts,
    qat,
    runner,
    sweep,
)
from hyco_npu.cli.signals import stop_on_signals

_PACKAGES = ("hyco_npu", "device_runner", "export", "calibration", "quant")

app = typer.Typer(
    name="hyco-npu",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Example: hyco-npu --version",
)
app.add_typer(family.app, name="family")
export.app.add_typer(export_slm.app)
app.add_typer(export.app, name="export")
app.add_typer(prompts.app, name="prompts")
app.add_typer(keepset.app, name="keepset")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(check.app)
app.add_typer(estimate.app)
app.add_typer(demo.app)
app.add_typer(devices.app)
app.add_typer(bench.app)
app.add_typer(runner.app, name="runner")
app.add_typer(doctor.app)
app.add_typer(qat.app)
app.add_typer(generate.app)
app.add_typer(sweep.app)
app.add_typer(fit_scores.app)


def main() -> None:
    """Run the command line of this process; the entry point of the `hyco-npu` script."""
    stop_on_signals()
    app(prog_name="hyco-npu")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hyco-npu {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log every step to stderr, and show where an error happened.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """HyCo's two drafters on a phone's NPU: export, quantise, compile and check them."""
    _configure_logging(verbose)


def _configure_logging(verbose: bool) -> None:
    """Send our packages' log to stderr: progress (INFO) as plain lines, every step (DEBUG) when verbose."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s" if verbose else "%(message)s")
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)
