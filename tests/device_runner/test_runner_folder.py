"""The runner's folder: what is written is read again, each damage is named, and it appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from device_runner.native_errors import RunnerFolderError
from device_runner.runner_folder import RunnerFacts, RunnerFolder, write_runner_folder
from device_runner.staged_folder import staged_folder
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTENT = {
    "hyco_runner": b"runner",
    "libonnxruntime.so": b"runtime",
    "libonnxruntime_providers_qnn.so": b"provider",
    "libQnnHtp.so": b"backend",
    "libQnnSystem.so": b"system",
}
FACTS = RunnerFacts(
    abi="arm64-v8a",
    ort_version="1.27.0",
    qnn_build="v2.51.0.260929181845",
    providers=("cpu", "htp"),
    htp_archs=("v79", "v81"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A written folder."""
    made = tmp_path / "made"
    made.mkdir()
    for name, content in CONTENT.items():
        (made / name).write_bytes(content)
    write_runner_folder(made, {name: f"from {name}" for name in CONTENT}, FACTS)
    return made


def test_what_is_written_is_what_the_schema_says(folder: Path) -> None:
    fields = json.loads((folder / "runner.json").read_text())
    files = fields.pop("files")
    assert fields == {
        "schema_version": 1,
        "abi": "arm64-v8a",
        "runner": "hyco_runner",
        "ort": "libonnxruntime.so",
        "ort_version": "1.27.0",
        "qnn_provider": "libonnxruntime_providers_qnn.so",
        "qnn_backend": "libQnnHtp.so",
        "qnn_build": "v2.51.0.260929181845",
        "providers": ["cpu", "htp"],
        "htp_archs": ["v79", "v81"],
    }
    assert files == [
        {
            "path": name,
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "source": f"from {name}",
        }
        for name, content in CONTENT.items()
    ]
    assert (folder / "hyco_runner").stat().st_mode & 0o777 == 0o755


def test_a_folder_is_loaded(folder: Path) -> None:
    loaded = RunnerFolder.load(folder)
    loaded.verify()
    assert loaded.executable == folder / "hyco_runner"
    assert loaded.ort == folder / "libonnxruntime.so"
    assert loaded.qnn_provider == folder / "libonnxruntime_providers_qnn.so"
    assert loaded.qnn_backend == folder / "libQnnHtp.so"
    assert loaded.names == (*CONTENT, "runner.json")
    assert loaded.description.providers == ("cpu", "htp")


def test_a_folder_for_the_cpu_alone(tmp_path: Path) -> None:
    for name in ("hyco_runner", "libonnxruntime.so"):
        (tmp_path / name).write_bytes(b"x")
    facts = FACTS.model_copy(update={"providers": ("cpu",), "htp_archs": (), "qnn_build": None})
    write_runner_folder(tmp_path, {"hyco_runner": "built", "libonnxruntime.so": "wheel"}, facts)
    loaded = RunnerFolder.load(tmp_path)
    assert (loaded.qnn_provider, loaded.qnn_backend) == (None, None)


def test_only_what_lies_there_is_described(tmp_path: Path) -> None:
    (tmp_path / "hyco_runner").write_bytes(b"x")
    for sources in ({"hyco_runner": "built"}, {"hyco_runner": "built", "libonnxruntime.so": "wheel"}):
        with pytest.raises(RunnerFolderError, match=r"lacks libonnxruntime\.so"):
            write_runner_folder(tmp_path, sources, FACTS)


def _changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda old: {**old, **fields}


def _first_file(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda old: {**old, "files": [{**old["files"][0], **fields}, *old["files"][1:]]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_changed(schema_version=2), "schema_version 2"),
        (_changed(abi="mips"), "abi"),
        (_changed(providers=["gpu"]), "providers"),
        (_changed(providers=[]), "providers"),
        (_changed(ort="libort.so"), "'libort.so' is not among its files"),
        (_changed(qnn_provider=None), "need qnn_provider"),
        (_changed(colour="red"), "colour"),
        (_first_file(path="../hyco_runner"), "plain name"),
        (_first_file(sha256="x"), "sha256"),
        (lambda old: {**old, "files": old["files"] * 2}, "twice"),
        (lambda old: {key: value for key, value in old.items() if key != "runner"}, "runner"),
    ],
)
def test_a_wrong_description_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    path = folder / "runner.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(RunnerFolderError, match=words):
        RunnerFolder.load(folder)


def test_damage_is_named(folder: Path) -> None:
    library = folder / "libQnnHtp.so"
    library.write_bytes(b"bbckend")
    loaded = RunnerFolder.load(folder)
    with pytest.raises(RunnerFolderError, match=r"libQnnHtp\.so has the SHA-256"):
        loaded.verify()
    library.write_bytes(b"back")
    with pytest.raises(RunnerFolderError, match=r"libQnnHtp\.so has 4 bytes, runner\.json says 7"):
        RunnerFolder.load(folder)
    library.unlink()
    with pytest.raises(RunnerFolderError, match=r"libQnnHtp\.so is missing"):
        RunnerFolder.load(folder)
    (folder / "runner.json").write_text("{")
    with pytest.raises(RunnerFolderError, match="not a JSON file"):
        RunnerFolder.load(folder)
    (folder / "runner.json").unlink()
    with pytest.raises(RunnerFolderError, match=r"no runner\.json"):
        RunnerFolder.load(folder)
    with pytest.raises(RunnerFolderError, match="no such folder"):
        RunnerFolder.load(folder / "absent")


def interrupted(out: Path, force: bool) -> None:
    with staged_folder(out, force=force) as staged:
        (staged / "file").write_text("half")
        raise KeyboardInterrupt


class TestStaging:
    def test_a_folder_appears_at_the_end(self, tmp_path: Path) -> None:
        out = tmp_path / "new" / "out"
        with staged_folder(out) as folder:
            (folder / "file").write_text("content")
            assert not out.exists()
        assert (out / "file").read_text() == "content"
        assert list(out.parent.iterdir()) == [out]

    def test_nothing_is_left_of_a_failure(self, tmp_path: Path, folder: Path) -> None:
        for out, force in ((tmp_path / "out", False), (folder, True)):
            with pytest.raises(KeyboardInterrupt):
                interrupted(out, force)
        assert [path.name for path in tmp_path.iterdir()] == ["made"]
        RunnerFolder.load(folder).verify()

    def test_force_replaces_a_runners_folder(self, tmp_path: Path, folder: Path) -> None:
        with staged_folder(folder, force=True) as staged:
            (staged / "file").write_text("new")
        assert [path.name for path in folder.iterdir()] == ["file"]
        assert [path.name for path in tmp_path.iterdir()] == ["made"]

    def test_what_is_there_is_not_replaced(self, tmp_path: Path, folder: Path) -> None:
        mine = tmp_path / "mine"
        mine.mkdir()
        (mine / "letter").write_text("keep")
        (tmp_path / "file").write_text("keep")
        (tmp_path / "link").symlink_to(folder)
        refused = [(folder, False, "--force"), (mine, True, "not a runner's folder")]
        refused += [(tmp_path / "file", True, "not a runner's folder"), (tmp_path / "link", True, "not a runner's")]
        for out, force, words in refused:
            with pytest.raises(UsageError, match=words), staged_folder(out, force=force):
                pytest.fail("nothing may be begun")
        (folder / "letter").write_text("keep")
        with pytest.raises(UsageError, match="'letter'"), staged_folder(folder, force=True):
            pytest.fail("nothing may be begun")

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(UsageError, match="cannot write"), staged_folder(tmp_path / "file" / "out"):
            pytest.fail("nothing may be begun")
