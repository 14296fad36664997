"""The whole export on a tiny random family: what the bundle holds, and that an error leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from transformers import Gemma4ForCausalLM

from calibration.errors import CalibrationError, KeepSetError
from calibration.keepset import KeepSet
from calibration.ranges import Ranges
from export import sources as sources_module
from export.bundle import open_bundle, verify_files
from export.errors import CheckpointError, CompileError, ExportError
from export.mtp import export as export_module
from export.mtp.export import export_mtp
from export.mtp.samples import load_samples
from quant.errors import HycoError, UsageError
from quant.table import EmbeddingTable

from ..tiny import BACKBONE, VOCAB_SIZE, tiny_head
from .conftest import STOP_IDS, WINDOW, Exported, Family, tiny_tokenizer, tiny_verifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

compiled_only = pytest.mark.htp


def test_bundle_is_intact_and_complete(exported: Exported) -> None:
    assert verify_files(exported.bundle) == []
    names = {info.path for info in exported.bundle.manifest.files}
    assert {
        "keep_set.json", "ranges.json", "metadata.yaml", "graphs/mtp_step.qdq.onnx", "tables/embedding.safetensors",
        "check/samples.safetensors", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
    } <= names  # fmt: skip
    for path in exported.bundle.folder.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            assert str(exported.bundle.folder.parent) not in path.read_text()  # no machine's paths


def test_result_is_json_and_agrees_with_the_files(exported: Exported) -> None:
    result = exported.result
    values = json.loads(json.dumps(dataclasses.asdict(result)))
    assert values["bundle"] == str(exported.bundle.folder)
    assert (result.bits, result.window, result.target, result.keep_set_size) == (4, WINDOW, "sm8850", 100)
    assert result.kv_bits == 16
    assert result.parity_max_abs_error <= 1e-4
    assert result.lut_bytes == 100 * BACKBONE
    assert result.qdq_bytes == exported.bundle.graph_file("mtp_step", "qdq").stat().st_size
    assert result.measured_on_device == "not measured"
    assert result.peak_rss_bytes > 1e8
    assert result.calibration.startswith("prompts:")


@compiled_only
def test_compiled_for_the_npu(exported: Exported) -> None:
    result, manifest = exported.result, exported.bundle.manifest
    assert result.warnings == []
    assert result.nodes_off_npu == 0
    qdq = onnx.load(str(exported.bundle.graph_file("mtp_step", "qdq")))
    assert result.nodes_on_npu == len(qdq.graph.node)
    assert result.qnn_version is not None
    assert result.qnn_version.startswith("v2.")
    assert result.graph_bytes == exported.bundle.graph_file("mtp_step", "binary").stat().st_size
    (target,) = manifest.targets
    assert (target.soc_model, target.htp_arch, target.compiled, target.simulated) == (87, "v81", True, True)
    assert target.qnn_version == result.qnn_version
    assert manifest.parity["htp_simulator.cosine"] >= 0.9999


def test_manifest_describes_the_stored_graph(exported: Exported) -> None:
    manifest = exported.bundle.manifest
    assert (manifest.kind, manifest.bits, manifest.window, manifest.position_rule) == ("mtp", 4, WINDOW, "p")
    graph = exported.bundle.graph("mtp_step")
    proto = onnx.load(str(exported.bundle.graph_file("mtp_step", "qdq"))).graph
    for stated, stored in ((graph.inputs, proto.input), (graph.outputs, proto.output)):
        assert [t.name for t in stated] == [v.name for v in stored]
        for tensor, value in zip(stated, stored, strict=True):
            assert list(tensor.shape) == [d.dim_value for d in value.type.tensor_type.shape.dim]
            elem_type = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            assert tensor.dtype == elem_type
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in proto.initializer if t.name.endswith((".scale", ".zero"))}
    for tensor in graph.inputs:
        if f"{tensor.name}.scale" in scales:
            assert np.float32(tensor.scale) == scales[f"{tensor.name}.scale"]
            assert tensor.zero_point == scales[f"{tensor.name}.zero"]


def test_keep_set_maps_columns_to_tokens(exported: Exported, family: Family) -> None:
    """The graph's logits are columns of transformers' logits, at the ids that keep_set.json lists."""
    keep = KeepSet.load(exported.bundle.path("keep_set.json"), VOCAB_SIZE, STOP_IDS)
    assert exported.bundle.manifest.keep_set.sha256 == keep.sha256
    assert keep.size == 100
    assert set(family.tokenizer.all_special_ids) <= set(keep.token_ids.tolist())
    samples = load_samples(exported.bundle.path("check/samples.safetensors"))
    state = samples.states[0]
    shared = {}
    for kind, rows in (("sliding", 8), ("full", WINDOW)):
        pair = state.keys[kind][:, -rows:], state.values[kind][:, -rows:]
        shared[f"{kind}_attention"] = tuple(torch.from_numpy(array)[None] for array in pair)
    embeds = torch.from_numpy(np.concatenate([samples.embeddings[0], samples.hiddens[0]]))[None, None]
    with torch.no_grad():
        out = family.head.model(
            inputs_embeds=embeds, position_ids=torch.tensor([[state.position]]), shared_kv_states=shared
        )
    logits = out.logits.numpy().ravel()
    for reference in ("transformers", "fp32"):
        np.testing.assert_allclose(samples.references[reference].logits[0], logits[keep.token_ids], atol=1e-4)


def test_table_rows_are_within_half_a_step_of_transformers(exported: Exported, family: Family) -> None:
    table = EmbeddingTable.load(exported.bundle.path("tables/embedding.safetensors"))
    loaded = Gemma4ForCausalLM.from_pretrained(family.verifier)
    wanted = loaded.get_input_embeddings()(table.token_ids).detach().float()
    rows = table.lookup_many(table.token_ids)
    assert ((rows - wanted).abs() <= table.scale[:, None] * 0.5001).all()
    assert (
        table.token_ids.tolist()
        == KeepSet.load(exported.bundle.path("keep_set.json"), VOCAB_SIZE, []).token_ids.tolist()
    )


def test_bundled_tokenizer_is_the_verifiers(exported: Exported, family: Family) -> None:
    from transformers import AutoTokenizer

    bundled = AutoTokenizer.from_pretrained(exported.bundle.path("tokenizer"))
    text = "How many apples are in 3 baskets?"
    assert bundled(text)["input_ids"] == family.tokenizer(text)["input_ids"]
    assert bundled.chat_template == family.tokenizer.chat_template


def test_ranges_file_gives_the_same_graph_with_or_without_a_table(
    exported: Exported, export: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "why_unavailable", lambda: "not needed here")
    ranges = exported.bundle.path("ranges.json")
    again = export(tmp_path / "again", calibration=str(ranges), table=False)
    first, second = (b.graph_file("mtp_step", "qdq").read_bytes() for b in (exported.bundle, again.bundle))
    assert first == second
    assert again.bundle.path("ranges.json").read_bytes() == ranges.read_bytes()
    assert again.bundle.path("keep_set.json").read_bytes() == exported.bundle.path("keep_set.json").read_bytes()
    assert again.result.calibration == exported.result.calibration
    assert again.result.warnings == [
        "no embedding table was written: a phone cannot draft with this bundle alone",
        "not compiled: not needed here",
    ]
    assert again.bundle.manifest.table is None
    assert not again.bundle.manifest.targets[0].compiled


@compiled_only
def test_eight_bit_keys_and_values_from_the_same_calibration(
    exported: Exported, export: Callable[..., Exported], tmp_path: Path
) -> None:
    made = export(tmp_path / "kv8", kv_bits=8, calibration=str(exported.bundle.path("ranges.json")))
    assert made.result.kv_bits == 8
    inputs = {t.name: t for t in made.bundle.graph("mtp_step").inputs}
    before = {t.name: t for t in exported.bundle.graph("mtp_step").inputs}
    for name, tensor in inputs.items():
        if name.startswith(("keys", "values")):
            assert (tensor.dtype, tensor.zero_point) == ("int8", 0)
            assert tensor.scale == pytest.approx(before[name].scale * 32767 / 127)  # the same range
        else:
            assert tensor == before[name]
    assert made.bundle.manifest.parity["htp_simulator.cosine"] >= 0.9999


def test_without_a_table_synthetic_and_uncompiled(
    export: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "why_unavailable", lambda: "this host has no compiler")
    changes: dict[str, Any] = {
        "verifier": None, "table": False, "calibration": "synthetic", "bits": 8, "position_rule": "p-1", "window": 8,
    }  # fmt: skip
    made = export(tmp_path / "out", **changes)
    result, manifest = made.result, made.bundle.manifest
    assert verify_files(made.bundle) == []
    assert (result.graph_bytes, result.compile_s, result.nodes_on_npu, result.qnn_version) == (None, None, None, None)
    assert result.lut_bytes == 0
    assert result.calibration == "synthetic:seed0"
    assert result.parity_max_abs_error <= 1e-4
    text = " | ".join(result.warnings)
    for part in (
        "activation ranges are synthetic (synthetic states were asked for)",
        "synthetic states: their figures",
        "no embedding table",
        "not compiled: this host has no compiler",
    ):
        assert part in text
    assert manifest.table is None
    assert manifest.verifier is None
    assert (manifest.bits, manifest.position_rule, manifest.window) == (8, "p-1", 8)
    assert not any(info.path.startswith("tables/") for info in manifest.files)
    assert result.keep_set_source == "100 lowest ids: no tokenizer to count prompts with"


@compiled_only
def test_force_replaces_a_bundle_and_only_then(family: Family, exported: Exported, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    shutil.copytree(exported.bundle.folder, out)
    with pytest.raises(UsageError, match="exists; choose another --out, or replace it with --force"):
        export_mtp(family.options(out), lambda _: None)
    assert open_bundle(out).manifest == exported.bundle.manifest
    changes = {"target": "sm8650", "window": 24, "calibration": str(exported.bundle.path("ranges.json"))}
    export_mtp(family.options(out, force=True, **changes), lambda _: None)
    manifest = open_bundle(out).manifest
    assert manifest.window == 24
    # Ranges hold for another window: names and scales do not depend on it.
    before, after = (m.graphs[0].inputs for m in (exported.bundle.manifest, manifest))
    assert [(t.name, t.scale, t.zero_point) for t in before] == [(t.name, t.scale, t.zero_point) for t in after]
    assert (manifest.targets[0].soc_model, manifest.targets[0].htp_arch) == (57, "v75")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_default_keep_set_is_three_quarters_of_a_small_vocabulary() -> None:
    from export.sources import default_keep_size

    assert default_keep_size(VOCAB_SIZE) == 225
    assert default_keep_size(262144) == 86016


@pytest.fixture
def traced_once(float_step: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports that are going to fail share one traced graph, of 100 tokens and window 16."""
    model = ir.from_proto(onnx.load_from_string(float_step))
    monkeypatch.setattr(export_module, "build_float_graph", lambda *_: model)


@pytest.fixture(scope="session")
def float_step(family: Family) -> bytes:
    model = export_module.build_float_graph(family.head.head, np.arange(100), WINDOW)
    return ir.to_proto(model).SerializeToString()


def late_failure(*_: object, **__: object) -> None:
    raise CompileError("the compiler said no")


@pytest.fixture
def broken(family: Family, tmp_path: Path) -> dict[str, tuple[dict[str, Any], type[HycoError], str]]:
    """Name -> (option changes, error, message) of exports that must fail, with the files that they need."""
    files = tmp_path / "files"
    files.mkdir()
    KeepSet(np.array([0, 1, 7]), VOCAB_SIZE).save(files / "no_stop.json")
    KeepSet(np.array([0, 1, 5]), VOCAB_SIZE + 1).save(files / "other_vocabulary.json")
    Ranges({"layers.0.mlp.gelu": (0.0, 1.0)}, "prompts:x").save(files / "few_ranges.json")
    (files / "broken.json").write_text("{")
    other = tiny_verifier()
    other.config.hidden_size = 64
    other.config.save_pretrained(files / "other_verifier")
    return {
        "head absent": ({"checkpoint": str(files / "nowhere")}, CheckpointError, "no such folder"),
        "head of another kind": ({"checkpoint": str(family.verifier)}, CheckpointError, "model_type is 'gemma4_text'"),
        "verifier absent": ({"verifier": str(files / "nowhere")}, CheckpointError, "no such folder"),
        "verifier is a head": ({"verifier": str(family.head.folder)}, CheckpointError, "model_type is"),
        "keep set without stop": ({"keep_set": str(files / "no_stop.json")}, KeepSetError, r"\[5\] are not in"),
        "keep set of another vocabulary": (
            {"keep_set": str(files / "other_vocabulary.json")}, KeepSetError, "is for 301 tokens, the target has 300",
        ),
        "keep set absent": ({"keep_set": str(files / "none.json")}, KeepSetError, r"none\.json"),
        "keep set too small": ({"keep_set": "3"}, UsageError, r"--keep-set 3 must lie between \d+ required and 300"),
        "keep set too large": ({"keep_set": "301"}, UsageError, "--keep-set 301 must lie between"),
        "calibration absent": ({"calibration": str(files / "no.jsonl")}, UsageError, "no such file"),
        "calibration not JSON": ({"calibration": str(files / "broken.json")}, CalibrationError, r"broken\.json"),
        "ranges of another graph": (
            {"calibration": str(files / "few_ranges.json")}, ExportError, "calibration has no range for",
        ),
        "prompts without verifier": (
            {"verifier": None, "table": False, "calibration": str(family.calibration)}, CalibrationError,
            "prompts cannot be run, because no verifier is given",
        ),
    }  # fmt: skip


FAILURES = [
    "head absent", "head of another kind", "verifier absent", "verifier is a head", "keep set without stop",
    "keep set of another vocabulary", "keep set absent", "keep set too small", "keep set too large",
    "calibration absent", "calibration not JSON", "ranges of another graph", "prompts without verifier",
]  # fmt: skip


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_leaves_nothing_behind(
    family: Family, broken: dict[str, tuple[dict[str, Any], type[HycoError], str]], tmp_path: Path, name: str,
) -> None:  # fmt: skip
    assert set(broken) == set(FAILURES)
    changes, kind, message = broken[name]
    with pytest.raises(kind, match=message):
        export_mtp(family.options(tmp_path / "deep" / "out", **{"calibration": "synthetic", **changes}), lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_a_verifier_of_another_size(family: Family, tmp_path: Path) -> None:
    other = tmp_path / "other"
    head = tiny_head(tmp_path / "head", final_logit_softcapping=None)
    config = json.loads((head.folder / "config.json").read_text())
    shutil.copytree(family.verifier, other)
    config = json.loads((other / "config.json").read_text())
    from safetensors.torch import load_file, save_file

    tensors = load_file(other / "model.safetensors")
    tensors["model.embed_tokens.weight"] = torch.zeros(VOCAB_SIZE, BACKBONE + 2)
    save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps({**config, "hidden_size": BACKBONE + 2}))
    with pytest.raises(CheckpointError, match="hidden_size is 50, but the head was trained for a verifier with 48"):
        export_mtp(family.options(tmp_path / "out", verifier=str(other)), lambda _: None)
    assert not (tmp_path / "out").exists()


def test_a_verifier_of_another_vocabulary(family: Family, tmp_path: Path) -> None:
    head = tiny_head(tmp_path / "head", vocab_size=VOCAB_SIZE + 20)
    options = family.options(tmp_path / "out", checkpoint=str(head.folder))
    with pytest.raises(ExportError, match="the verifier has 300 tokens, the head 320: not a pair"):
        export_mtp(options, lambda _: None)


def test_a_late_failure_leaves_nothing_behind(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler refuses, after everything else was written."""
    monkeypatch.setattr(export_module, "why_unavailable", lambda: None)
    monkeypatch.setattr(export_module, "compile_graph", late_failure)
    seen: list[str] = []
    with pytest.raises(CompileError, match="the compiler said no"):
        export_mtp(family.options(tmp_path / "out", calibration="synthetic"), seen.append)
    assert seen[-1] == "compiling for sm8850"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("traced_once")
def test_an_interruption_leaves_nothing_behind(family: Family, tmp_path: Path) -> None:
    def progress(line: str) -> None:
        if line.startswith("quantising"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_mtp(family.options(tmp_path / "out", calibration="synthetic"), progress)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_without_a_chat_template(family: Family, tmp_path: Path) -> None:
    verifier = tmp_path / "verifier"
    shutil.copytree(family.verifier, verifier)
    for path in verifier.glob("*token*"):
        path.unlink()
    (verifier / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(verifier)
    with pytest.raises(CalibrationError, match="has no chat template"):
        export_mtp(family.options(tmp_path / "out", verifier=str(verifier)), lambda _: None)


def test_a_verifier_that_does_not_fit_into_memory_is_not_run(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources_module, "_MEMORY_SHARE", 1e-9)
    options = family.options(tmp_path / "out", calibration=str(family.options(tmp_path).default_prompts))
    with pytest.raises(CalibrationError, match="prompts cannot be run, because in float32 the verifier takes"):
        export_mtp(options, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_not_transformers_head_is_refused(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = export_module.load_mtp_head

    def forgetful(*arguments: Any) -> Any:
        head = load(*arguments)
        head.layers[0].layer_scalar = torch.ones(1)  # the classic: one scalar lost in surgery
        return head

    monkeypatch.setattr(export_module, "load_mtp_head", forgetful)
    with pytest.raises(ExportError, match="differ from transformers' by"):
        export_mtp(family.options(tmp_path / "out", calibration="synthetic"), lambda _: None)
    assert list(tmp_path.iterdir()) == []
