"""The QDQ graphs as files: their boundary, the 8-bit caches, the clips; and how near they come to the float graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from export.errors import ExportError
from export.graphs.slm import SlmInputs
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder, softcapped
from export.parity import sqnr_db
from export.passes.common import float_values, name_of
from export.slm.quantized_graph import quantize_slm

from .builders import CACHE_SCALES, KEEP, text, transformers_linears
from .conftest import PREFILL_ROWS, ROWS, WINDOW, Quantized, Tiny, largest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from export.activation_params import Range
    from export.slm.weights import TwoBit

UINT16, INT8 = TensorProto.UINT16, TensorProto.INT8


@dataclass(frozen=True)
class File:
    """A graph read with the onnx package alone."""

    graph: onnx.GraphProto
    arrays: dict[str, np.ndarray]
    makers: dict[str, onnx.NodeProto]

    @staticmethod
    def load(path: Path) -> File:
        graph = onnx.load(str(path)).graph
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        return File(graph, arrays, {output: node for node in graph.node for output in node.output})

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if name in node.input]

    def params(self, node: onnx.NodeProto) -> tuple[float, int, str]:
        """Scale, zero point and type of a QuantizeLinear or DequantizeLinear."""
        assert node.op_type in ("QuantizeLinear", "DequantizeLinear"), node.op_type
        scale, zero = (self.arrays[name] for name in node.input[1:3])
        assert scale.shape == zero.shape == ()
        return float(scale), int(zero), zero.dtype.name

    def products(self, module: str) -> list[onnx.NodeProto]:
        """The product that reads a linear layer's weight; those of all chunks of the output layer."""
        names = [f"{module}.weight.codes", *(f"{module}.weight.{chunk}.codes" for chunk in (0, 1))]
        readers = [node for name in names for node in self.readers(name)]
        return [n if n.op_type == "MatMulNBits" else self.readers(n.output[0])[0] for n in readers]

    def before(self, product: onnx.NodeProto) -> onnx.NodeProto:
        """The DequantizeLinear that a linear layer's input comes from, behind reshapes that keep its quantisation."""
        node = self.makers[product.input[0]]
        source = self.makers.get(self.makers[node.input[0]].input[0]) if product.op_type == "MatMulNBits" else None
        if source is not None:
            assert source.op_type == "Reshape"
            assert self.params(self.makers[source.input[0]]) == self.params(node)
        return node

    def after(self, product: onnx.NodeProto) -> onnx.NodeProto:
        """The QuantizeLinear that its output goes into."""
        (node,) = self.readers(product.output[0])
        return node


def clip_range(params: tuple[float, int, str]) -> tuple[float, float]:
    scale, zero, dtype = params
    limits = np.iinfo(dtype)
    return (limits.min - zero) * scale, (limits.max - zero) * scale


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(size.dim_value for size in value.type.tensor_type.shape.dim)


@pytest.fixture(params=["int4", "nbits"])
def made(request: pytest.FixtureRequest, quantized: Callable[[TwoBit], Quantized]) -> Quantized:
    return quantized(request.param)


@pytest.fixture
def draft(made: Quantized) -> File:
    return File.load(made.draft)


def test_boundary(tiny: Tiny, made: Quantized) -> None:
    """16 bits everywhere but in the caches; keys are transposed."""
    for path, boundary, rows in (
        (made.draft, made.draft_boundary, ROWS),
        (made.prefill, made.prefill_boundary, PREFILL_ROWS),
    ):
        inputs = SlmInputs(tiny.checkpoint.config, rows, WINDOW)
        graph, stated = File.load(path).graph, {t.name: t for t in (*boundary.inputs, *boundary.outputs)}
        logits = {f"logits_{i}": (1, 1, rows, n) for i, n in enumerate((160, 130))} if rows == ROWS else {}
        shapes = {**inputs.shapes(), **inputs.output_shapes(), **logits}
        assert [v.name for v in graph.output] == [
            *logits, *(f"new_{kind}_{owner}" for owner in range(3) for kind in ("keys", "values")),
        ]  # fmt: skip
        assert list(stated) == [v.name for v in (*graph.input, *graph.output)]
        for value in (*graph.input, *graph.output):
            cache = value.name.startswith(("past_", "new_"))
            assert value.type.tensor_type.elem_type == (INT8 if cache else UINT16), value.name
            assert shape_of(value) == stated[value.name].shape == shapes[value.name]
    assert shapes["past_keys_2"] == (1, 1, 16, WINDOW)
    assert shapes["past_values_2"] == (1, 1, WINDOW, 16)


def test_nothing_is_float_at_the_boundary(draft: File) -> None:
    for value in draft.graph.input:
        assert {node.op_type for node in draft.readers(value.name)} == {"DequantizeLinear"}
    for value in draft.graph.output:
        assert draft.makers[value.name].op_type == "QuantizeLinear"


def caches(rows_of: str) -> Iterator[tuple[str, tuple[float, int, str]]]:
    """Name and quantisation: the checkpoint's float32 scale, zero point 0, int8."""
    for owner, scales in CACHE_SCALES.items():
        for kind, scale in zip(("keys", "values"), scales, strict=True):
            yield f"{rows_of}_{kind}_{owner}", (float(np.float32(scale)), 0, "int8")


def test_caches_have_the_checkpoints_scales(made: Quantized, draft: File) -> None:
    stated = {t.name: t for t in (*made.draft_boundary.inputs, *made.draft_boundary.outputs)}
    for name, wanted in (*caches("past"), *caches("new")):
        assert (stated[name].scale, stated[name].zero_point, stated[name].dtype) == wanted
        nodes = draft.readers(name) if name.startswith("past") else [draft.makers[name]]
        assert {draft.params(node) for node in nodes} == {wanted}


def test_caches_are_concatenated_in_8_bits(draft: File) -> None:
    """Both parts are int8 of the checkpoint's scale, and so is the whole: no number changes."""
    for past, wanted in caches("past"):
        (concat,) = {n.name: n for d in draft.readers(past) for n in draft.readers(d.output[0])}.values()
        assert concat.op_type == "Concat"
        assert len(concat.input) == 2
        parts = [draft.makers[name] for name in concat.input]
        assert [draft.params(part) for part in parts] == [wanted, wanted]
        assert parts[0].input[0] == past
        (whole,) = draft.readers(concat.output[0])
        assert draft.params(whole) == wanted
        new = draft.makers[past.replace("past", "new")]
        assert draft.params(new) == wanted


def joined(draft: File, past: str) -> str:
    """The dequantised concatenation."""
    (concat,) = {n.name: n for d in draft.readers(past) for n in draft.readers(d.output[0])}.values()
    (whole,) = draft.readers(concat.output[0])
    (restored,) = draft.readers(whole.output[0])
    assert restored.op_type == "DequantizeLinear"
    return str(restored.output[0])


def test_sharing_layers_read_their_owners_cache(draft: File) -> None:
    """Layers 0, 1, 2 own; 3 and 4 read that of 1, 5 that of 2: one product with keys and one with values for each."""
    for kind in ("keys", "values"):
        counts = [len(draft.readers(joined(draft, f"past_{kind}_{owner}"))) for owner in range(3)]
        assert counts == [1, 3, 2]
        for owner in range(3):
            assert {n.op_type for n in draft.readers(joined(draft, f"past_{kind}_{owner}"))} == {"MatMul"}
    assert len([node for node in draft.graph.node if node.op_type == "Softmax"]) == 6


def test_every_clip_is_a_range(tiny: Tiny, made: Quantized) -> None:
    """-128 s .. 127 s on the input and the output of every linear layer, and nothing where the file says 0."""
    seen = 0
    for path in (made.draft, made.prefill):
        file = File.load(path)
        for module in transformers_linears(tiny.folder):
            scales = tiny.checkpoint.activation_scales(module)
            for product in file.products(module):
                for scale, node in zip(scales, (file.before(product), file.after(product)), strict=True):
                    if scale is None:
                        assert module == "layers.0.self_attn.q_proj"
                        continue
                    params = file.params(node)
                    assert params[1:] == (32896, "uint16"), module  # 128 / 255 of 65535, without a remainder
                    np.testing.assert_allclose(clip_range(params), (-128 * scale, 127 * scale), rtol=1e-6)
                    seen += 1
    # Sharing layers have 7 linear layers, owners 9, the last owner 2 in the prefill graph; two chunks of the head.
    assert seen == 2 * (3 * 9 + 3 * 7 + 2) - 1 + 2 * (2 * 9 + 2) - 1


def test_without_clips_ranges_are_the_calibrations(tiny: Tiny, tmp_path: Path) -> None:
    """Nothing is bounded: every range is the one given, 9, widened by a quarter."""
    model = tiny.build("int4", clip=False)
    ranges = {name_of(value): (-9.0, 9.0) for value in float_values(model.graph)}
    ir.save(quantize_slm(model, ranges, tiny.checkpoint).model, tmp_path / "free.onnx")
    file, seen = File.load(tmp_path / "free.onnx"), 0
    for module in transformers_linears(tiny.folder):
        for product in file.products(module):
            for node in (file.before(product), file.after(product)):
                np.testing.assert_allclose(clip_range(file.params(node)), (-11.25, 11.25), rtol=1e-4)
                seen += 1
    assert seen == 2 * (3 * 9 + 3 * 7 + 2)


def test_logits_of_all_chunks_share_one_scale(tiny: Tiny, made: Quantized, draft: File) -> None:
    params = [draft.params(draft.makers[f"logits_{chunk}"]) for chunk in (0, 1)]
    assert params[0] == params[1]
    scale = tiny.checkpoint.activation_scales("lm_head")[1]
    assert scale is not None
    np.testing.assert_allclose(clip_range(params[0]), (-128 * scale, 127 * scale), rtol=1e-6)
    stated = {t.name: t for t in made.draft_boundary.outputs}
    assert stated["logits_0"].scale == stated["logits_1"].scale == params[0][0]


def with_8_bit_caches(monkeypatch: pytest.MonkeyPatch, owners: tuple[int, ...]) -> None:
    """transformers' attention reads keys and values rounded with the scales of `owners`, one for each layer."""

    def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
        return (x / scale).round().clamp(-128, 127) * scale

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        keys, values = CACHE_SCALES[owners[module.layer_idx]]
        return sdpa_attention_forward(module, query, rounded(key, keys), rounded(value, values), *rest, **more)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attend)


def test_near_transformers(tiny: Tiny, made: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees, against transformers with 8-bit caches too. 16-bit activations cost little, and part of that is keys that
    they move across a rounding border: where transformers reads other caches, it is further away.
    """
    tree, tokens, config = RowTree((None, 0, 0, 1, None)), [1, 2, 3, 4, 5], tiny.checkpoint.config
    ours = []
    for seed in range(4):
        session = made.model(tiny).begin()
        session.prefill(text(13, seed))
        ours.append(softcapped(session.draft(tree, tokens), config.final_logit_softcapping))

    def distance_db() -> float:
        wanted = [tiny.reference.tree_logits(text(13, seed), tree, tokens, KEEP, "clipped") for seed in range(4)]
        return sqnr_db(np.stack(wanted), np.stack(ours))

    in_floats = distance_db()
    with_8_bit_caches(monkeypatch, (0, 1, 2, 1, 1, 2))
    in_8_bits = distance_db()
    with_8_bit_caches(monkeypatch, (0, 1, 2, 0, 0, 1))
    of_others = distance_db()
    assert in_8_bits > 40
    assert in_8_bits > max(in_floats, of_others) + 3


def test_both_forms_give_the_same_codes(tiny: Tiny, quantized: Callable[[TwoBit], Quantized]) -> None:
    """Where 2-bit codes lie in 2 bits or in 4 makes no difference to what comes out, but for the last bit."""
    outputs = []
    for form in ("int4", "nbits"):
        session = quantized(form).model(tiny).begin()
        session.prefill(text(11))
        outputs.append(session.draft(RowTree((None, 0, 0)), [1, 2, 3]))
    assert largest(outputs[0] - outputs[1]) <= 1e-3 * largest(outputs[0])


def test_a_value_without_a_range(tiny: Tiny, ranges: dict[str, Range]) -> None:
    few = {name: found for name, found in ranges.items() if "gelu" not in name.lower()}
    assert len(few) < len(ranges)
    with pytest.raises(ExportError, match="calibration has no range for"):
        quantize_slm(tiny.build("int4"), few, tiny.checkpoint)


def test_padded_rows_change_no_code(tiny: Tiny, made: Quantized) -> None:
    """Codes of 0 or garbage in padded rows: the codes of the others are the same, bit for bit."""
    model = made.model(tiny)
    session = model.begin()
    session.prefill(text(9))
    builder = TreeFeedBuilder(tiny.checkpoint.config, ROWS, WINDOW)
    feed = builder.feed(RowTree.chain(3), *tiny.tables.rows(text(3)), session.cache.view())
    clean = model.draft.run(feed)
    rng = np.random.default_rng(0)
    for name in ("embedding", "per_layer"):
        feed[name][:, :, 3:] = rng.uniform(-9, 9, feed[name][:, :, 3:].shape)
    dirty = model.draft.run(feed)
    for name, array in clean.items():
        rows = (..., slice(3)) if "keys" in name else (slice(None), slice(None), slice(3))
        np.testing.assert_array_equal(dirty[name][rows], array[rows])
