"""Opening a bundle, and every way in which its files can be wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from calibration.keepset import KeepSet
from export.bundle import Bundle, open_bundle, require_intact, verify_files
from export.errors import BundleError

from .builders import KEEP_SET, save_context_onnx, save_external_onnx, write_example

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_example(tmp_path / "bundle")


def kinds(bundle: Bundle) -> list[tuple[str, str]]:
    return [(problem.path, problem.kind) for problem in verify_files(bundle)]


def edit(bundle: Bundle, **changes: Any) -> None:
    path = bundle.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_intact_bundle(bundle: Bundle) -> None:
    assert verify_files(open_bundle(str(bundle.folder))) == []


@pytest.mark.parametrize("name", ["moved", "with a blank", "ünïcode"])
def test_renamed_folder(bundle: Bundle, tmp_path: Path, name: str) -> None:
    moved = tmp_path / "elsewhere" / name
    moved.parent.mkdir()
    shutil.move(bundle.folder, moved)
    again = open_bundle(moved)
    require_intact(again)
    # The external data is found from the new place: ONNX itself loads the weight.
    model = onnx.load(str(again.graph_file("step", "qdq")))
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).ravel().tolist() == list(range(12))


def test_paths(bundle: Bundle) -> None:
    assert bundle.path("tables/embedding.safetensors").read_bytes() == bytes(range(32))
    assert bundle.graph_file("step", "binary") == bundle.folder / "step.bin"
    with pytest.raises(BundleError, match="leaves"):
        bundle.path("../x")
    with pytest.raises(BundleError, match="no graph 'verify'; it has: step"):
        bundle.graph("verify")
    with pytest.raises(BundleError, match="no 'fp32' file; it has: binary, context, qdq"):
        bundle.graph_file("step", "fp32")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such folder"):
        open_bundle(tmp_path / "nowhere")


def test_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"not a bundle: it has no manifest\.json"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"<html>", b"[" * 100_000])
def test_manifest_that_is_not_json(bundle: Bundle, content: bytes) -> None:
    (bundle.folder / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match="is not JSON"):
        open_bundle(bundle.folder)


def test_manifest_truncated_by_one_brace(bundle: Bundle) -> None:
    path = bundle.folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(BundleError, match="is not JSON"):
        open_bundle(bundle.folder)


@pytest.mark.parametrize("content", ["[]", "1", "null", "{}"])
def test_json_that_is_no_manifest(bundle: Bundle, content: str) -> None:
    (bundle.folder / "manifest.json").write_text(content)
    with pytest.raises(BundleError, match="not a bundle's manifest"):
        open_bundle(bundle.folder)


@pytest.mark.parametrize("version", ["1", 0, -1, None, True, 1.0])
def test_bad_schema_version(bundle: Bundle, version: object) -> None:
    edit(bundle, schema_version=version)
    with pytest.raises(BundleError, match="schema_version is"):
        open_bundle(bundle.folder)


def test_newer_schema_version(bundle: Bundle) -> None:
    edit(bundle, schema_version=3, field_of_the_future=1)
    with pytest.raises(BundleError, match="schema_version 3; this release reads up to 2: install a newer"):
        open_bundle(bundle.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 5}, "bits"),
        ({"extra": 1}, "extra"),
        ({"keep_set": {"file": "/etc/passwd", "size": 4, "sha256": "b" * 64, "vocab_size": 107}}, "absolute"),
        ({"keep_set": {"file": "a/../../k", "size": 4, "sha256": "b" * 64, "vocab_size": 107}}, "leaves the bundle"),
        ({"files": [{"path": "../x", "size_bytes": 1, "sha256": "b" * 64}]}, r"files\.0\.path.*leaves the bundle"),
        ({"files": []}, "does not list it among its files"),
    ],
)
def test_invalid_manifest(bundle: Bundle, changes: dict[str, Any], message: str) -> None:
    edit(bundle, **changes)
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle.folder)


def test_missing_file(bundle: Bundle) -> None:
    (bundle.folder / "keep_set.json").unlink()
    assert kinds(bundle) == [("keep_set.json", "missing")]
    with pytest.raises(BundleError, match=r"damaged.*\n  keep_set\.json: missing"):
        require_intact(bundle)


def test_folder_in_place_of_a_file(bundle: Bundle) -> None:
    (bundle.folder / "step.bin").unlink()
    (bundle.folder / "step.bin").mkdir()
    assert ("step.bin", "missing") in kinds(bundle)


@pytest.mark.parametrize("name", ["step.bin", "step.onnx.data", "tables/embedding.safetensors", "metadata.yaml"])
def test_truncated_by_one_byte(bundle: Bundle, name: str) -> None:
    path = bundle.folder / name
    path.write_bytes(path.read_bytes()[:-1])
    assert kinds(bundle) == [(name, "size")]


def test_one_bit_flipped(bundle: Bundle) -> None:
    path = bundle.folder / "tables" / "embedding.safetensors"
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)
    [problem] = verify_files(bundle)
    assert (problem.path, problem.kind) == ("tables/embedding.safetensors", "sha256")
    assert hashlib.sha256(data).hexdigest() in problem.detail


def test_binaries_swapped_between_bundles_of_equal_size(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "other.bin").write_bytes(b"xyz")
    shutil.copyfile(tmp_path / "other.bin", bundle.folder / "step.bin")
    assert kinds(bundle) == [("step.bin", "sha256")]


def test_files_swapped_inside_a_bundle(bundle: Bundle) -> None:
    first, second = bundle.folder / "keep_set.json", bundle.folder / "tokenizer.json"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert kinds(bundle) == [("keep_set.json", "size"), ("tokenizer.json", "size")]


def replace_map(bundle: Bundle, content: bytes) -> Bundle:
    """The bundle with another map whose entry among the files is its own: size and hash are right."""
    (bundle.folder / "keep_set.json").write_bytes(content)
    files = json.loads((bundle.folder / "manifest.json").read_text())["files"]
    entry = next(one for one in files if one["path"] == "keep_set.json")
    entry |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(bundle, files=files)
    return open_bundle(bundle.folder)


def saved(keep_set: KeepSet, path: Path) -> bytes:
    keep_set.save(path)
    return path.read_bytes()


def test_the_map_of_another_run_is_refused_also_where_the_manifest_lists_it(bundle: Bundle, tmp_path: Path) -> None:
    """Case 41: the map is sound, and its file is the one that is listed; only the bundle's own hash tells."""
    intact = replace_map(bundle, saved(KEEP_SET, tmp_path / "same.json"))
    assert verify_files(intact) == []
    for ids, vocab_size in (([1, 5, 10, 106], 107), ([1, 5, 9, 106], 108), ([1, 5, 9], 107)):
        other = KeepSet(np.array(ids), vocab_size)
        [problem] = verify_files(replace_map(bundle, saved(other, tmp_path / "other.json")))
        assert (problem.path, problem.kind) == ("keep_set.json", "keep_set")
        assert "not the keep set that this bundle was made with" in str(problem)
        with pytest.raises(BundleError, match=r"damaged.*\n  keep_set\.json: not the keep set"):
            require_intact(open_bundle(bundle.folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [5, 1, 9, 106]}, "id 1 follows a larger one"),
        ({"token_ids": [1, 5, 5, 106]}, "id 5 is there twice"),
        ({"token_ids": [1, 5, 10, 106]}, "the file records the hash"),
        ({"token_ids": None}, "list of whole numbers"),
    ],
)
def test_a_map_that_is_no_map(bundle: Bundle, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    fields = {**json.loads(saved(KEEP_SET, tmp_path / "keep.json")), **changes}
    [problem] = verify_files(replace_map(bundle, json.dumps(fields).encode()))
    assert problem.kind == "keep_set"
    assert message in problem.detail


def test_a_manifest_that_miscounts_its_keep_set(bundle: Bundle) -> None:
    edit(bundle, keep_set={**json.loads((bundle.folder / "manifest.json").read_text())["keep_set"], "size": 5})
    [problem] = verify_files(open_bundle(bundle.folder))
    assert str(problem) == "keep_set.json: 4 token ids, the manifest says 5"


def test_unlisted_files(bundle: Bundle) -> None:
    (bundle.folder / "tables" / "stray").write_text("x")
    (bundle.folder / "dangling").symlink_to(bundle.folder / "nowhere")
    assert kinds(bundle) == [("dangling", "unlisted"), ("tables/stray", "unlisted")]


def test_link_that_leaves_the_folder(bundle: Bundle, tmp_path: Path) -> None:
    shutil.move(bundle.folder / "step.bin", tmp_path / "step.bin")
    (bundle.folder / "step.bin").symlink_to(tmp_path / "step.bin")
    assert kinds(bundle) == [("step.bin", "outside")]
    with pytest.raises(BundleError, match="link that leaves"):
        bundle.path("step.bin")


def test_missing_external_data_is_named(bundle: Bundle) -> None:
    (bundle.folder / "step.onnx.data").unlink()
    assert kinds(bundle) == [("step.onnx.data", "missing"), ("step.onnx", "onnx")]
    with pytest.raises(BundleError, match=r"step\.onnx: needs step\.onnx\.data"):
        require_intact(bundle)


def test_graph_names_must_match_the_manifest(bundle: Bundle) -> None:
    graphs = json.loads((bundle.folder / "manifest.json").read_text())["graphs"]
    graphs[0]["inputs"][0]["name"] = "input_ids"
    edit(bundle, graphs=graphs)
    problems = verify_files(open_bundle(bundle.folder))
    assert [(p.path, p.kind) for p in problems] == [("step.onnx", "names"), ("step_ctx.onnx", "names")]
    assert "input_ids, x" in problems[0].detail


def test_unreadable_onnx(bundle: Bundle) -> None:
    (bundle.folder / "step.onnx").write_bytes(b"\xff" * 40)
    assert kinds(bundle) == [("step.onnx", "size"), ("step.onnx", "onnx")]


def test_many_problems_are_cut(bundle: Bundle) -> None:
    for path in list(bundle.folder.iterdir()):
        if path.is_file() and path.name != "manifest.json":
            path.unlink()
    with pytest.raises(BundleError, match="and 2 more"):
        require_intact(bundle)


@pytest.mark.parametrize("name", ["m.onnx", "my model.onnx"])
def test_bare_onnx_without_its_data(tmp_path: Path, name: str) -> None:
    (tmp_path / "from").mkdir()
    save_external_onnx(tmp_path / "from" / name, f"{name}.data")
    shutil.copy(tmp_path / "from" / name, tmp_path / name)
    with pytest.raises(BundleError, match=f"needs {name}.data, which does not lie beside it"):
        open_bundle(tmp_path / name)
    with pytest.raises(BundleError, match="single graph; a bundle is a folder"):
        open_bundle(tmp_path / "from" / name)


def test_bare_context_without_its_binary(tmp_path: Path) -> None:
    save_context_onnx(tmp_path / "ctx.onnx", "ctx_qnn.bin")
    with pytest.raises(BundleError, match=r"needs ctx_qnn\.bin"):
        open_bundle(tmp_path / "ctx.onnx")


def test_other_bare_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(BundleError, match="pass the folder"):
        open_bundle(tmp_path / "a.txt")
    with pytest.raises(BundleError, match="not a readable ONNX file"):
        open_bundle(tmp_path / "a.onnx")
