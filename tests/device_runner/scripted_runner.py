"""A runner's folder whose runner is a script: it prints what it is told to, and writes down how it was called."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from device_runner.runner_folder import RunnerFacts, RunnerFolder, write_runner_folder

if TYPE_CHECKING:
    from pathlib import Path

RUNNER_LINE = {
    "runner": {
        "version": "0.1.0",
        "provider": "cpu",
        "ort_version": "1.32.0",
        "abi": "x86_64-linux",
        "qnn_build": None,
        "cpu_mask": None,
        "perf_mode": None,
        "threads": 1,
    }
}
LOAD_LINE = {
    "load": {"graph": "mtp_step", "provider": "cpu", "file": "g.onnx", "milliseconds": 12.5, "verify_ms": 1.25}
}
END_LINE = {"end": True, "exit": 0}
TREE = {"token_ids": [5, 6], "parents": [None, 0], "scores": [0.0, -0.5], "sources": ["root", "mtp"]}

# Takes --count rounds; `play` is Python that may print lines of its own or end the process. calls.jsonl lies in the
# folder's parent's parent, beside the pushed folder, which is removed.
_SCRIPT = """#!{python}
import json, os, sys, time
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
called = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "libraries": os.environ.get("LD_LIBRARY_PATH"),
          "dsp": os.environ.get("ADSP_LIBRARY_PATH"), "files": sorted(os.path.relpath(os.path.join(at, name), "..")
          for at, _, names in os.walk("..") for name in names)}}
with open("../../../calls.jsonl", "a") as log:
    log.write(json.dumps(called) + "\\n")

def say(line):
    print(json.dumps(line) if isinstance(line, dict) else line, flush=True)

def round_line(number):
    return {{"round": {{"number": number, "text": 0, "start_ns": time.monotonic_ns(), "total_ms": 10.0 + number,
            "parts": {{"mtp_step_1": 4.0, "slm_pass_1": 5.5}}, "matched": 1, "tree": {tree}}}}}

count = int(arguments["--count"])
say({runner!r})
say({load!r})
{play}
for number in range(count):
    say(round_line(number))
say({end!r})
"""


def scripted_runner(folder: Path, play: str = "", **facts: Any) -> RunnerFolder:
    """The folder, for x86-64 and the CPU unless `facts` say otherwise."""
    folder.mkdir()
    text = _SCRIPT.format(
        python=sys.executable, tree=repr(TREE), runner=RUNNER_LINE, load=LOAD_LINE, end=END_LINE, play=play
    )
    (folder / "hyco_runner").write_text(text)
    (folder / "libonnxruntime.so").write_bytes(b"stands for a library")
    given = {"abi": "x86_64-linux", "ort_version": "1.32.0", "qnn_build": None, "providers": ("cpu",), "htp_archs": ()}
    sources = {"hyco_runner": "scripted", "libonnxruntime.so": "made up"}
    if facts.get("qnn_build"):
        for name in ("libonnxruntime_providers_qnn.so", "libQnnHtp.so"):
            (folder / name).write_bytes(b"stands for a library")
            sources[name] = "made up"
    return write_runner_folder(folder, sources, RunnerFacts(**{**given, **facts}))


def calls(device_root: Path) -> list[dict[str, Any]]:
    """How the runner was called on the device whose work_dir is `device_root`."""
    log = device_root / "calls.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
