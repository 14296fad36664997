"""A bundle appears whole or not at all, and --force deletes nothing but a bundle."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from export.bundle import SCHEMA_VERSION, BundleWriter, open_bundle, require_intact
from export.errors import BundleError
from export.hashing import sha256_file
from quant.errors import UsageError

from .builders import example_manifest, fill, save_context_onnx, write_example

if TYPE_CHECKING:
    from pathlib import Path

# FIPS 180-2, appendix B.1 and the empty message.
SHA256_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
SHA256_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_sha256_of_known_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    (tmp_path / "empty").write_bytes(b"")
    large = bytes(range(256)) * 4099  # not a multiple of any buffer size
    (tmp_path / "large").write_bytes(large)
    assert sha256_file(tmp_path / "abc") == SHA256_ABC
    assert sha256_file(tmp_path / "empty") == SHA256_EMPTY
    assert sha256_file(tmp_path / "large") == hashlib.sha256(large).hexdigest()


def test_writes_a_whole_bundle(tmp_path: Path) -> None:
    out = tmp_path / "new" / "parent" / "bundle"
    bundle = write_example(out)
    assert bundle.folder == out
    assert [p.name for p in out.parent.iterdir()] == ["bundle"]
    listed = {info.path: info for info in bundle.manifest.files}
    assert set(listed) == set(tree(out)) - {"manifest.json"}
    assert {"metadata.yaml", "step.onnx.data", "tokenizer.json", "tables/embedding.safetensors"} <= set(listed)
    assert (listed["step.bin"].size_bytes, listed["step.bin"].sha256) == (3, SHA256_ABC)
    for name, content in tree(out).items():
        if name != "manifest.json":
            assert listed[name].sha256 == hashlib.sha256(content).hexdigest()
            assert listed[name].size_bytes == len(content)
    again = open_bundle(out)
    assert again.manifest == bundle.manifest
    require_intact(again)


def test_finished_folder_has_the_users_permissions(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    bundle = write_example(tmp_path / "bundle")
    assert stat.S_IMODE(bundle.folder.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_add_file_copies(tmp_path: Path) -> None:
    source = tmp_path / "tokenizer_config.json"
    source.write_bytes(b"abc")
    with BundleWriter(tmp_path / "bundle") as writer:
        fill(writer)
        writer.add_file(source)
        writer.add_file(source, "sub/other.json")
        bundle = writer.finish(example_manifest())
    assert source.read_bytes() == b"abc"
    assert (bundle.folder / "tokenizer_config.json").read_bytes() == b"abc"
    assert (bundle.folder / "sub" / "other.json").read_bytes() == b"abc"


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt(), SystemExit(3)])
def test_exception_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def interrupt(writer: BundleWriter) -> None:
        raise error

    with pytest.raises(type(error)):
        write_example(tmp_path / "new" / "bundle", alter=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_leaving_unfinished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="without being finished"), BundleWriter(tmp_path / "bundle") as writer:
        fill(writer)
    assert list(tmp_path.iterdir()) == []


def test_removes_only_parents_that_it_made_and_that_are_empty(tmp_path: Path) -> None:
    def interrupt(writer: BundleWriter) -> None:
        (tmp_path / "a" / "mine.txt").write_text("x")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        write_example(tmp_path / "a" / "b" / "bundle", alter=interrupt)
    assert tree(tmp_path) == {"a/mine.txt": b"x"}
    assert not (tmp_path / "a" / "b").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "manifest.json", "metadata.yaml", ""])
def test_refuses_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError), BundleWriter(tmp_path / "bundle") as writer:
        writer.path(name)
    assert list(tmp_path.iterdir()) == []


def test_refuses_what_the_manifest_names_but_was_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"keep_set\.json"):
        write_example(tmp_path / "bundle", alter=lambda writer: writer.path("keep_set.json").unlink())
    assert list(tmp_path.iterdir()) == []


def test_refuses_graph_without_external_data(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"step\.onnx\.data"):
        write_example(tmp_path / "bundle", alter=lambda writer: writer.path("step.onnx.data").unlink())


def test_refuses_binary_at_an_absolute_path(tmp_path: Path) -> None:
    def use_absolute_path(writer: BundleWriter) -> None:
        save_context_onnx(writer.path("step_ctx.onnx"), str(writer.path("step.bin")))

    with pytest.raises(BundleError, match="cannot travel"):
        write_example(tmp_path / "bundle", alter=use_absolute_path)


def test_refuses_links(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    with pytest.raises(BundleError, match="link"):
        write_example(tmp_path / "bundle", alter=lambda writer: writer.path("link").symlink_to(tmp_path / "outside"))


def test_missing_source_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"gone\.json"), BundleWriter(tmp_path / "bundle") as writer:
        writer.add_file(tmp_path / "gone.json")


def test_existing_out_is_refused_before_any_work(tmp_path: Path) -> None:
    before = tree(write_example(tmp_path / "bundle").folder)
    with pytest.raises(UsageError, match="--force"), BundleWriter(tmp_path / "bundle"):
        pytest.fail("the body must not run")
    assert tree(tmp_path / "bundle") == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_empty_folder_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    for force in (False, True):
        with pytest.raises(UsageError), BundleWriter(tmp_path / "bundle", force=force):
            pytest.fail("the body must not run")


def test_out_that_appears_during_the_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists"):
        write_example(tmp_path / "bundle", alter=lambda writer: (tmp_path / "bundle").mkdir())
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert list((tmp_path / "bundle").iterdir()) == []


def test_force_replaces_a_bundle(tmp_path: Path) -> None:
    write_example(tmp_path / "bundle", seed=1)
    write_example(tmp_path / "bundle", seed=2, force=True)
    assert open_bundle(tmp_path / "bundle").manifest.seed == 2
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_force_replaces_a_bundle_of_another_schema(tmp_path: Path) -> None:
    path = write_example(tmp_path / "bundle").folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99, "news": 1}))
    write_example(tmp_path / "bundle", force=True)
    assert open_bundle(tmp_path / "bundle").manifest.schema_version == SCHEMA_VERSION


def test_failed_export_with_force_keeps_the_old_bundle(tmp_path: Path) -> None:
    before = tree(write_example(tmp_path / "bundle").folder)

    def interrupt(writer: BundleWriter) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        write_example(tmp_path / "bundle", force=True, alter=interrupt)
    assert tree(tmp_path / "bundle") == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_failed_rename_puts_the_old_bundle_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(write_example(tmp_path / "bundle").folder)
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(BundleError, match="No space left"):
        write_example(tmp_path / "bundle", seed=2, force=True)
    assert tree(tmp_path / "bundle") == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    "manifest", [None, "", "[]", "{}", '{"name": "web extension", "manifest_version": 3}', '{"schema_version": 1}']
)
def test_force_never_deletes_a_users_folder(tmp_path: Path, manifest: str | None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    before = tree(folder)
    with pytest.raises(UsageError, match="not a bundle"), BundleWriter(folder, force=True):
        pytest.fail("the body must not run")
    assert tree(folder) == before


def test_force_never_deletes_a_users_file_inside_a_bundle(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "bundle").folder
    (folder / "my notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"my notes\.txt"), BundleWriter(folder, force=True):
        pytest.fail("the body must not run")
    assert (folder / "my notes.txt").exists()


def test_force_refuses_a_file_and_a_link(tmp_path: Path) -> None:
    write_example(tmp_path / "bundle")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(UsageError, match="not a folder"), BundleWriter(tmp_path / name, force=True):
            pytest.fail("the body must not run")
    assert (tmp_path / "bundle" / "manifest.json").is_file()


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write"), BundleWriter(tmp_path / "file" / "bundle"):
        pytest.fail("the body must not run")
