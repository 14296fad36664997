"""What qnn-net-run needs on the phone, in one folder of this machine: tool, libraries, configuration, inputs.

    qnn-net-run, libQnn*.so     from the SDK
    net_run.json, htp.json      --config_file: the backend's extension, and its settings
    NAME.bin                    the context binary
    GRAPH.txt, GRAPH/*.raw      --input_list: one line `input:=file ...`, and the codes themselves

Inputs are the graph's own integer codes (--use_native_input_files), so nothing is converted. Without recorded ones each
is the code of the value 0. The form of the configuration is Qualcomm's documented one, not run here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from device_runner.graph_errors import NetRunError
from device_runner.net_run_sdk import EXTENSIONS
from export.bundle.boundary import boundary_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from device_runner.net_run_sdk import QairtSdk
    from device_runner.phone_graphs import PhoneGraph

    Codes = Mapping[str, Mapping[str, np.ndarray]]
    """Graph name -> input name -> integer codes in the input's type and shape."""

CONFIG, _HTP_CONFIG = "net_run.json", "htp.json"
ZEROS, RECORDED = "the code of the value 0 in every place", "recorded codes"


def stage(
    folder: Path, graphs: Sequence[PhoneGraph], sdk: QairtSdk, perf_profile: str, codes: Codes | None = None
) -> None:
    """Fill an empty folder for `graphs`, which are for one chip; large files are links.

    Raises:
        NetRunError: codes of another type or shape than the graph's input, or of another input.
    """
    for path in sdk.device_files:
        (folder / path.name).symlink_to(path.resolve())
    target = graphs[0].target
    cores = [{"core_id": 0, "perf_profile": perf_profile}]
    device = {"soc_model": target.soc_model, "dsp_arch": target.htp_arch, "pd_session": "unsigned", "cores": cores}
    _write_json(folder / _HTP_CONFIG, {"devices": [device]})
    extension = {"shared_library_path": EXTENSIONS, "config_file_path": _HTP_CONFIG}
    _write_json(folder / CONFIG, {"backend_extensions": extension})
    for graph in graphs:
        (folder / binary_name(graph)).symlink_to(graph.binary.resolve())
        _write_inputs(folder, graph, None if codes is None else codes.get(graph.info.name))


def binary_name(graph: PhoneGraph) -> str:
    """The binary on the phone; two bundles may use one name for theirs."""
    return f"{graph.bundle.manifest.kind}.bin"


def list_name(graph: PhoneGraph) -> str:
    """The list of a graph's input files."""
    return f"{graph.info.name}.txt"


def _write_inputs(folder: Path, graph: PhoneGraph, codes: Mapping[str, np.ndarray] | None) -> None:
    tensors = boundary_of(graph.info).inputs
    if codes is not None and codes.keys() != {tensor.name for tensor in tensors}:
        raise NetRunError(f"{graph.label} takes {[t.name for t in tensors]}, the recorded codes are {sorted(codes)}")
    (folder / graph.info.name).mkdir()
    entries = []
    for tensor in tensors:
        if codes is None:
            values = np.full(tensor.shape, tensor.zero_point, np.dtype(tensor.dtype))
        else:
            values = codes[tensor.name]
        if values.dtype != np.dtype(tensor.dtype) or values.shape != tensor.shape:
            raise NetRunError(
                f"{graph.label}: codes of {tensor.name!r} are {values.dtype} {values.shape}, not {tensor.dtype} "
                f"{tensor.shape}"
            )
        path = f"{graph.info.name}/{tensor.name}.raw"
        np.ascontiguousarray(values).tofile(folder / path)
        entries.append(f"{tensor.name}:={path}")
    (folder / list_name(graph)).write_text(" ".join(entries) + "\n", encoding="utf-8")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
