"""The whole export on the family's SLM in both forms, and on a tiny one: what a bundle holds, what fails cleanly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Gemma4ForCausalLM

from calibration.errors import CalibrationError, KeepSetError
from calibration.keepset import KeepSet
from calibration.ranges import Ranges
from export.bundle import Bundle, open_bundle, verify_files
from export.errors import CheckpointError, CompileError, ExportError
from export.graphs.slm import load_slm
from export.graphs.tree_feeds import RowTree
from export.slm import export as export_module
from export.slm import float_graph, sources
from export.slm.check import check_slm_bundle, open_graph, slm_config
from export.slm.export import export_slm
from export.slm.options import SlmExportOptions, SlmExportResult
from export.slm.runner import SlmModel, SlmTables
from export.slm.samples import load_samples
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, SLM_DIR, VERIFIER_DIR
from quant.errors import HycoError, UsageError
from quant.packed_table import PackedTable

from .builders import KEEP, VOCAB_SIZE, check_codes, transformers_linears, write_tiny
from .conftest import PREFILL_ROWS, ROWS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAMILY_VOCAB, FAMILY_WINDOW, DRAFT_ROWS, FILL_ROWS = 2048, 128, 16, 32
STOP_IDS = [1, 5]


@dataclass(frozen=True)
class Exported:
    """One finished export."""

    result: SlmExportResult
    bundle: Bundle


def run(options: SlmExportOptions) -> Exported:
    return Exported(export_slm(options, lambda _: None), open_bundle(options.out))


@pytest.fixture(scope="module", autouse=True)
def _short_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "ANSWER_TOKENS", 12)
        yield


@pytest.fixture(scope="module")
def family_options(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SlmExportOptions]:
    """Three prompts to calibrate on and three to check."""
    folder = tmp_path_factory.mktemp("prompts")
    for name, prompts in (("calibration", CALIBRATION_PROMPTS), ("held_out", HELD_OUT_PROMPTS)):
        lines = prompts.read_text().splitlines(keepends=True)
        (folder / f"{name}.jsonl").write_text("".join(lines[:3]))

    def options(out: Path, **changes: Any) -> SlmExportOptions:
        defaults = {
            "checkpoint": str(SLM_DIR), "verifier": str(VERIFIER_DIR), "out": out, "window": FAMILY_WINDOW,
            "default_prompts": folder / "calibration.jsonl", "held_out_prompts": folder / "held_out.jsonl",
            "rows": DRAFT_ROWS, "prefill_rows": FILL_ROWS,
        }  # fmt: skip
        return SlmExportOptions(**{**defaults, **changes})

    return options


@pytest.fixture(scope="module")
def exported(family_options: Callable[..., SlmExportOptions], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The default form, compiled where the compiler exists."""
    return run(family_options(tmp_path_factory.mktemp("bundles") / "bundle"))


@pytest.fixture(scope="module")
def nbits(
    exported: Exported, family_options: Callable[..., SlmExportOptions], tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    """2-bit codes as MatMulNBits, with the first bundle's keep set, without a verifier and without tables."""
    keep_set, out = str(exported.bundle.path("keep_set.json")), tmp_path_factory.mktemp("bundles") / "nbits"
    return run(family_options(out, two_bit="nbits", verifier=None, table=False, keep_set=keep_set))


def graph_names(exported: Exported) -> tuple[str, str]:
    slm = exported.bundle.manifest.slm
    assert slm is not None
    return slm.draft_graph, slm.prefill_graph


def test_bundle_is_intact_and_complete(exported: Exported) -> None:
    assert verify_files(exported.bundle) == []
    names = {info.path for info in exported.bundle.manifest.files}
    assert {
        "keep_set.json", "ranges.json", "metadata.yaml", "graphs/slm_draft.qdq.onnx", "graphs/slm_prefill.qdq.onnx",
        "graphs/slm.weights", "tables/embedding.safetensors", "tables/per_layer.safetensors",
        "check/samples.safetensors", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
    } <= names  # fmt: skip
    for path in exported.bundle.folder.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            assert str(exported.bundle.folder.parent) not in path.read_text()  # no machine's paths


def test_manifest(exported: Exported) -> None:
    manifest = exported.bundle.manifest
    assert (manifest.schema_version, manifest.kind, manifest.bits, manifest.window) == (2, "slm", None, FAMILY_WINDOW)
    assert [(g.name, g.rows) for g in manifest.graphs] == [("slm_draft", DRAFT_ROWS), ("slm_prefill", FILL_ROWS)]
    assert (manifest.keep_set.size, manifest.keep_set.vocab_size) == (1536, FAMILY_VOCAB)
    assert manifest.slm is not None
    assert (manifest.slm.two_bit, manifest.slm.head_bits, manifest.slm.activation_clip) == ("native", 2, True)
    assert manifest.table is not None
    assert manifest.per_layer_table is not None
    assert (manifest.table.rows, manifest.table.width, manifest.table.bits) == (FAMILY_VOCAB, 128, 2)
    assert (manifest.per_layer_table.rows, manifest.per_layer_table.width) == (FAMILY_VOCAB, 6 * 32)
    assert manifest.per_layer_table.bits == 4
    assert slm_config(exported.bundle).cache_owners == (0, 1, 2)
    for name in graph_names(exported):
        proto = onnx.load(str(exported.bundle.graph_file(name, "qdq"))).graph
        stated = exported.bundle.graph(name)
        for tensors, values in ((stated.inputs, proto.input), (stated.outputs, proto.output)):
            assert [t.name for t in tensors] == [v.name for v in values]
            for tensor, value in zip(tensors, values, strict=True):
                assert list(tensor.shape) == [d.dim_value for d in value.type.tensor_type.shape.dim]
                assert tensor.dtype == onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def test_result_is_json_and_agrees_with_the_files(exported: Exported) -> None:
    result, folder = exported.result, exported.bundle.folder
    assert json.loads(json.dumps(dataclasses.asdict(result)))["bundle"] == str(folder)
    assert (result.rows, result.prefill_rows, result.window) == (DRAFT_ROWS, FILL_ROWS, FAMILY_WINDOW)
    assert (result.keep_set_size, result.keep_set_source) == (1536, "1536 most frequent")
    assert result.calibration.startswith("prompts:")
    assert result.parity_max_abs_error <= 1e-4
    assert result.lut_bytes == FAMILY_VOCAB * (128 // 4 + 4)
    assert result.per_layer_lut_bytes >= FAMILY_VOCAB * (192 // 2 + 4)
    graphs = [folder / "graphs" / name for name in ("slm_draft.qdq.onnx", "slm_prefill.qdq.onnx", "slm.weights")]
    assert result.qdq_bytes == sum(path.stat().st_size for path in graphs)
    assert result.measured_on_device == "not measured"


@pytest.mark.parametrize("form", ["exported", "nbits"])
def test_weight_bytes(form: str, request: pytest.FixtureRequest) -> None:
    """Codes and four bytes for each scale, counted from the checkpoint; 2-bit rows of 128 or 640 have 1 or 5 scales."""
    result = request.getfixturevalue(form).result
    wanted = dict.fromkeys(("attention", "mlp", "per_layer", "head"), 0)
    for module, (codes, _) in transformers_linears(SLM_DIR).items():
        kind = next((k for k, part in (("attention", "self_attn"), ("mlp", "mlp")) if part in module), "per_layer")
        rows, columns = codes.shape
        if module == "lm_head":
            kind, rows = "head", 1536
        low = codes.min()
        bits = 2 if low >= -2 else 4 if low >= -8 else 8
        wanted[kind] += rows * columns * bits // 8 + 4 * rows * (columns // 128 if bits == 2 and form == "nbits" else 1)
    wanted["projection"] = 6 * 32 * (128 + 4)
    assert result.weight_bytes_by_kind == wanted
    assert result.weight_bytes == sum(wanted.values())


@pytest.mark.parametrize("form", ["exported", "nbits"])
def test_every_tensor_of_the_family(form: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(form)
    keep = KeepSet.load(made.bundle.path("keep_set.json"), FAMILY_VOCAB, STOP_IDS).token_ids
    for name, owner in zip(graph_names(made), (None, 2), strict=True):
        check_codes(SLM_DIR, made.bundle.graph_file(name, "qdq"), np.asarray(keep), made.result.two_bit, owner)


@pytest.mark.htp
@pytest.mark.parametrize("form", ["exported", "nbits"])
def test_compiled_into_one_binary(form: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(form)
    bundle, result = made.bundle, made.result
    contexts = [bundle.graph_file(name, "context") for name in graph_names(made)]
    binaries = {bundle.graph_file(name, "binary") for name in graph_names(made)}
    assert len(binaries) == 1
    named = {
        attribute.s.decode()
        for context in contexts
        for node in onnx.load(str(context)).graph.node
        for attribute in node.attribute
        if attribute.name == "ep_cache_context"
    }
    assert named == {path.name for path in binaries}
    assert result.graph_bytes == binaries.pop().stat().st_size
    # Sharing is worth it: less than both alone.
    assert result.graph_bytes < result.draft_alone_bytes + result.prefill_alone_bytes
    assert result.nodes_off_npu == 0
    (target,) = bundle.manifest.targets
    assert (target.soc_model, target.htp_arch, target.compiled, target.simulated) == (87, "v81", True, True)
    assert bundle.manifest.parity["htp_simulator-qdq_cpu.cosine"] >= 0.9999
    assert bundle.manifest.parity["prefill_htp_simulator-prefill_qdq_cpu.cosine"] >= 0.9999


@pytest.mark.htp
@pytest.mark.parametrize("form", ["exported", "nbits"])
def test_check(form: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """On a copy with a blank in its path: a bundle can be moved."""
    made = request.getfixturevalue(form)
    shutil.copytree(made.bundle.folder, tmp_path / "a copy")
    result = check_slm_bundle(open_bundle(tmp_path / "a copy"), None, lambda _: None)
    assert result.ok
    assert (result.not_run, result.problems) == ({}, ())
    assert [(stage.name, stage.reference) for stage in result.stages] == [
        ("fp32", "transformers_bounds"),
        ("fp32", "transformers"),
        ("qdq_cpu", "fp32"),
        ("prefill_qdq_cpu", "prefill_fp32"),
        ("htp_simulator", "qdq_cpu"),
        ("prefill_htp_simulator", "prefill_qdq_cpu"),
    ]
    bounds, rounding, qdq, prefill, *simulated = result.stages
    assert bounds.samples == rounding.samples == qdq.samples == 7 + 8 + 9  # three rounds, 0 to 2 tokens to catch up
    assert prefill.samples == FILL_ROWS
    assert bounds.max_abs_error <= 1e-4
    assert bounds.top1_agreement == 1.0
    assert rounding.cosine > 0.99
    assert qdq.cosine > 0.999
    assert prefill.cosine > 0.999
    assert all(stage.cosine >= 0.9999 for stage in simulated)


def test_check_without_the_compiler(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.slm.check.why_unavailable", lambda: "no wheel here")
    result = check_slm_bundle(exported.bundle, 1, lambda _: None)
    assert [stage.name for stage in result.stages] == ["fp32", "fp32", "qdq_cpu", "prefill_qdq_cpu"]
    assert [stage.samples for stage in result.stages] == [7, 7, 7, FILL_ROWS]
    assert result.not_run == {"htp_simulator": "no wheel here"}
    assert result.ok


@pytest.mark.parametrize("name", ["graphs/slm.weights", "graphs/slm_prefill.qdq.onnx", "tables/per_layer.safetensors"])
def test_a_flipped_bit_is_a_problem(exported: Exported, tmp_path: Path, name: str) -> None:
    shutil.copytree(exported.bundle.folder, tmp_path / "copy")
    path = tmp_path / "copy" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = check_slm_bundle(open_bundle(tmp_path / "copy"), None, lambda _: None)
    assert not result.ok
    assert result.stages == []
    assert result.problems[0].startswith(f"{name}: ")


def test_a_map_of_another_run_is_a_problem_though_its_entry_vouches_for_it(exported: Exported, tmp_path: Path) -> None:
    shutil.copytree(exported.bundle.folder, tmp_path / "copy")
    copy = open_bundle(tmp_path / "copy")
    path = copy.path("keep_set.json")
    kept = KeepSet.load(path, FAMILY_VOCAB, STOP_IDS)
    free = next(n for n in range(FAMILY_VOCAB) if n not in kept.token_ids)
    KeepSet(np.sort(np.append(kept.token_ids[:-1], free)), FAMILY_VOCAB).save(path)
    entry = {"size_bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    files = tuple(
        info.model_copy(update=entry) if info.path == "keep_set.json" else info for info in copy.manifest.files
    )
    forged = Bundle(copy.folder, copy.manifest.model_copy(update={"files": files}))
    result = check_slm_bundle(forged, 1, lambda _: None)
    assert not result.ok
    assert [problem.split(":")[0] for problem in result.problems] == ["keep_set.json"]


@pytest.mark.htp
def test_a_graph_of_other_weights_fails_the_check(exported: Exported, tmp_path: Path, monkeypatch: Any) -> None:
    """The simulator runs the binary, the CPU the QDQ file: one changed byte of the weights, vouched for, shows."""
    shutil.copytree(exported.bundle.folder, tmp_path / "copy")
    path = tmp_path / "copy" / "graphs/slm.weights"
    data = np.fromfile(path, np.uint8)
    data[: len(data) // 2] ^= 0x11
    data.tofile(path)
    monkeypatch.setattr("export.slm.check.verify_files", lambda _: [])
    assert not check_slm_bundle(open_bundle(tmp_path / "copy"), 1, lambda _: None).ok


def test_the_bundle_alone_predicts_what_transformers_does(exported: Exported) -> None:
    """Tables, both graphs and the keep set from the bundle's files, over a whole text: the tokens of the checkpoint."""
    bundle, keep = exported.bundle, KeepSet.load(exported.bundle.path("keep_set.json"), FAMILY_VOCAB, STOP_IDS)
    tables = SlmTables(
        *(PackedTable.load(bundle.path(f"tables/{name}.safetensors")) for name in ("embedding", "per_layer"))
    )
    draft, prefill = (open_graph(bundle, name, simulator=False) for name in graph_names(exported))
    model = SlmModel(slm_config(bundle), tables, draft, DRAFT_ROWS, prefill, FILL_ROWS, FAMILY_WINDOW, "int8")
    tokenizer = AutoTokenizer.from_pretrained(bundle.path("tokenizer"))
    ids = tokenizer("Tom has 5 apples and buys 3 more. How many apples does Tom have in total? " * 2)["input_ids"]
    reference: Any = Gemma4ForCausalLM.from_pretrained(SLM_DIR, dtype=torch.float32)
    with torch.no_grad():
        wanted = reference(torch.tensor([ids])).logits[0].numpy()[:, keep.token_ids]
    session, logits = model.begin(), []
    session.prefill(ids[:20])
    for start in range(20, len(ids), DRAFT_ROWS):
        chunk = ids[start : start + DRAFT_ROWS]
        logits.append(session.draft(RowTree.chain(len(chunk)), chunk))
        session.cache.accept(range(len(chunk)))
    ours = 30.0 * np.tanh(np.concatenate(logits) / 30.0)
    assert len(ours) > 20
    assert np.mean(ours.argmax(-1) == wanted[20:].argmax(-1)) > 0.9
    assert np.corrcoef(ours.ravel(), wanted[20:].ravel())[0, 1] > 0.995


def test_ranges_file_gives_the_same_graphs(
    exported: Exported, nbits: Exported, family_options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a verifier, a table or a compiler; the keep set is the file's."""
    monkeypatch.setattr(export_module, "why_unavailable", lambda: "not needed here")
    files = {"calibration": "ranges.json", "keep_set": "keep_set.json"}
    changes = {option: str(exported.bundle.path(name)) for option, name in files.items()}
    again = run(family_options(tmp_path / "again", verifier=None, table=False, **changes))
    for name in ("slm_draft.qdq.onnx", "slm_prefill.qdq.onnx", "slm.weights"):
        assert again.bundle.path(f"graphs/{name}").read_bytes() == exported.bundle.path(f"graphs/{name}").read_bytes()
    for name in files.values():
        assert again.bundle.path(name).read_bytes() == exported.bundle.path(name).read_bytes()
    assert again.result.calibration == exported.result.calibration
    assert again.result.keep_set_source == "file keep_set.json"
    assert again.result.warnings == [
        "no embedding tables were written: a phone cannot draft with this bundle alone",
        "not compiled: not needed here",
    ]
    assert (again.result.lut_bytes, again.result.per_layer_lut_bytes, again.result.graph_bytes) == (0, 0, None)
    for made in (again, nbits):
        manifest = made.bundle.manifest
        assert (manifest.table, manifest.per_layer_table) == (None, None)
        assert not any(info.path.startswith("tables/") for info in manifest.files)
    assert not again.bundle.manifest.targets[0].compiled
    result = check_slm_bundle(again.bundle, None, lambda _: None)
    assert result.ok
    assert "htp_simulator" in result.not_run


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nested, scales by layer, keys of sharing layers, and no tokenizer."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "slm", nested=True, grouped=True, shared=True)


@pytest.fixture
def tiny_options(tiny_folder: Path, tmp_path: Path) -> Callable[..., SlmExportOptions]:
    """An export of random tokens, whose graphs are traced already."""

    def options(**changes: Any) -> SlmExportOptions:
        defaults = {
            "checkpoint": str(tiny_folder), "verifier": None, "out": tmp_path / "deep" / "out",
            "default_prompts": tmp_path / "none", "held_out_prompts": tmp_path / "none",
            "window": WINDOW, "rows": ROWS, "prefill_rows": PREFILL_ROWS, "keep_set": str(len(KEEP)),
        }  # fmt: skip
        return SlmExportOptions(**{**defaults, **changes})

    return options


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "why_unavailable", lambda: "this host has no compiler")


@pytest.mark.usefixtures("_no_compiler")
def test_without_tokenizer_or_verifier(tiny_options: Callable[..., SlmExportOptions]) -> None:
    made = run(tiny_options())
    assert verify_files(made.bundle) == []
    assert made.result.calibration == "synthetic:seed0"
    assert made.result.keep_set_source == "290 lowest ids: no tokenizer to count prompts with"
    assert made.result.parity_max_abs_error <= 1e-4 * 5  # logits go up to the softcap of 5
    assert made.result.warnings == [
        "activation ranges and checks are of random tokens (there is no tokenizer beside the checkpoint): for size and "
        "speed work only",
        "keep set: 290 lowest ids: no tokenizer to count prompts with",
        "not compiled: this host has no compiler",
    ]
    samples = load_samples(made.bundle.path("check/samples.safetensors"))
    assert len(samples.trees) == 1
    assert samples.trees[0].caches[0].keys.dtype == np.int8


@pytest.mark.usefixtures("_no_compiler")
def test_few_rows_a_short_window_and_no_clips(tiny_options: Callable[..., SlmExportOptions]) -> None:
    """Fewer rows than a check's tree has, and more prefill rows than the window."""
    options = tiny_options(rows=2, prefill_rows=12, window=9, activation_clip=False, two_bit="nbits", head_bits=8)
    made = run(options)
    assert made.result.parity_max_abs_error <= 1e-4 * 5
    assert (made.result.head_bits, made.result.activation_clip) == (8, False)
    assert made.bundle.manifest.slm is not None
    assert (made.bundle.manifest.slm.head_bits, made.bundle.manifest.slm.activation_clip) == (8, False)
    assert any("activations are not clipped" in warning for warning in made.result.warnings)
    assert check_slm_bundle(made.bundle, None, lambda _: None).ok


@pytest.fixture
def broken(tiny_folder: Path, tmp_path: Path) -> Callable[[str], tuple[dict[str, Any], type[HycoError], str]]:
    """Name -> (option changes, error, message) of an export that must fail, with the files that it needs."""
    files = tmp_path / "files"
    files.mkdir()
    KeepSet(np.array([0, 7]), VOCAB_SIZE).save(files / "no_stop.json")
    KeepSet(np.array([0, 1, 5]), VOCAB_SIZE + 1).save(files / "other_vocabulary.json")
    Ranges({"layers.0.mlp.gelu": (0.0, 1.0)}, "prompts:x").save(files / "few_ranges.json")
    (files / "prompts.jsonl").write_text('{"question_id": 1, "category": "x", "turns": ["Hi"]}\n')
    shutil.copytree(tiny_folder, files / "damaged")
    tensors = load_file(tiny_folder / "model.safetensors")
    tensors["model.language_model.layers.1.mlp.up_proj.weight_scale"][3] = torch.nan
    save_file(tensors, files / "damaged" / "model.safetensors", metadata={"format": "pt"})
    cases: dict[str, tuple[dict[str, Any], type[HycoError], str]] = {
        "checkpoint absent": ({"checkpoint": str(files / "nowhere")}, CheckpointError, "no such folder"),
        "checkpoint damaged": ({"checkpoint": str(files / "damaged")}, CheckpointError, r"up_proj\.weight_scale.* NaN"),
        "keep set without stop": ({"keep_set": str(files / "no_stop.json")}, KeepSetError, r"\[1\] are not in"),
        "keep set of another vocabulary": (
            {"keep_set": str(files / "other_vocabulary.json")}, KeepSetError, "is for 321 tokens, the target has 320",
        ),
        "keep set too large": ({"keep_set": "321"}, UsageError, "--keep-set 321 must lie between 1 required and 320"),
        "calibration absent": ({"calibration": str(files / "no.jsonl")}, UsageError, "no such file"),
        "prompts without tokenizer": (
            {"calibration": str(files / "prompts.jsonl")}, CalibrationError, "prompts cannot be read, because there is",
        ),
        "ranges of another graph": (
            {"calibration": str(files / "few_ranges.json")}, ExportError, "calibration has no range for",
        ),
    }  # fmt: skip
    return cases.__getitem__


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize(
    "name",
    [
        "checkpoint absent", "checkpoint damaged", "keep set without stop", "keep set of another vocabulary",
        "keep set too large", "calibration absent", "prompts without tokenizer", "ranges of another graph",
    ],
)  # fmt: skip
def test_an_error_leaves_nothing_behind(
    broken: Callable[[str], Any], tiny_options: Callable[..., SlmExportOptions], tmp_path: Path, name: str
) -> None:
    changes, kind, message = broken(name)
    with pytest.raises(kind, match=message):
        run(tiny_options(**changes))
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_a_late_failure_leaves_nothing_behind(
    tiny_options: Callable[..., SlmExportOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler refuses, after everything else was written."""

    def refuse(*_: object, **__: object) -> None:
        raise CompileError("the compiler said no")

    monkeypatch.setattr(export_module, "why_unavailable", lambda: None)
    monkeypatch.setattr(export_module, "compile_graph", refuse)
    seen: list[str] = []
    with pytest.raises(CompileError, match="the compiler said no"):
        export_slm(tiny_options(), seen.append)
    assert seen[-1].startswith("compiling slm_draft alone for sm8850")
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_exists_is_left_alone(tiny_options: Callable[..., SlmExportOptions]) -> None:
    out = tiny_options().out
    out.mkdir(parents=True)
    (out / "precious").write_text("mine")
    with pytest.raises(UsageError, match="exists; choose another --out, or replace it with --force"):
        run(tiny_options())
    assert [path.name for path in out.iterdir()] == ["precious"]


@pytest.mark.usefixtures("_no_compiler")
def test_a_graph_that_is_not_transformers_model_is_refused(
    tiny_options: Callable[..., SlmExportOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(*arguments: Any) -> Any:
        slm = load_slm(*arguments)
        slm.layers[0].layer_scalar = torch.ones(1)  # the classic: one scalar lost in surgery
        return slm

    monkeypatch.setattr(float_graph, "load_slm", forgetful)
    with pytest.raises(ExportError, match="differ from transformers' by"):
        run(tiny_options())
    assert list(tmp_path.iterdir()) == []


def test_a_verifier_of_another_vocabulary(family_options: Any, tmp_path: Path) -> None:
    verifier = tmp_path / "verifier"
    shutil.copytree(VERIFIER_DIR, verifier)
    config = json.loads((verifier / "config.json").read_text())
    tensors = load_file(verifier / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:-8].contiguous()
    save_file(tensors, verifier / "model.safetensors", metadata={"format": "pt"})
    (verifier / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] - 8}))
    with pytest.raises(ExportError, match="the verifier has 2040 tokens, the SLM 2048: not a pair"):
        run(family_options(tmp_path / "out", verifier=str(verifier)))
    assert not (tmp_path / "out").exists()
