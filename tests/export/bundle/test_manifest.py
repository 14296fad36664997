"""The manifest as data: round trip, stable bytes, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from export.bundle import (
    CalibrationInfo,
    FileInfo,
    GraphInfo,
    KeepSetInfo,
    Manifest,
    SourceInfo,
    TableInfo,
    TargetStatus,
    TensorInfo,
)
from export.bundle.manifest import SlmInfo, check_relative_path

from .builders import KEEP_SET, SHA_A, SHA_B, example_manifest, example_slm, slm_info

SCHEMA_1 = Path(__file__).parent / "data" / "schema_1.json"
"""Written by the release whose schema version was 1, of this folder's example bundle."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.from_regex(r"\A[a-z0-9 _-]{1,8}(/[a-z0-9 _-]{1,8}){0,2}\Z")
hashes = st.from_regex(r"\A[0-9a-f]{64}\Z")
counts = st.integers(1, 2**40)
finite = st.floats(allow_nan=False, allow_infinity=False)
scales = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
sources = st.builds(
    SourceInfo,
    origin=texts,
    revision=st.none() | texts,
    sha256=hashes,
    config=st.dictionaries(texts, json_values, max_size=3),
)
shapes = st.lists(counts, max_size=4).map(tuple)
tensors = st.builds(TensorInfo, name=texts, dtype=texts, shape=shapes) | st.builds(
    TensorInfo, name=texts, dtype=texts, shape=shapes, scale=scales, zero_point=st.integers(-(2**31), 2**31)
)
graphs = st.builds(
    GraphInfo,
    name=texts,
    rows=counts,
    files=st.dictionaries(texts, names, max_size=3),
    inputs=st.lists(tensors, max_size=3).map(tuple),
    outputs=st.lists(tensors, max_size=2).map(tuple),
    weight_bytes=counts,
    nodes_on_npu=st.none() | counts,
    nodes_off_npu=st.none() | counts,
)
archs = st.integers(60, 99).map(lambda number: f"v{number}")
targets = st.builds(
    TargetStatus,
    target=texts,
    soc_model=counts,
    htp_arch=archs,
    qnn_version=texts,
    compiled=st.just(True),
    simulated=st.booleans(),
    measured_on_device=texts.filter(bool),
)
keep_sets = (
    st.tuples(counts, counts)
    .map(sorted)
    .flatmap(
        lambda pair: st.builds(
            KeepSetInfo, file=names, size=st.just(pair[0]), sha256=hashes, vocab_size=st.just(pair[1])
        )
    )
)
files = st.builds(FileInfo, path=names, size_bytes=counts, sha256=hashes)


def unique(items: st.SearchStrategy[Any], key: str, max_size: int = 2) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=max_size, unique_by=lambda item: getattr(item, key)).map(tuple)


tables = st.builds(TableInfo, file=names, rows=counts, width=counts, bits=counts, size_bytes=counts)


def slm_of(manifest: Manifest) -> st.SearchStrategy[Manifest]:
    """The same as an SLM's, over its own graphs."""
    graph_names = st.sampled_from([graph.name for graph in manifest.graphs])
    slm = st.builds(
        SlmInfo,
        draft_graph=graph_names,
        prefill_graph=graph_names,
        two_bit=st.sampled_from(["int4", "native", "nbits"]),
        head_bits=st.sampled_from([2, 4, 8]),
        activation_clip=st.booleans(),
        weight_bytes_by_kind=st.dictionaries(texts, counts, max_size=3),
    )
    more = {"slm": slm, "per_layer_table": st.none() | tables, "bits": st.sampled_from([None, 2, 4, 8])}
    return st.fixed_dictionaries(more).map(lambda fields: Manifest(**{**dict(manifest), "kind": "slm", **fields}))


heads = st.builds(
    Manifest,
    kind=st.just("mtp"),
    created_utc=st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)),
    tool_versions=st.dictionaries(texts, texts, max_size=3),
    source=sources,
    verifier=st.none() | sources,
    bits=st.sampled_from([2, 4, 8]),
    window=counts,
    position_rule=st.sampled_from(["p", "p-1"]),
    keep_set=keep_sets,
    calibration=st.builds(CalibrationInfo, source=texts, sha256=hashes),
    seed=counts,
    graphs=unique(graphs, "name"),
    table=st.none() | tables,
    parity=st.dictionaries(texts, finite, max_size=3),
    targets=unique(targets, "target"),
    files=unique(files, "path", 3),
)
manifests = heads.flatmap(lambda head: st.just(head) | slm_of(head) if head.graphs else st.just(head))


@settings(max_examples=30, deadline=None)
@given(manifests)
def test_round_trip(manifest: Manifest) -> None:
    text = manifest.to_json()
    again = Manifest.from_json(text)
    assert again == manifest
    assert again.to_json() == text


def test_json_is_plain_and_readable() -> None:
    value = json.loads(example_manifest().to_json())
    assert value["schema_version"] == 2
    assert value["created_utc"] == "2026-05-04T03:02:01Z"
    assert value["source"]["config"] == {"layers": [1, 2], "width": 8}
    assert value["graphs"][0]["inputs"] == [
        {"name": "x", "dtype": "uint16", "shape": [1, 3], "scale": 0.25, "zero_point": 32768}
    ]
    assert value["graphs"][0]["outputs"][0]["scale"] == 1e-05
    assert value["targets"][0]["measured_on_device"] == "not measured"
    assert value["verifier"] is None
    assert value["slm"] is None


def test_an_slm_in_json() -> None:
    value = json.loads(example_slm().to_json())
    assert value["bits"] is None
    assert value["slm"] == {
        "draft_graph": "draft",
        "prefill_graph": "prefill",
        "two_bit": "int4",
        "head_bits": 4,
        "activation_clip": True,
        "weight_bytes_by_kind": {"attention": 2, "mlp": 4},
    }
    assert value["per_layer_table"]["file"] == "tables/per_layer.safetensors"


def test_a_manifest_of_schema_1_is_read() -> None:
    """It says the same as the example of today, and lists the files of its bundle."""
    manifest = Manifest.from_json(SCHEMA_1.read_text())
    assert manifest.schema_version == 1
    keep_set = manifest.keep_set.model_copy(update={"sha256": KEEP_SET.sha256})
    assert manifest.keep_set.sha256 == SHA_B  # an example's, of no set
    assert manifest.model_copy(update={"keep_set": keep_set}) == example_manifest(
        schema_version=1, files=manifest.files
    )
    assert [file.path for file in manifest.files][:3] == ["keep_set.json", "metadata.yaml", "step.bin"]


def test_an_slm_of_schema_1_has_no_further_fields() -> None:
    old = {**json.loads(SCHEMA_1.read_text()), "kind": "slm"}
    assert Manifest.from_json(json.dumps(old)).slm is None


@pytest.mark.parametrize("field", ["bits", "slm", "per_layer_table"])
def test_schema_1_with_a_field_of_schema_2(field: str) -> None:
    new = json.loads(example_slm().to_json())
    old = {**new, "schema_version": 1, "bits": 4, "slm": None, "per_layer_table": None}
    Manifest.from_json(json.dumps(old))
    with pytest.raises(ValidationError, match="schema_version is 1, which knows neither mixed bits nor an SLM's"):
        Manifest.from_json(json.dumps({**old, field: new[field]}))


def test_json_order_does_not_depend_on_insertion_order() -> None:
    one = example_manifest(tool_versions={"a": "1", "b": "2"}, parity={"x": 1.0, "y": 2.0})
    two = example_manifest(tool_versions={"b": "2", "a": "1"}, parity={"y": 2.0, "x": 1.0})
    assert one.to_json() == two.to_json()


def test_referenced_paths() -> None:
    assert example_manifest().referenced_paths == (
        "keep_set.json",
        "step.bin",
        "step.onnx",
        "step_ctx.onnx",
        "tables/embedding.safetensors",
    )
    assert "tables/embedding.safetensors" not in example_manifest(table=None).referenced_paths
    assert {*example_slm().referenced_paths} == {*example_manifest().referenced_paths, "tables/per_layer.safetensors"}


def test_is_frozen() -> None:
    manifest = example_manifest()
    with pytest.raises(ValidationError):
        manifest.bits = 8


@pytest.mark.parametrize("path", ["a", "a/b.onnx", "with blank/x", "..a/b", "a..", "ü.json"])
def test_relative_path_accepted(path: str) -> None:
    assert check_relative_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "../a",
        "a/../b",
        "a/..",
        "/a",
        "//a/b",
        "a//b",
        "a/",
        "./a",
        "C:a",
        "C:/a",
        "c:\\a",
        "a\\b",
        "\\a",
        "a\0b",
    ],
)
def test_relative_path_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        check_relative_path(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits"),
        ({"bits": "4"}, "bits"),
        ({"kind": "llm"}, "kind"),
        ({"window": 0}, "window"),
        ({"position_rule": "p+1"}, "position_rule"),
        ({"schema_version": 3}, "schema_version"),
        ({"kind": "slm"}, "kind is 'slm', but the field slm is absent"),
        ({"slm": slm_info(draft_graph="step", prefill_graph="step")}, "kind is 'mtp', but the field slm is there"),
        ({"parity": {"sqnr_db": float("inf")}}, "parity"),
        ({"parity": {"cosine": float("nan")}}, "parity"),
        ({"created_utc": datetime(2026, 1, 1)}, "created_utc"),
        ({"created_utc": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))}, "not in UTC"),
        ({"surprise": 1}, "surprise"),
        ({"graphs": example_manifest().graphs * 2}, "graph 'step' is listed more than once"),
        ({"targets": example_manifest().targets[:1] * 2}, "target 'sm8850' is listed more than once"),
        ({"files": (FileInfo(path="a", size_bytes=0, sha256=SHA_A),) * 2}, "file 'a' is listed more than once"),
    ],
)
def test_manifest_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        example_manifest(**changes)


@pytest.mark.parametrize("field", ["draft_graph", "prefill_graph"])
def test_an_slm_names_its_own_graphs(field: str) -> None:
    with pytest.raises(ValidationError, match=r"slm names the graph 'step', which is not among \['draft', 'prefill'\]"):
        example_slm(slm=slm_info(**{field: "step"}))


TARGET = {"target": "sm8850", "soc_model": 87, "htp_arch": "v81", "qnn_version": "2.51", "simulated": False}


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (TensorInfo, {"name": "x", "dtype": "int16", "shape": (1,), "scale": 1.0}, "only one of scale and zero_point"),
        (TensorInfo, {"name": "x", "dtype": "int16", "shape": (1,), "scale": 0.0, "zero_point": 0}, "scale"),
        (TensorInfo, {"name": "x", "dtype": "int16", "shape": (1, 0)}, "shape"),
        (KeepSetInfo, {"file": "k", "size": 5, "sha256": SHA_A, "vocab_size": 4}, "holds 5 ids"),
        (KeepSetInfo, {"file": "../k", "size": 4, "sha256": SHA_A, "vocab_size": 4}, "leaves the bundle"),
        (FileInfo, {"path": "a", "size_bytes": 1, "sha256": "A" * 64}, "sha256"),
        (FileInfo, {"path": "a", "size_bytes": 1, "sha256": "a" * 64 + "\n"}, "sha256"),
        (FileInfo, {"path": "a", "size_bytes": -1, "sha256": SHA_A}, "size_bytes"),
        (SlmInfo, {**dict(slm_info()), "two_bit": "int2"}, "two_bit"),
        (SlmInfo, {**dict(slm_info()), "head_bits": 16}, "head_bits"),
        (SlmInfo, {**dict(slm_info()), "weight_bytes_by_kind": {"mlp": -1}}, "weight_bytes_by_kind"),
        (TargetStatus, {**TARGET, "compiled": True, "htp_arch": "81"}, "htp_arch"),
        (TargetStatus, {**TARGET, "compiled": True, "qnn_version": None}, "qnn_version is missing"),
        (TargetStatus, {**TARGET, "compiled": False, "simulated": True}, "simulated, but not compiled"),
        (TargetStatus, {**TARGET, "compiled": True, "measured_on_device": ""}, "measured_on_device"),
    ],
)
def test_records_refuse(model: type[BaseModel], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model(**fields)
