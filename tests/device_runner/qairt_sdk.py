"""A stand-in for a QAIRT SDK: NOT Qualcomm's tools, and no measure of anything.

Its three programs are one Python script under three names. They check how they are called, and hand on made-up times in
the forms that public users of the real tools show:

    qnn-net-run                  checks its folder, options and input files; writes the times that the SDK's file
                                 `times.json` holds, as its "profiling log"
    qnn-profile-viewer           turns that log into CSV
    qnn-context-binary-utility   tells the graphs of a binary of tests/device_runner/graph_bundles.py
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

BUILD = "v2.51.0.260929181845"
DEVICE_FILES = {
    "lib/aarch64-android/libQnnHtp.so": BUILD,
    "lib/aarch64-android/libQnnSystem.so": "",
    "lib/aarch64-android/libQnnHtpNetRunExtensions.so": "",
    "lib/aarch64-android/libQnnHtpV81Stub.so": BUILD,
    "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so": BUILD,
}
PROGRAMS = (
    "bin/aarch64-android/qnn-net-run",
    "bin/x86_64-linux-clang/qnn-profile-viewer",
    "bin/x86_64-linux-clang/qnn-context-binary-utility",
)
HEADER = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"

# {python} and {faults} are filled in; faults change what is written.
_SCRIPT = """#!{python}
# A stand-in for a tool of the QAIRT SDK, for tests.
import json, os, sys
from pathlib import Path

FAULTS = {faults!r}
options, name = {{}}, Path(sys.argv[0]).name
words = sys.argv[1:]
while words:
    key = words.pop(0)
    options[key] = words.pop(0) if words and not words[0].startswith("--") else ""


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(FAULTS.get("exit", 9))


def net_run():
    wanted = {{"--retrieve_context", "--backend", "--config_file", "--input_list", "--output_dir", "--num_inferences",
              "--keep_num_outputs", "--perf_profile", "--profiling_level", "--use_native_input_files",
              "--use_native_output_files"}}
    if options.keys() != wanted:
        fail(f"options {{sorted(options.keys() ^ wanted)}}")
    if (os.environ["LD_LIBRARY_PATH"], os.environ["ADSP_LIBRARY_PATH"]) != (".", "."):
        fail("library paths")
    if FAULTS.get("net_run"):
        fail(FAULTS["net_run"])
    htp = json.loads(Path("htp.json").read_text())["devices"][0]
    extension = json.loads(Path(options["--config_file"]).read_text())["backend_extensions"]
    if (htp["soc_model"], htp["dsp_arch"], htp["cores"][0]["perf_profile"]) != (87, "v81", options["--perf_profile"]):
        fail(f"configuration {{htp}}")
    for file in (options["--backend"], extension["shared_library_path"], extension["config_file_path"],
                 "libQnnSystem.so", "libQnnHtpV81Stub.so", "libQnnHtpV81Skel.so"):
        if not Path(file).is_file():
            fail(f"{{file}} is missing")
    graphs = json.loads(Path(options["--retrieve_context"]).read_text())["graphs"]
    lists = options["--input_list"].split(",")
    if len(lists) != len(graphs):
        fail(f"{{len(lists)}} input lists for {{len(graphs)}} graphs")
    for place, (graph, listed) in enumerate(zip(graphs, lists)):
        if listed == "__":
            continue
        given = dict(entry.split(":=") for entry in Path(listed).read_text().split())
        sizes = {{name: Path(file).stat().st_size for name, file in given.items()}}
        print(f"graph {{graph['name']}} inputs {{sizes}}")
        out = Path(options["--output_dir"])
        out.mkdir()
        (out / "Result_0").mkdir()
        count = int(options["--num_inferences"])
        log = out / "qnn-profiling-data_0.log"
        log.write_text(json.dumps({{"place": place, "graph": graph["name"], "count": count}}))
        (out / "qnn-profiling-data.log").symlink_to(log.name)


def viewer():
    log = json.loads(Path(options["--input_log"]).read_text())
    rows = ["QNN SDK version: 2.51", "Source: qnn-net-run", ""]
    if not FAULTS.get("no_header"):
        rows.append("{header}")
    rows.append("1,INIT,31158,US,NETRUN,ROOT,")
    load = ["2,INIT,9009,US,BACKEND,ROOT,QNN (load binary) time"]
    rows += load * FAULTS.get("loads", 1)
    graph = FAULTS.get("graph", log["graph"])
    accelerator = FAULTS.get("name", "QNN accelerator (execute) time")
    for run in range(log["count"] - FAULTS.get("lost_runs", 0)):
        netrun = FAULTS.get("time", str(3000 + 10 * run))
        unit = FAULTS.get("unit", "US")
        rows += [
            f"{{run}},EXECUTE,{{netrun}},US,NETRUN,ROOT,Graph {{log['place']}}: {{graph}}",
            f"{{run}},EXECUTE,4,COUNT,BACKEND,ROOT,Number of HVX threads used",
            f"{{run}},EXECUTE,{{2900 + 10 * run}},US,BACKEND,ROOT,RPC (execute) time",
            f"{{run}},EXECUTE,{{2500 + 10 * run}},{{unit}},BACKEND,ROOT,{{accelerator}}",
            f"{{run}},EXECUTE,4000000,CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles)",
            f"{{run}},EXECUTE,{{2950 + 10 * run}},US,BACKEND,ROOT,QNN (execute) time",
        ]
    rows.append("9,DE-INIT,15810,US,NETRUN,ROOT,")
    if not FAULTS.get("no_csv"):
        Path(options["--output"]).write_text("\\n".join(rows) + "\\n")
    print("Qnn Init/Prepare/Finalize/De-Init/Execute/Lib-Load Statistics:")


def utility():
    graphs = json.loads(Path(options["--context_binary"]).read_text())["graphs"]
    info = [
        {{"info": {{"graphName": graph["name"], "graphInputs": [{{"info": one}} for one in graph["inputs"]]}}}}
        for graph in graphs
    ]
    value = FAULTS.get("described", {{"info": {{"backendId": 6, "graphs": info}}}})
    Path(options["--json_file"]).write_text(json.dumps(value))


{{"qnn-net-run": net_run, "qnn-profile-viewer": viewer, "qnn-context-binary-utility": utility}}[name]()
"""


@dataclass(frozen=True)
class StandInSdk:
    """The folder of the stand-in."""

    root: Path

    def set_faults(self, **faults: Any) -> None:
        """Write the programs again, with what goes wrong."""
        text = _SCRIPT.format(python=sys.executable, faults=faults, header=HEADER)
        for name in PROGRAMS:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)


def write_sdk(root: Path) -> StandInSdk:
    """A whole stand-in that works."""
    for name, build in DEVICE_FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\x7fELF stand-in\0" + build.encode() + b"\0")
    sdk = StandInSdk(root)
    sdk.set_faults()
    return sdk
