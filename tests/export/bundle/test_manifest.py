"""The manifest as data: round trip, stable bytes, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
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
from export.bundle.manifest import check_relative_path

from .builders import SHA_A, example_manifest

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


manifests = st.builds(
    Manifest,
    kind=st.sampled_from(["mtp", "slm"]),
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
    table=st.none() | st.builds(TableInfo, file=names, rows=counts, width=counts, bits=counts, size_bytes=counts),
    parity=st.dictionaries(texts, finite, max_size=3),
    targets=unique(targets, "target"),
    files=unique(files, "path", 3),
)


@settings(max_examples=60, deadline=None)
@given(manifests)
def test_round_trip(manifest: Manifest) -> None:
    text = manifest.to_json()
    again = Manifest.from_json(text)
    assert again == manifest
    assert again.to_json() == text


def test_json_is_plain_and_readable() -> None:
    value = json.loads(example_manifest().to_json())
    assert value["schema_version"] == 1
    assert value["created_utc"] == "2026-05-04T03:02:01Z"
    assert value["source"]["config"] == {"layers": [1, 2], "width": 8}
    assert value["graphs"][0]["inputs"] == [
        {"name": "x", "dtype": "uint16", "shape": [1, 3], "scale": 0.25, "zero_point": 32768}
    ]
    assert value["graphs"][0]["outputs"][0]["scale"] == 1e-05
    assert value["targets"][0]["measured_on_device"] == "not measured"
    assert value["verifier"] is None


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
        ({"schema_version": 2}, "schema_version"),
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
        (TargetStatus, {**TARGET, "compiled": True, "htp_arch": "81"}, "htp_arch"),
        (TargetStatus, {**TARGET, "compiled": True, "qnn_version": None}, "qnn_version is missing"),
        (TargetStatus, {**TARGET, "compiled": False, "simulated": True}, "simulated, but not compiled"),
        (TargetStatus, {**TARGET, "compiled": True, "measured_on_device": ""}, "measured_on_device"),
    ],
)
def test_records_refuse(model: type[BaseModel], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model(**fields)
