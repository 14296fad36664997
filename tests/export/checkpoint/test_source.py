"""Folders, hub ids with a local hub cache, and no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from export.checkpoint.reader import CheckpointReader
from export.checkpoint.source import CheckpointSource, resolve_checkpoint
from export.errors import CheckpointError

HUB_ID, COMMIT = "example/tiny-head", "0123456789abcdef0123456789abcdef01234567"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, with the network switched off as HF_HUB_OFFLINE=1 does."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


def snapshot(cache: Path) -> Path:
    """The folder of a model that was fetched earlier, laid out as huggingface_hub does."""
    model = cache / f"models--{HUB_ID.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == CheckpointSource(tmp_path, str(tmp_path), None)


def test_a_folder_wins_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub_cache: Path) -> None:
    snapshot(hub_cache)
    (tmp_path / HUB_ID).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint(HUB_ID) == CheckpointSource(Path(HUB_ID), HUB_ID, None)


@pytest.mark.parametrize("source", ["nowhere", "/no/such/folder", "a/b/c", "../x/y", "", "name with blank/model"])
def test_what_is_neither_folder_nor_id_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if source == "":
        # The empty path is the current folder for pathlib, but nobody means it.
        with pytest.raises(CheckpointError, match="no checkpoint was named"):
            resolve_checkpoint(source)
        return
    with pytest.raises(CheckpointError, match="no such folder, and not a Hugging Face id"):
        resolve_checkpoint(source)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve_checkpoint(str(tmp_path / "model.safetensors"))


@pytest.mark.usefixtures("hub_cache")
def test_without_network_the_error_says_that_both_were_tried() -> None:
    with pytest.raises(CheckpointError, match=r"example/tiny-head: there is no such folder here, .* cannot be fetched"):
        resolve_checkpoint(HUB_ID)


@pytest.mark.usefixtures("hub_cache")
def test_an_id_that_the_hub_does_not_allow_is_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot be fetched"):
        resolve_checkpoint("example/tiny..head--")


def test_an_earlier_download_works_without_network(hub_cache: Path) -> None:
    folder = snapshot(hub_cache)
    save_file({"a": torch.ones(2)}, folder / "model.safetensors")
    source = resolve_checkpoint(HUB_ID)
    assert source == CheckpointSource(folder, HUB_ID, COMMIT)
    assert CheckpointReader(source.folder).names == ("a",)


def test_only_the_shards_with_wanted_tensors_are_asked_for(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = snapshot(hub_cache)
    weight_map = {"model.embed_tokens.weight": FIRST, "model.norm.weight": SECOND}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    asked: list[tuple[list[str], str | None]] = []

    def record(hub_id: str, *, allow_patterns: list[str], revision: str | None) -> str:
        assert hub_id == HUB_ID
        asked.append((allow_patterns, revision))
        return str(folder)

    monkeypatch.setattr("export.checkpoint.source.snapshot_download", record)
    resolve_checkpoint(HUB_ID, ["config.json", "tokenizer.json"], tensors="embed_tokens")
    resolve_checkpoint(HUB_ID, ["config.json"])
    assert asked == [
        (["config.json", "tokenizer.json", "model.safetensors.index.json"], None),
        ([FIRST], COMMIT),
        (["config.json", "model.safetensors.index.json"], None),
        ([FIRST, SECOND], COMMIT),
    ]
    with pytest.raises(CheckpointError, match="names no tensor that is needed"):
        resolve_checkpoint(HUB_ID, ["config.json"], tensors="no_such_tensor")


def test_a_damaged_index_from_the_hub_is_an_error_of_ours(hub_cache: Path) -> None:
    (snapshot(hub_cache) / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"index\.json: cannot be read"):
        resolve_checkpoint(HUB_ID)
