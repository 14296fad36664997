"""Codes in the saved graphs are the checkpoint's, as transformers' own functions unpack them: every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from export.checkpoint.slm import read_slm_checkpoint
from export.errors import ExportError
from export.slm.save import save_sharing_weights
from export.slm.weights import coded_weights

from ..checkpoint.slm_builders import slm_config, write_slm
from .builders import KEEP, check_codes, stored_weights, transformers_linears

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from export.slm.weights import TwoBit

    from .conftest import Quantized, Tiny

FORMS: list[TwoBit] = ["int4", "native", "nbits"]


@pytest.mark.parametrize("two_bit", FORMS)
def test_every_tensor_of_the_tiny_checkpoint(
    tiny: Tiny, quantized: Callable[[TwoBit], Quantized], two_bit: TwoBit
) -> None:
    made = quantized(two_bit)
    for path, owners in ((made.draft, None), (made.prefill, 2)):
        check_codes(tiny.folder, path, KEEP, two_bit, owners)


def test_the_plain_layout_has_the_same_codes(tiny: Tiny, plain_folder: Path) -> None:
    ours, theirs = transformers_linears(tiny.folder), transformers_linears(plain_folder)
    assert ours.keys() == theirs.keys()
    plain = coded_weights(read_slm_checkpoint(plain_folder), KEEP, "int4")
    for name, weight in coded_weights(tiny.checkpoint, KEEP, "int4").items():
        for one, other in zip(weight.read(), plain[name].read(), strict=True):
            assert torch.equal(one, other)


def test_rows_of_an_uneven_number_of_codes(tmp_path: Path) -> None:
    """18 values of 2 bits: the last byte of a row is half empty."""
    folder = write_slm(tmp_path)
    keep, wanted = np.array([63, 0, 5]), transformers_linears(folder)
    for name, weight in coded_weights(read_slm_checkpoint(folder), keep, "int4").items():
        codes, scale = weight.read()
        module = name.split(".weight")[0]
        rows = keep if module == "lm_head" else slice(None)
        np.testing.assert_array_equal(codes.numpy(), wanted[module][0][rows])
        np.testing.assert_array_equal(scale.numpy(), wanted[module][1][rows])


@pytest.mark.parametrize(
    ("two_bit", "head_bits", "stored_bits", "data_type"),
    [
        ("int4", None, 4, TensorProto.INT4),
        ("int4", 2, 2, TensorProto.INT4),
        ("int4", 4, 4, TensorProto.INT4),
        ("native", None, 2, TensorProto.INT4),
        ("native", 4, 4, TensorProto.INT4),
        ("nbits", None, 2, TensorProto.UINT8),
        ("nbits", 8, 8, TensorProto.INT8),
    ],
)
def test_head_bits(
    tiny: Tiny, tmp_path: Path, two_bit: TwoBit, head_bits: int | None, stored_bits: int, data_type: int
) -> None:
    """The head's codes have 2 bits; wider storage holds the same codes. Other layers go by --two-bit.

    HTP's own 2 bits are made when the graph is compiled: in ONNX they are 4.
    """
    weights = coded_weights(tiny.checkpoint, KEEP, two_bit, head_bits)
    assert {w.stored_bits for n, w in weights.items() if n.startswith("lm_head")} == {stored_bits}
    save_sharing_weights({tmp_path / "draft.onnx": tiny.build(two_bit, head_bits=head_bits)}, "slm.weights")
    stored, wanted = stored_weights(tmp_path / "draft.onnx"), transformers_linears(tiny.folder)
    head = [weight for name, weight in stored.items() if name.startswith("lm_head")]
    np.testing.assert_array_equal(np.concatenate([w.codes for w in head]), wanted["lm_head"][0][KEEP])
    assert {w.data_type for w in head} == {data_type}
    others = TensorProto.UINT8 if two_bit == "nbits" else TensorProto.INT4
    assert stored["layers.4.mlp.up_proj.weight"].data_type == others


def test_a_head_that_is_too_narrow(tmp_path: Path) -> None:
    config = slm_config()
    config["quantization_config"]["module_quant_configs"]["^lm_head$"] = {"num_bits": 4}
    checkpoint = read_slm_checkpoint(write_slm(tmp_path, config))
    with pytest.raises(ExportError, match="--head-bits 2 cannot hold the 4-bit codes of the output layer; give 4 or"):
        coded_weights(checkpoint, np.arange(3), "nbits", 2)
    assert coded_weights(checkpoint, np.arange(3), "nbits", 8)["lm_head.weight.0"].stored_bits == 8
    assert coded_weights(checkpoint, np.arange(3), "nbits")["lm_head.weight.0"].stored_bits == 4


def test_a_head_without_codes(tmp_path: Path) -> None:
    config = slm_config()
    config["quantization_config"]["modules_to_not_convert"].append("lm_head")
    checkpoint = read_slm_checkpoint(write_slm(tmp_path, config))
    with pytest.raises(ExportError, match="the output layer has no codes; it cannot be exported"):
        coded_weights(checkpoint, np.arange(3), "int4")


def test_weights_lie_on_disk_once(quantized: Callable[[TwoBit], Quantized]) -> None:
    made = quantized("int4")
    draft, prefill = (
        {t.name: {e.key: e.value for e in t.external_data} for t in load(path).graph.initializer if t.external_data}
        for path in (made.draft, made.prefill)
    )
    assert {f"layers.{layer}.mlp.{part}_proj.weight.codes" for layer in (0, 1) for part in ("gate", "down")} <= set(
        prefill
    )
    assert all(place == draft[name] for name, place in prefill.items())
    assert {place["location"] for place in (*draft.values(), *prefill.values())} == {"slm.weights"}
    assert sorted(path.name for path in made.draft.parent.iterdir()) == [
        "draft.qdq.onnx", "prefill.qdq.onnx", "slm.weights",
    ]  # fmt: skip


def load(path: Path) -> Any:
    return onnx.load(str(path), load_external_data=False)


def test_graphs_of_other_weights_do_not_share(tiny: Tiny, tmp_path: Path) -> None:
    first, other = tiny.build("int4"), tiny.build("nbits", prefill=True)
    one = other.graph.initializers["layers.0.self_attn.q_proj.weight.codes"]
    one.const_value = first.graph.initializers["layers.0.mlp.up_proj.weight.codes"].const_value
    graphs = {tmp_path / "first.onnx": first, tmp_path / "other.onnx": other}
    with pytest.raises(ExportError, match=r"weight 'layers.0.self_attn.q_proj.weight.codes' is not the same in first"):
        save_sharing_weights(graphs, "weights")


def test_the_reference_unpacker_reads_int4_as_we_mean_it() -> None:
    """Two's complement, the first code in the low half of a byte."""
    tensor = TensorProto(name="x", data_type=TensorProto.INT4, dims=[4], raw_data=bytes([0x8F, 0x07]))
    assert numpy_helper.to_array(tensor).astype(np.int8).tolist() == [-1, -8, 7, 0]
