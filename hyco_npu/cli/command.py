"""How a command is registered: with an example, with `--json`, and with its errors reported in one way."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from hyco_npu.cli.errors import report_error
from hyco_npu.cli.output import json_only_stdout, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERRUPTED = 130
"""The exit code that typer gives Ctrl-C."""


class HycoCommand(TyperCommand):
    """A command whose exceptions become an error message and an exit code, and whose stdout is clean with --json."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; what typer refuses is a JSON line too where `--json` is among them."""
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if as_json:
                write_json({"error": error.format_message(), "exit_code": error.exit_code})
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer's own exceptions (usage errors, Exit, Abort) and a closed pipe pass unchanged."""
        as_json = bool(ctx.params.get("as_json"))
        with json_only_stdout() if as_json else nullcontext():
            try:
                return super().invoke(ctx)
            except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
                raise
            except (KeyboardInterrupt, SystemExit) as stopped:
                if as_json:
                    exit_code = stopped.code if isinstance(stopped, SystemExit) else _INTERRUPTED
                    write_json({"error": "interrupted", "exit_code": exit_code})
                raise
            except Exception as error:
                verbose = bool(ctx.find_root().params.get("verbose"))
                raise typer.Exit(report_error(error, as_json, verbose)) from error


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as `name` of `app`; `example` is a full command line and closes the help text.

    The function takes `as_json: JsonOption` and hands its result to `hyco_npu.cli.output.emit`. Libraries that are slow
    to import (torch, transformers, onnxruntime) are imported inside the function, so that help stays instant.
    """
    return app.command(name, cls=HycoCommand, epilog=f"Example: {example}")
