"""`metadata.yaml` in the form of Qualcomm AI Hub Models' released assets, so that their tools can read a bundle.

The form (qai_hub_models/configs/metadata_yaml.py, release of 2026): `runtime`, `precision`, `tool_versions`,
`model_files` (file name -> inputs and outputs: shape, dtype, quantization_parameters) and `supplementary_files`
(file name -> description). It holds a part of manifest.json and nothing else; the manifest stays the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from export.bundle.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from export.bundle.manifest import GraphInfo, Manifest, TensorInfo

METADATA_NAME = "metadata.yaml"
_PRECISION = {4: "w4a16", 8: "w8a16"}  # AI Hub has no name for 2-bit weights: those are "mixed"
_TOOL_NAMES = {"onnx": "onnx", "onnxruntime": "onnx_runtime"}  # ours -> theirs
_ROLE_TEXT = {
    "binary": "Compiled Hexagon context binary",
    "qdq": "Quantised graph for the CPU, QDQ form",
    "weights": "Weights of the quantised graphs",
    "simulator_context": "The graph compiled alone, for the x86 simulator",
    "simulator_binary": "Context binary of the graph compiled alone, for the x86 simulator",
}


class _FlowList(list[int]):
    """A list written on one line: shapes."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(_FlowList, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True))


def metadata_yaml(manifest: Manifest, other_files: Iterable[str] = ()) -> str:
    """The text of metadata.yaml.

    `other_files` are paths in the bundle that no field of the manifest names (tokenizer files); they become
    supplementary files. The model file of a graph is its context if it has one, else its QDQ form.
    """
    main = {graph.name: _main_role(graph) for graph in manifest.graphs}
    compiled = any(role == "context" for role in main.values())
    value = {
        "model_id": f"hyco_{manifest.kind}",
        "runtime": "precompiled_qnn_onnx" if compiled else "onnx",
        "precision": _PRECISION.get(manifest.bits or 0, "mixed"),
        "tool_versions": _tool_versions(manifest),
        "model_files": {
            graph.files[role]: {"inputs": _tensors(graph.inputs), "outputs": _tensors(graph.outputs)}
            for graph in manifest.graphs
            if (role := main[graph.name]) is not None
        },
        "supplementary_files": _supplementary(manifest, main, other_files),
    }
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def _main_role(graph: GraphInfo) -> str | None:
    return next((role for role in ("context", "qdq") if role in graph.files), None)


def _tool_versions(manifest: Manifest) -> dict[str, str]:
    versions = {
        theirs: manifest.tool_versions[ours] for ours, theirs in _TOOL_NAMES.items() if ours in manifest.tool_versions
    }
    qnn = sorted({status.qnn_version for status in manifest.targets if status.compiled and status.qnn_version})
    if qnn:
        versions["qairt"] = qnn[-1]
    return versions


def _tensors(tensors: Iterable[TensorInfo]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for tensor in tensors:
        entry: dict[str, Any] = {"shape": _FlowList(tensor.shape), "dtype": tensor.dtype}
        if tensor.scale is not None:
            entry["quantization_parameters"] = {"scale": tensor.scale, "zero_point": tensor.zero_point}
        described[tensor.name] = entry
    return described


def _supplementary(manifest: Manifest, main: dict[str, str | None], other_files: Iterable[str]) -> dict[str, str]:
    texts = {MANIFEST_NAME: "Full description of the bundle, with hashes"}
    texts[manifest.keep_set.file] = f"Token ids of the {manifest.keep_set.size} output columns"
    for name, table in (("Embedding", manifest.table), ("Per-layer embedding", manifest.per_layer_table)):
        if table is not None:
            texts[table.file] = f"{name} table, {table.rows} rows of {table.bits} bits"
    for graph in manifest.graphs:
        for role, path in graph.files.items():
            if role != main[graph.name]:
                texts[path] = _ROLE_TEXT.get(role, f"File of graph {graph.name}: {role}")
    named = set(manifest.referenced_paths) | {METADATA_NAME, MANIFEST_NAME}
    for path in sorted(set(other_files) - named):
        texts[path] = "Tokenizer" if "tokenizer" in path else "Supporting file"
    return dict(sorted(texts.items()))
