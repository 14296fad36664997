"""The command line from outside: help with examples, exit codes, the JSON line, no traceback unless asked for."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from hyco_npu import __version__
from hyco_npu.cli import app
from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit, flatten, write_json
from quant.errors import HycoError, UsageError
from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


RUN_MAIN = "from hyco_npu.cli import main; main()"


def _leaves(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group` with the words that call it."""
    for name, entry in group.commands.items():
        if hasattr(entry, "commands"):
            yield from _leaves(entry, (*path, name))
        else:
            yield (*path, name), entry


COMMANDS = list(_leaves(typer.main.get_command(app), ("hyco-npu",)))
COMMAND_NAMES = [" ".join(path) for path, _ in COMMANDS]


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def failing() -> typer.Typer:
    """A command line of our own making, with a command for each way to end."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.callback()
    def root(verbose: bool = False) -> None:
        """Takes --verbose as the real one does."""

    @command(app, "work", example="x work")
    def work(as_json: JsonOption = False) -> None:
        print("a remark")
        raise HycoError("shard 2 is absent")

    @command(app, "usage", example="x usage")
    def usage(as_json: JsonOption = False) -> None:
        raise UsageError("--bits 3 is not 4 or 8")

    @command(app, "bug", example="x bug")
    def bug(as_json: JsonOption = False) -> None:
        raise ZeroDivisionError("by zero")

    @command(app, "verdict", example="x verdict")
    def verdict(as_json: JsonOption = False) -> None:
        emit({"ok": False}, as_json, lambda console: console.print("not ok"))
        raise typer.Exit(1)

    return app


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"hyco-npu {__version__}\n"


@pytest.mark.parametrize(("path", "entry"), COMMANDS, ids=COMMAND_NAMES)
def test_help_ends_with_an_example_of_this_command(path: tuple[str, ...], entry: Any) -> None:
    result = CliRunner().invoke(app, [*path[1:], "--help"], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    assert result.stdout.strip().splitlines()[-1].strip() == entry.epilog
    assert entry.epilog.startswith(f"Example: {' '.join(path)}")
    assert entry.help


@pytest.mark.parametrize(("path", "entry"), COMMANDS, ids=COMMAND_NAMES)
def test_example_uses_options_that_exist(path: tuple[str, ...], entry: Any) -> None:
    words = shlex.split(entry.epilog.removeprefix("Example: "))
    problem = ""
    try:
        entry.make_context(path[-1], words[len(path) :])
    except typer.TyperException as error:
        problem = error.format_message()
    # A file that the example names need not exist here; an option must.
    assert not problem or "does not exist" in problem


@pytest.mark.parametrize(("path", "entry"), COMMANDS, ids=COMMAND_NAMES)
def test_every_command_takes_json(path: tuple[str, ...], entry: Any) -> None:
    assert "--json" in [option for parameter in entry.params for option in parameter.opts]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        ["no-such-command"],
        ["family", "show", "--no-such-option"],
        ["family", "random", "--like", "no-such-model", "--out", "x"],
        ["family", "random", "--like", "26b-a4b"],
        ["family", "train", "--corpus", "no-such-file.jsonl"],
    ],
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_training_without_held_out_prompts_is_wrong_use(tmp_path: Path) -> None:
    corpus = tmp_path / "train.jsonl"
    corpus.write_text("{}\n")
    result = CliRunner().invoke(app, ["family", "train", "--corpus", str(corpus)])
    assert result.exit_code == 2
    assert f"{tmp_path / 'test.jsonl'} does not exist" in result.stderr


@pytest.mark.parametrize(
    ("name", "message", "exit_code"),
    [("work", "shard 2 is absent", 1), ("usage", "--bits 3 is not 4 or 8", 2)],
)
def test_an_error_is_a_message_an_exit_code_and_a_json_line(
    failing: typer.Typer, name: str, message: str, exit_code: int
) -> None:
    plain = CliRunner().invoke(failing, [name])
    assert plain.exit_code == exit_code
    assert plain.stderr == f"error: {message}\n"

    as_json = CliRunner().invoke(failing, [name, "--json"])
    assert as_json.exit_code == exit_code
    assert f"error: {message}" in as_json.stderr
    assert json.loads(as_json.stdout) == {"error": message, "exit_code": exit_code}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--blocks", "0"], "greater than or equal to 1"), (["--blcks", "2"], "No such option: --blcks")],
)
def test_wrong_options_are_a_json_line_too(arguments: list[str], words: str) -> None:
    as_json = CliRunner().invoke(app, ["bench", *arguments, "--json"])
    assert as_json.exit_code == 2
    line = json.loads(as_json.stdout)
    assert (line["exit_code"], sorted(line)) == (2, ["error", "exit_code"])
    assert words in line["error"]
    plain = CliRunner().invoke(app, ["bench", *arguments])
    assert (plain.exit_code, plain.stdout) == (2, "")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_process_that_is_told_to_end_cleans_up(number: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    code = """
import pathlib, signal, sys, time, typer
from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption
from hyco_npu.cli.signals import stop_on_signals
app = typer.Typer()
@command(app, "wait", example="x wait")
def wait(folder: pathlib.Path, as_json: JsonOption = False) -> None:
    try:
        (folder / "begun").touch()
        time.sleep(60)
    finally:
        (folder / "cleaned").touch()
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
stop_on_signals()
app()
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", code, str(tmp_path), "--json"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=30)
    assert process.returncode == exit_code
    assert (tmp_path / "cleaned").exists()
    assert json.loads(stdout) == {"error": "interrupted", "exit_code": exit_code}


def test_an_unexpected_error_shows_its_traceback_only_when_verbose(failing: typer.Typer) -> None:
    quiet = CliRunner().invoke(failing, ["bug"])
    assert quiet.exit_code == 1
    assert "error: unexpected ZeroDivisionError: by zero" in quiet.stderr
    assert "Traceback" not in quiet.output

    verbose = CliRunner().invoke(failing, ["--verbose", "bug", "--json"])
    assert verbose.exit_code == 1
    assert "Traceback" in verbose.stderr
    assert json.loads(verbose.stdout)["exit_code"] == 1


def test_a_command_may_hand_over_its_result_and_fail(failing: typer.Typer) -> None:
    as_json = CliRunner().invoke(failing, ["verdict", "--json"])
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (1, {"ok": False})
    plain = CliRunner().invoke(failing, ["verdict"])
    assert (plain.exit_code, plain.stdout) == (1, "not ok\n")


def test_the_real_entry_keeps_stdout_for_json() -> None:
    """In a process of its own, a native print to descriptor 1, even at exit, ends up on stderr."""
    code = """
import atexit, os, typer
from hyco_npu.cli.command import command
from hyco_npu.cli.output import JsonOption, emit
app = typer.Typer()
@command(app, "native", example="x native")
def native(as_json: JsonOption = False) -> None:
    print("python print")
    os.write(1, b"native print\\n")
    atexit.register(os.write, 1, b"at exit\\n")
    emit({"value": 1.5}, as_json, lambda console: console.print("value 1.5"))
app()
"""
    run = _run(code, "--json")
    assert (run.returncode, run.stdout) == (0, '{"value": 1.5}\n')
    assert sorted(run.stderr.splitlines()) == ["at exit", "native print", "python print"]
    assert "value 1.5" in _run(code).stdout


def test_family_show_as_the_user_runs_it() -> None:
    run = _run(RUN_MAIN, "family", "show", "--json")
    assert run.returncode == 0, run.stderr
    models = json.loads(run.stdout.splitlines()[-1])["models"]
    assert [model["name"] for model in models] == ["verifier", "mtp", "slm"]


def test_help_imports_no_slow_library() -> None:
    code = (
        "import sys\nfrom hyco_npu.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "slow = {'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    run = _run(code, "--help")
    assert run.returncode == 0, run.stderr
    assert "family" in run.stdout


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"sqnr_db": float("inf"), "rows": [float("nan"), 1.0]})
    assert json.loads(capsys.readouterr().out) == {"sqnr_db": None, "rows": [None, 1.0]}


def test_json_takes_numpy_scalars_and_paths(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import numpy as np

    write_json({"cosine": np.float32(0.5), "nodes": np.int64(7), "bundle": tmp_path})
    assert json.loads(capsys.readouterr().out) == {"cosine": 0.5, "nodes": 7, "bundle": str(tmp_path)}


def test_flatten_keeps_order_and_names() -> None:
    assert list(flatten({"a": {"b": 1, "c": {"d": 2}}, "e": [3]})) == [("a.b", 1), ("a.c.d", 2), ("e", [3])]


def test_family_show_without_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hyco_npu.cli import family

    for name in ("VERIFIER_DIR", "MTP_DIR", "SLM_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(family, name, tmp_path / name)
    (tmp_path / "MTP_DIR" / "metrics.json").write_text('{"chain": {"accepted_per_round": 2.5}}')
    result = CliRunner().invoke(app, ["family", "show"])
    assert result.exit_code == 0
    assert "chain.accepted_per_round" in result.stdout
    assert "none recorded" in result.stdout

    (tmp_path / "SLM_DIR" / "metrics.json").write_text("{")
    broken = CliRunner().invoke(app, ["family", "show"])
    assert broken.exit_code == 1
    assert "is not JSON" in broken.stderr


def test_family_random_writes_what_it_reports(tmp_path: Path) -> None:
    out = tmp_path / "random"
    arguments = ["family", "random", "--like", "26b-a4b-assistant", "--tensors", "layer_scalar", "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    written = json.loads(result.stdout)
    assert sorted(written["files"]) == sorted(path.name for path in out.iterdir())
    assert written["size_bytes"] == sum(path.stat().st_size for path in out.iterdir())

    again = CliRunner().invoke(app, arguments)
    assert again.exit_code != 0
    assert str(out) in again.stderr
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0


def test_family_random_offers_every_real_model() -> None:
    from hyco_npu.cli.family import Like
    from hyco_npu.family.real_models import REAL_MODELS

    assert {like.value for like in Like} == set(REAL_MODELS)
