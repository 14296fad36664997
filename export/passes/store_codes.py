"""MatMul(x, W)  ->  MatMul(x, DequantizeLinear(codes, scale, 0; axis = 1))  with codes that a checkpoint brings

Nothing is rounded here: the codes are stored as they are, 2-bit ones in 4 bits (the value is the same, the size is
not). Form "native" is the same here and is stored in 2 bits when it is compiled (engines/two_bit.py); form "nbits"
stores 2-bit codes in 2 bits at once:

    MatMul(x, W)  ->  Reshape(MatMulNBits(Reshape(x), codes, scale))

ONNX's own INT2 is never written: HTP reads it as unsigned, without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.errors import PassError
from export.passes.common import add_initializer, constant_shape, drop_unused_initializers, name_of, weight_matmuls
from quant.packing import pack_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

Form = Literal["int4", "int8", "native", "nbits"]
"""How a weight is stored: in 4 bits, in 8 bits, or (2-bit codes alone) in 2: HTP's own, or MatMulNBits."""

_CONTAINERS: dict[str, tuple[ir.DataType, np.dtype[np.generic], Literal[2, 4, 8]]] = {
    "int4": (ir.DataType.INT4, np.dtype(ml_dtypes.int4), 4),
    "native": (ir.DataType.INT4, np.dtype(ml_dtypes.int4), 2),
    "int8": (ir.DataType.INT8, np.dtype(np.int8), 8),
}
_NBITS: Final = 2
_NBITS_DOMAIN = "com.microsoft"
_LARGEST_BLOCK, _SMALLEST_BLOCK = 256, 16


@dataclass(frozen=True)
class CodedWeight:
    """A weight [out, in] of a checkpoint: how many bits its codes have, how to store them, and how to read them.

    `read` gives codes int8 [out, in] and scales float32 [out]; it is called when the model is written, once or twice,
    so that no more than one weight is unpacked at a time.
    """

    shape: tuple[int, int]
    bits: int
    form: Form
    read: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    @property
    def stored_bits(self) -> Literal[2, 4, 8]:
        """Bits that a code takes in the compiled graph."""
        return _NBITS if self.form == "nbits" else _CONTAINERS[self.form][2]

    @property
    def stored_bytes(self) -> int:
        """Bytes of codes and scales (four bytes a row or block) in the compiled graph."""
        rows, columns = self.shape
        blocks = columns // nbits_block(columns) if self.form == "nbits" else 1
        return rows * columns * self.stored_bits // 8 + 4 * rows * blocks


def nbits_block(columns: int) -> int:
    """The largest block that divides a row of `columns` values; each block has a scale of its own, here all equal."""
    block = _LARGEST_BLOCK
    while columns % block and block > _SMALLEST_BLOCK:
        block //= 2
    return block


class StoreCodes(InPlacePass):
    """Give the constant matrices named in `weights` their codes; others are left as they are."""

    def __init__(self, weights: Mapping[str, CodedWeight]) -> None:
        super().__init__()
        self.weights = weights

    def requires(self, model: ir.Model) -> None:
        shapes = {}
        for node in weight_matmuls(model.graph):
            weight = node.inputs[1]
            assert weight is not None
            shapes[name_of(weight)] = constant_shape(weight)
        for name, coded in self.weights.items():
            rows, columns = coded.shape
            if name not in shapes:
                raise PassError(f"the graph has no weight {name!r} to take the checkpoint's codes")
            if shapes[name] != (columns, rows):
                raise PassError(f"weight {name!r} is {shapes[name]} [in, out], its codes are {coded.shape} [out, in]")
            if coded.form == "nbits" and (coded.bits != _NBITS or columns % _SMALLEST_BLOCK):
                raise PassError(
                    f"weight {name!r} has {coded.bits}-bit codes in rows of {columns}; 2-bit storage takes 2-bit "
                    f"codes in rows that {_SMALLEST_BLOCK} divides"
                )
            if coded.form != "nbits" and coded.bits > _CONTAINERS[coded.form][2]:
                raise PassError(f"weight {name!r} has {coded.bits}-bit codes, which {coded.form} cannot hold")

    def call(self, model: ir.Model) -> PassResult:
        changed = False
        for node in weight_matmuls(model.graph):
            weight = node.inputs[1]
            assert weight is not None
            coded = self.weights.get(name_of(weight))
            if coded is None:
                continue
            changed = True
            if coded.form == "nbits":
                _replace_by_nbits(model.graph, node, name_of(weight), coded)
            else:
                node.replace_input_with(1, _dequantized(model.graph, node, name_of(weight), coded))
        drop_unused_initializers(model.graph)
        return PassResult(model, modified=changed)

    def ensures(self, model: ir.Model) -> None:
        left = sorted(self.weights.keys() & model.graph.initializers.keys())
        if left:
            raise PassError(f"weights without their codes are left: {left[:5]}")
        two_bit = [name for name, value in model.graph.initializers.items() if value.dtype == ir.DataType.INT2]
        if two_bit:
            raise PassError(f"{two_bit[:5]} are ONNX INT2, which HTP reads wrong")


def _dequantized(graph: ir.Graph, node: ir.Node, name: str, coded: CodedWeight) -> ir.Value:
    data_type, storage, _ = _CONTAINERS[coded.form]
    rows, columns = coded.shape

    def codes() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(coded.read()[0].numpy().T).astype(storage), dtype=data_type)

    inputs = [
        _lazy(graph, f"{name}.codes", (columns, rows), data_type, codes),
        _lazy(graph, f"{name}.scale", (rows,), ir.DataType.FLOAT, lambda: ir.tensor(coded.read()[1].numpy())),
        add_initializer(graph, f"{name}.zero", ir.Tensor(np.zeros(rows, storage), dtype=data_type)),
    ]
    output = ir.Value(name=f"{name}.dequantized", shape=ir.Shape((columns, rows)), type=_FLOAT)
    dequantize = ir.node("DequantizeLinear", inputs, {"axis": 1}, outputs=[output], name=f"{name}.dequantize")
    graph.insert_before(node, dequantize)
    return output


def _replace_by_nbits(graph: ir.Graph, node: ir.Node, name: str, coded: CodedWeight) -> None:
    rows, columns = coded.shape
    block = nbits_block(columns)
    blocks = columns // block

    def codes() -> ir.TensorProtocol:
        packed = pack_offset(coded.read()[0], _NBITS)
        return ir.tensor(packed.numpy().reshape(rows, blocks, block * _NBITS // 8))

    def scales() -> ir.TensorProtocol:
        return ir.tensor(np.repeat(coded.read()[1].numpy(), blocks))

    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    assert source.shape is not None
    assert output.shape is not None
    # HTP takes rank 3 here, and the graphs have rank 4.
    flat = ir.Value(name=f"{name_of(output)}.flat", shape=ir.Shape([*source.shape[1:]]), type=_FLOAT)
    product = ir.Value(name=f"{name_of(output)}.product", shape=ir.Shape([*output.shape[1:]]), type=_FLOAT)
    operands = [
        flat,
        _lazy(graph, f"{name}.codes", (rows, blocks, block * _NBITS // 8), ir.DataType.UINT8, codes),
        _lazy(graph, f"{name}.scale", (rows * blocks,), ir.DataType.FLOAT, scales),
    ]
    multiply = ir.node(
        "MatMulNBits",
        operands,
        {"K": columns, "N": rows, "bits": _NBITS, "block_size": block},
        domain=_NBITS_DOMAIN,
        outputs=[product],
        name=f"{node.name}.nbits",
    )
    into = ir.node("Reshape", [source, _shape(graph, flat)], outputs=[flat], name=f"{node.name}.flatten")
    graph.opset_imports[_NBITS_DOMAIN] = 1
    name_after = output.name
    graph.insert_before(node, [into, multiply])
    back = ir.node("Reshape", [product, _shape(graph, output)], name=f"{node.name}.restore")
    back.outputs[0].shape, back.outputs[0].type = output.shape, output.type
    graph.insert_before(node, back)
    ir.convenience.replace_all_uses_with(output, back.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    back.outputs[0].name = name_after


def _shape(graph: ir.Graph, value: ir.Value) -> ir.Value:
    assert value.shape is not None
    sizes = value.shape.numpy()
    name = f"shape.{'x'.join(map(str, sizes))}"
    if name in graph.initializers:
        return graph.initializers[name]
    return add_initializer(graph, name, ir.tensor(np.array(sizes, np.int64)))


def _lazy(
    graph: ir.Graph, name: str, shape: tuple[int, ...], dtype: ir.DataType, make: Callable[[], ir.TensorProtocol]
) -> ir.Value:
    return add_initializer(graph, name, ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape), name=name))


_FLOAT = ir.TensorType(ir.DataType.FLOAT)
