"""The functions of the ONNX domain ``samestep``: the operator's business variants, made of standard operators.

A function is one business variant in one evaluation order: ``SGD_K3`` (order spec), ``SGD_K3_ascend950``. It takes the
operator's six inputs and returns parameters, accum and stat, in float32, float16 or bfloat16; its attributes are the
float attributes of the terms that the variant has. The body is formula.cann as `samestep.graph.trace` saw it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samestep import tiling
from samestep.contract import INPUTS, ORDERS, Attributes
from samestep.graph.extra import module
from samestep.graph.trace import ATTRIBUTES, SCALARS, TENSORS, Trace, trace, variant_key
from samestep.shapes import TensorSpec

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

DOMAIN, VERSION = "samestep", 1
OPSET = 16  # the first whose If holds bfloat16
SAME_SHAPE = "SameShape"
OUTPUTS = ("parameters_out", "accum_out", "stat_out")
OPERATORS = {"add": "Add", "sub": "Sub", "mul": "Mul"}


def package(name: str = "onnx") -> Any:
    """The package onnx, or a part of it; `MissingExtraError` says how to get it."""
    return module(name, "onnx")


def element_type(dtype: str) -> int:
    """The number ONNX has for a dtype."""
    return int(getattr(package().TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())))


def function_name(variant: str | tiling.TilingKey, order: str = "spec") -> str:
    """``SGD_K3``, or ``SGD_K3_ascend950`` in that order. Errors as for `function`."""
    trace(variant, order)
    return f"SGD_{variant_key(variant).variant}" + ("" if order == ORDERS[0] else f"_{order}")


def function(variant: str | tiling.TilingKey, order: str = "spec") -> FunctionProto:
    """One business variant of the operator as a model-local function (rules O5, O6), for all three dtypes.

    Inputs: the operator's six, in its order; learning_rate and momentum of any rank. Outputs: ``parameters_out``,
    ``accum_out`` and ``stat_out``, of parameters' dtype and shape. Attributes: ``dampening`` and ``weight_decay``, each
    where the variant has that term; they must not be zero then (rule K1), which `samestep.graph.onnx.model` sees to.

    ValueError for a variant that does not exist, `ContractError` ``unknown_order``.
    """
    helper = package("onnx.helper")
    steps, key = trace(variant, order), variant_key(variant)
    nodes = [*_reads(steps), *_arithmetic(steps), *_writes(steps)]
    attributes = [ATTRIBUTES[name] for name in steps.reads if name in ATTRIBUTES]
    made: FunctionProto = helper.make_function(
        DOMAIN, function_name(key, order), INPUTS, OUTPUTS, nodes, [helper.make_opsetid("", OPSET)], attributes,
        doc_string=f"SGD with momentum, business variant {key.variant}, evaluation order {order}.",
    )
    return made


def _reads(steps: Trace) -> list[NodeProto]:
    """Everything the arithmetic reads, in float32 (exact, rule O5); scalars as tensors of rank 0 (rule O2)."""
    onnx, node = package(), package("onnx.helper").make_node
    nodes = [node("Constant", [], ["rank_0"], value=onnx.helper.make_tensor("rank_0", onnx.TensorProto.INT64, [0], []))]
    for letter in steps.reads:
        if letter in ATTRIBUTES:
            constant = node("Constant", [], [letter], doc_string="O4: an attribute, in float32")
            constant.attribute.add(name="value_float", ref_attr_name=ATTRIBUTES[letter], type=onnx.AttributeProto.FLOAT)
            nodes.append(constant)
        elif letter in SCALARS:
            name, source = SCALARS[letter], f"{SCALARS[letter]}_rank_0"
            nodes.append(node("Reshape", [name, "rank_0"], [source], doc_string="O2: exactly one element, any rank"))
            nodes.append(node("Cast", [source], [letter], to=onnx.TensorProto.FLOAT, doc_string="O5: widened, exact"))
        elif letter in TENSORS:
            source = TENSORS[letter]
            nodes.append(node("Cast", [source], [letter], to=onnx.TensorProto.FLOAT, doc_string="O5: widened, exact"))
        else:
            nodes.append(node("Constant", [], ["one"], value_float=1.0))
    return nodes


def _arithmetic(steps: Trace) -> list[NodeProto]:
    node = package("onnx.helper").make_node
    return [node(OPERATORS[step.operation], [step.left, step.right], [step.name], doc_string="O5: one rounding")
            for step in steps.steps]


def _writes(steps: Trace) -> list[NodeProto]:
    """Each written tensor rounded once to its dtype; accum and stat behind the mask of rule O6.

    The mask is an If and no Where: onnxruntime has no Where for 16-bit numbers, and a way through float32 would change
    the payload of a NaN that is to be kept.
    """
    onnx, helper = package(), package("onnx.helper")
    node = helper.make_node

    def branch(name: str, nodes: list[NodeProto]) -> Any:
        outputs = [onnx.ValueInfoProto(name=output) for output in (f"accum_{name}", f"stat_{name}")]
        return helper.make_graph(nodes, name, [], outputs)

    kept = branch("kept", [node("Identity", ["accum"], ["accum_kept"]), node("Identity", ["stat"], ["stat_kept"])])
    written = branch("written", [
        node("CastLike", [steps.accum_t, "accum"], ["accum_written"], doc_string="O5: rounded once"),
        node("Shape", ["stat"], ["extent"]),
        node("ConstantOfShape", ["extent"], ["cleared"]),
        node("CastLike", ["cleared", "stat"], ["stat_written"]),
    ])
    return [
        node("CastLike", [steps.p_out, "parameters"], ["parameters_out"], doc_string="O5: rounded once; O6: always"),
        node("Constant", [], ["zero"], value_float=0.0),
        node("Equal", ["m", "zero"], ["m_is_zero"], doc_string="O6: -0.0 is zero, NaN is not"),
        node("If", ["m_is_zero"], list(OUTPUTS[1:]), then_branch=kept, else_branch=written,
             doc_string="O6: with momentum zero not a byte changes"),
    ]


def same_shape() -> FunctionProto:
    """``SameShape(reference, tensor)``: the tensor, and an error of Reshape when shapes differ or an axis is 0 (O2).

    Standard operators would broadcast. Models with unknown dimensions send every tensor through this function; its
    Reshape asks for one element more on each wrong axis, which no tensor can satisfy.
    """
    onnx, helper = package(), package("onnx.helper")
    node = helper.make_node
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [], [1])
    nodes = [
        node("Constant", [], ["one"], value=one),
        node("Shape", ["reference"], ["wanted"]),
        node("Shape", ["wanted"], ["rank"]),
        node("Shape", ["tensor"], ["came"]),
        node("Reshape", ["came", "rank"], ["extents"], name="rank_differs_from_parameters"),
        node("Equal", ["wanted", "extents"], ["equal"]),
        node("Less", ["extents", "one"], ["empty"]),
        node("Not", ["empty"], ["filled"]),
        node("And", ["equal", "filled"], ["good"]),
        node("Add", ["extents", "one"], ["impossible"]),
        node("Where", ["good", "extents", "impossible"], ["shape"]),
        node("Reshape", ["tensor", "shape"], ["same"], name="shape_empty_or_not_that_of_parameters"),
    ]
    made: FunctionProto = helper.make_function(
        DOMAIN, SAME_SHAPE, ["reference", "tensor"], ["same"], nodes, [helper.make_opsetid("", OPSET)],
        doc_string="The tensor unchanged, if it has the shape of the reference and is not empty.",
    )
    return made


def call(name: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Attributes, order: str) -> NodeProto:
    """A node `name` that calls the function of these attributes (rules O4, K1)."""
    key = tiling.select(0, attributes)
    terms = {term: getattr(attributes, term) for term in ATTRIBUTES.values() if getattr(key, term)}
    made: NodeProto = package("onnx.helper").make_node(
        function_name(key, order), list(inputs), list(outputs), name=name, domain=DOMAIN, **terms)
    return made


def checked_inputs(
    prefix: str, values: Sequence[str], specs: Sequence[TensorSpec]
) -> tuple[list[NodeProto], list[str]]:
    """Nodes that check at run time what is not known of the six inputs' shapes, and the names to use from there on."""
    node = package("onnx.helper").make_node
    tensors = [k for k, name in enumerate(INPUTS) if name in TENSORS.values()]
    nodes, passed = [], list(values)
    if any(dim < 0 for k in tensors for dim in specs[k].shape):
        for k in tensors:
            passed[k] = name = f"{prefix}{INPUTS[k]}_checked"
            nodes.append(node(SAME_SHAPE, [values[0], values[k]], [name], name=name, domain=DOMAIN))
    return nodes, passed
