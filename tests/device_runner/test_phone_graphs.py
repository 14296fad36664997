"""Which graphs a phone runs and what their binaries call them, for real where the HTP compiler is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from device_runner.phone_graphs import phone_graphs
from export.bundle import BundleWriter
from export.engines.htp import TARGETS, compile_shared
from export.errors import BundleError
from tests.device_runner.graph_bundles import (
    DRAFT_NAME,
    STEP_NAME,
    TARGET,
    graph_info,
    save_context,
    write_head,
    write_slm,
)
from tests.export.bundle.builders import example_manifest, example_slm, fill
from tests.export.estimate.builders import save_qdq

if TYPE_CHECKING:
    from pathlib import Path

    from export.bundle import Bundle


def test_the_head_comes_first_with_four_passes(tmp_path: Path) -> None:
    head, slm = write_head(tmp_path / "head"), write_slm(tmp_path / "slm")
    step, draft = phone_graphs([slm, head])
    assert (step.info.name, step.passes, step.qnn_name, step.shared) == ("mtp_step", 4, STEP_NAME, False)
    assert (draft.info.name, draft.passes, draft.qnn_name, draft.shared) == ("draft", 1, DRAFT_NAME, True)
    assert (step.binary, draft.binary) == (head.path("step.bin"), slm.path("shared.bin"))


def test_of_a_heads_graphs_the_one_of_fewest_rows_drafts(tmp_path: Path) -> None:
    wide, step = graph_info("wide", 8, "step.bin"), graph_info("mtp_step", 1, "step.bin")
    with BundleWriter(tmp_path / "head") as writer:
        fill(writer)
        writer.path("step_ctx.onnx").unlink()
        for info in (wide, step):
            save_context(writer.path(f"{info.name}_ctx.onnx"), "step.bin", info.name)
        head = writer.finish(example_manifest(graphs=(wide, step), targets=(TARGET,)))
    (found,) = phone_graphs([head])
    assert (found.info.name, found.shared) == ("mtp_step", True)


def test_a_graph_that_was_not_compiled(tmp_path: Path) -> None:
    step = graph_info("mtp_step", 1, "step.bin")
    with BundleWriter(tmp_path / "head") as writer:
        fill(writer)
        graph = step.model_copy(update={"files": {"qdq": "step.onnx"}})
        head = writer.finish(example_manifest(graphs=(graph,)))
    with pytest.raises(BundleError, match=r"'mtp_step' has no 'context' file, so no phone can run it: export it where"):
        phone_graphs([head])


def test_a_context_that_names_another_binary(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "head") as writer:
        fill(writer)
        writer.path("step_ctx.onnx").unlink()
        writer.path("other.bin").write_bytes(b"x")
        save_context(writer.path("mtp_step_ctx.onnx"), "other.bin", STEP_NAME)
        head = writer.finish(example_manifest(graphs=(graph_info("mtp_step", 1, "step.bin"),), targets=(TARGET,)))
    with pytest.raises(BundleError, match=r"names the binary 'other\.bin', the manifest 'step\.bin'"):
        phone_graphs([head])


@pytest.mark.htp
def test_the_compilers_own_names_stand_in_its_binary(tmp_path: Path) -> None:
    draft, prefill = graph_info("draft", 1, "draft_ctx_qnn.bin"), graph_info("prefill", 32, "draft_ctx_qnn.bin")
    with BundleWriter(tmp_path / "slm") as writer:
        fill(writer)
        for name in ("step_ctx.onnx", "step.bin"):
            writer.path(name).unlink()
        writer.path("tables/per_layer.safetensors").write_bytes(bytes(12))
        for info in (draft, prefill):
            save_qdq(tmp_path / f"{info.name}.onnx", info.rows)
        graphs = {tmp_path / f"{info.name}.onnx": writer.path(f"{info.name}_ctx.onnx") for info in (draft, prefill)}
        version = compile_shared(graphs, TARGETS["sm8850"])[0].qnn_version
        target = TARGET.model_copy(update={"qnn_version": version})
        bundle = writer.finish(example_slm(graphs=(draft, prefill), targets=(target,)))
    (found,) = phone_graphs([bundle])
    assert found.shared
    assert found.qnn_name.encode() in found.binary.read_bytes()
    other = phone_graphs([_with_draft(bundle, "prefill")])[0].qnn_name
    assert other != found.qnn_name
    assert other.encode() in found.binary.read_bytes()


def _with_draft(bundle: Bundle, name: str) -> Bundle:
    assert bundle.manifest.slm is not None
    slm = bundle.manifest.slm.model_copy(update={"draft_graph": name})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"slm": slm}))
