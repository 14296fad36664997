"""metadata.yaml read back by a YAML parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from export.bundle import GraphInfo, metadata_yaml

from .builders import example_manifest, example_slm, write_example

if TYPE_CHECKING:
    from pathlib import Path


def test_compiled_bundle() -> None:
    value = yaml.safe_load(metadata_yaml(example_manifest(), ["tokenizer.json", "chat.jinja", "step.bin"]))
    assert value == {
        "model_id": "hyco_mtp",
        "runtime": "precompiled_qnn_onnx",
        "precision": "w4a16",
        "tool_versions": {"onnx": "1.23.0", "onnx_runtime": "1.32.0", "qairt": "2.51.0"},
        "model_files": {
            "step_ctx.onnx": {
                "inputs": {
                    "x": {
                        "shape": [1, 3],
                        "dtype": "uint16",
                        "quantization_parameters": {"scale": 0.25, "zero_point": 32768},
                    }
                },
                "outputs": {
                    "y": {
                        "shape": [1, 4],
                        "dtype": "uint16",
                        "quantization_parameters": {"scale": 1e-05, "zero_point": 0},
                    }
                },
            }
        },
        "supplementary_files": {
            "chat.jinja": "Supporting file",
            "keep_set.json": "Token ids of the 4 output columns",
            "manifest.json": "Full description of the bundle, with hashes",
            "step.bin": "Compiled Hexagon context binary",
            "step.onnx": "Quantised graph for the CPU, QDQ form",
            "tables/embedding.safetensors": "Embedding table, 4 rows of 8 bits",
            "tokenizer.json": "Tokenizer",
        },
    }


def test_shapes_are_on_one_line() -> None:
    assert "shape: [1, 3]\n" in metadata_yaml(example_manifest())


def test_without_a_compiler() -> None:
    [graph] = example_manifest().graphs
    plain = GraphInfo.model_validate({**dict(graph), "files": {"qdq": "step.onnx"}})
    value = yaml.safe_load(metadata_yaml(example_manifest(graphs=(plain,), targets=(), bits=8)))
    assert value["runtime"] == "onnx"
    assert value["precision"] == "w8a16"
    assert list(value["model_files"]) == ["step.onnx"]
    assert "qairt" not in value["tool_versions"]


def test_two_bit_weights_and_float_boundary() -> None:
    [graph] = example_manifest().graphs
    inputs = [{"name": "x", "dtype": "float32", "shape": (1, 3)}]
    plain = GraphInfo.model_validate({**dict(graph), "inputs": tuple(inputs)})
    value = yaml.safe_load(metadata_yaml(example_manifest(graphs=(plain,), bits=2)))
    assert value["precision"] == "mixed"
    assert value["model_files"]["step_ctx.onnx"]["inputs"]["x"] == {"shape": [1, 3], "dtype": "float32"}


def test_an_slm_of_two_graphs() -> None:
    """One binary and one file of weights for both; two tables; weights of mixed bits."""
    files = {
        name: {
            "qdq": f"{name}.qdq.onnx",
            "weights": "slm.weights",
            "context": f"{name}.onnx",
            "binary": "slm.bin",
            "simulator_context": f"simulator/{name}.onnx",
            "simulator_binary": f"simulator/{name}.bin",
        }
        for name in ("draft", "prefill")
    }
    [graph] = example_manifest().graphs
    graphs = tuple(graph.model_copy(update={"name": name, "files": files[name]}) for name in files)
    value = yaml.safe_load(metadata_yaml(example_slm(graphs=graphs)))
    assert value["precision"] == "mixed"
    assert value["model_files"].keys() == {"draft.onnx", "prefill.onnx"}
    assert value["supplementary_files"] == {
        "draft.qdq.onnx": "Quantised graph for the CPU, QDQ form",
        "keep_set.json": "Token ids of the 4 output columns",
        "manifest.json": "Full description of the bundle, with hashes",
        "prefill.qdq.onnx": "Quantised graph for the CPU, QDQ form",
        "simulator/draft.bin": "Context binary of the graph compiled alone, for the x86 simulator",
        "simulator/draft.onnx": "The graph compiled alone, for the x86 simulator",
        "simulator/prefill.bin": "Context binary of the graph compiled alone, for the x86 simulator",
        "simulator/prefill.onnx": "The graph compiled alone, for the x86 simulator",
        "slm.bin": "Compiled Hexagon context binary",
        "slm.weights": "Weights of the quantised graphs",
        "tables/embedding.safetensors": "Embedding table, 4 rows of 8 bits",
        "tables/per_layer.safetensors": "Per-layer embedding table, 4 rows of 4 bits",
    }


def test_names_that_yaml_could_misread() -> None:
    manifest = example_manifest(tool_versions={"onnx": "1.10", "onnxruntime": "no"})
    assert yaml.safe_load(metadata_yaml(manifest, ["a: b#c.json"]))["tool_versions"]["onnx"] == "1.10"
    assert yaml.safe_load(metadata_yaml(manifest, ["a: b#c.json"]))["supplementary_files"]["a: b#c.json"]


def test_written_into_the_bundle(tmp_path: Path) -> None:
    bundle = write_example(tmp_path / "bundle")
    value = yaml.safe_load((bundle.folder / "metadata.yaml").read_text(encoding="utf-8"))
    described = {*value["model_files"], *value["supplementary_files"], "metadata.yaml"}
    on_disk = {p.relative_to(bundle.folder).as_posix() for p in bundle.folder.rglob("*") if p.is_file()}
    assert described == on_disk
