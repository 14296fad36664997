"""From exceptions to what a user reads and a script checks: a message on stderr and an exit code.

Exit codes: 0 done, 1 the work failed, 2 wrong use. Errors of the project's tree (quant.errors.HycoError) carry their
own code. Typer's usage errors do not pass here: Typer prints them itself and exits with 2 (the JSON line comes from
HycoCommand).
"""

from __future__ import annotations

import traceback

import typer

from hyco_npu.cli.output import write_json
from quant.errors import HycoError

UNEXPECTED_EXIT_CODE = 1


def report_error(error: Exception, as_json: bool, verbose: bool) -> int:
    """Print `error` as `error: ...` on stderr (with `as_json` also as the JSON line) and return the exit code.

    An error that is not a HycoError names its class, and its traceback is printed only when `verbose`.
    """
    if isinstance(error, HycoError):
        message, exit_code = str(error), error.exit_code
    else:
        message, exit_code = f"unexpected {type(error).__name__}: {error}", UNEXPECTED_EXIT_CODE
    if verbose:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    elif not isinstance(error, HycoError):
        typer.echo("hint: run `hyco-npu --verbose ...` to see where this happened", err=True)
    typer.echo(f"error: {message}", err=True)
    if as_json:
        write_json({"error": message, "exit_code": exit_code})
    return exit_code
