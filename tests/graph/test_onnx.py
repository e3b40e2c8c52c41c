"""The operator in ONNX: the same bits in every runtime, the same refusals, a body that is formula.py."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from graph.onnx_runs import Evaluator, OnnxRuntime, feeds_of, runtimes
from samestep import formula
from samestep.contract import INPUTS, ORDERS, ContractError
from samestep.graph import onnx as graph_onnx
from samestep.graph import trace
from samestep.graph.extra import MissingExtraError
from samestep.graph.onnx_functions import element_type
from samestep.tiling import TilingKey, legal_kernels
from suite import BITS, KEYS, MOMENTA, NUMPY, SPECIALS, attributes, bits_of, differing, run, scalar, stats, tensors

KERNELS = [(dtype, key, order) for key, dtype in legal_kernels() for order in ORDERS]
IDS = [f"{dtype}-{key.variant}-{key.sch_mode}-{order}" for dtype, key, order in KERNELS]
FAILS = (Fail, InvalidArgument, ValueError)


def model_of(key, dtype, order, shape, scalar_shape=(1,)):
    return graph_onnx.model(shape, dtype, **attributes(key)._asdict(), order=order, learning_rate=scalar_shape,
                            momentum=scalar_shape)


def wrong(target, before, dtype, key, order, lr, m, shape, scalar_shape=(1,)):
    """Elements that `target` gets other than the reference engine does."""
    want = run("reference", before, dtype, key, order, lr, m)
    got = target(feeds_of(before, lr, m, shape, scalar_shape), dtype)
    assert [output.shape for output in got] == [shape] * 3
    p, a, s = (output.reshape(-1) for output in got)
    return differing(want, [p, before[1], a, s], dtype, masked=float(m[0]) == 0)


def special(dtype):
    """Every triple of special values as parameters, gradient and accum; stat goes through specials of its own."""
    words = np.array([bits_of(value, dtype) for value in SPECIALS], BITS[dtype])
    p, g, a = (column.reshape(-1).copy() for column in np.meshgrid(words, words, words, indexing="ij"))
    rng = np.random.default_rng(5)
    return [p, g, a, stats(rng, p.size, dtype)]


# --- bits ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("dtype", "key", "order"), KERNELS, ids=IDS)
def test_every_kernel_has_the_bits_of_the_reference_engine(dtype, key, order):
    """36 kernels, two orders, special values; the two schModes, which share a function, differ in shape here."""
    shape, scalar_shape = ((len(SPECIALS) ** 3,), ()) if key.sch_mode else ((11, 4, len(SPECIALS) ** 2, 1, 1), (1, 1))
    targets = runtimes(model_of(key, dtype, order, (math.prod(shape),) if key.sch_mode else (-1, 4, -1, 1, 1),
                                scalar_shape))
    rng = np.random.default_rng([key.sch_mode, *map(ord, dtype + order + key.variant)])
    momenta = MOMENTA[::2] if key.sch_mode else MOMENTA[1::2]
    for momentum, lr in zip(momenta, (0.1, 1.0, -3e-5, math.inf), strict=True):
        before = tensors(rng, math.prod(shape), dtype)
        some = special(dtype)
        for k, column in enumerate(before):
            column[:some[k].size] = some[k][:column.size]
        for target in targets.values():
            assert wrong(target, before, dtype, key._replace(sch_mode=0), order, scalar(lr, dtype),
                         scalar(momentum, dtype), shape, scalar_shape) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_16_bits(dtype):
    """All 65,536 patterns through widening, rounding and the mask, NaN payloads included."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(1)
    before = [rng.permutation(patterns), patterns, rng.permutation(patterns), rng.permutation(patterns)]
    targets = runtimes(model_of(KEYS[3], dtype, "spec", (1 << 16,)))
    for m, target in itertools.product((0.9, 0.0), targets.values()):
        assert wrong(target, before, dtype, KEYS[3], "spec", scalar(1.0, dtype), scalar(m, dtype), (1 << 16,)) == 0


def test_nan_hyperparameters_are_computed():
    before = tensors(np.random.default_rng(2), 64, "float32")
    for runtime in runtimes(graph_onnx.model((64,), dampening=math.nan)).values():
        p, a, s = runtime(feeds_of(before, scalar(0.1, "float32"), scalar(0.9, "float32"), (64,)), "float32")
        assert np.isnan(p.view(np.float32)).all()
        assert np.isnan(a.view(np.float32)).all()
        assert (s == 0).all()


# --- the judge bites -------------------------------------------------------------------------------------------------

def bitten(model, key, order, dtype="float32", momentum=0.9):
    """Whether each runtime's result is told from the right one."""
    before = tensors(np.random.default_rng(3), 3000, dtype)
    found = {wrong(target, before, dtype, key, order, scalar(0.1, dtype), scalar(momentum, dtype), (3000,)) > 0
             for target in runtimes(model).values()}
    assert len(found) == 1
    return found.pop()


def with_body(key, order, change, dtype="float32"):
    """A model whose function body went through `change`, a function of the list of its nodes."""
    model = model_of(key, dtype, order, (3000,))
    (function,) = model.functions
    nodes = change([onnx.NodeProto.FromString(node.SerializeToString()) for node in function.node])
    del function.node[:]
    function.node.extend(nodes)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.variant)
def test_the_other_order_is_told_apart(key):
    """Where the two orders differ at all: in dampening and in Nesterov's step."""
    for order, other in (ORDERS, ORDERS[::-1]):
        assert bitten(model_of(key, "float32", order, (3000,)), key, other) == (key.dampening or key.nesterov)


def test_a_fused_or_regrouped_or_swapped_operation_is_told_apart():
    def swapped(nodes):
        step = next(node for node in nodes if list(node.output) == ["first"])
        step.input[:] = list(step.input)[::-1]
        return nodes

    def half_inside(nodes):
        at = next(k for k, node in enumerate(nodes) if list(node.output) == ["accum_t"])
        nodes[at].output[:] = ["wide"]
        return [*nodes[:at + 1], onnx.helper.make_node("CastLike", ["wide", "accum"], ["narrow"]),
                onnx.helper.make_node("Cast", ["narrow"], ["accum_t"], to=1), *nodes[at + 1:]]

    assert not bitten(with_body(KEYS[1], "spec", list), KEYS[1], "spec")
    assert bitten(with_body(KEYS[1], "spec", swapped), KEYS[1], "spec")
    assert bitten(with_body(KEYS[1], "spec", half_inside, "float16"), KEYS[1], "spec", "float16")


def test_a_lost_mask_is_told_apart():
    def lost(nodes):
        condition = nodes[-1].input[0]
        always = onnx.helper.make_node("Xor", [condition, condition], ["never"])
        nodes[-1].input[:] = ["never"]
        return [*nodes[:-1], always, nodes[-1]]

    for momentum in (0.0, -0.0):
        assert bitten(with_body(KEYS[0], "spec", lost), KEYS[0], "spec", momentum=momentum)
    assert not bitten(with_body(KEYS[0], "spec", lost), KEYS[0], "spec")


def test_a_mask_by_way_of_float32_would_change_nans():
    """Why the mask is an If: Where for 16 bits needs float32, and that makes signalling NaNs quiet."""
    def through_float32(nodes):
        where = [onnx.helper.make_node("Where", ["m_is_zero", kept, "zero"], [f"{name}_wide"])
                 for name, kept in (("accum_out", "a"), ("stat_out", "stat_wide"))]
        back = [onnx.helper.make_node("CastLike", [f"{name}_wide", "accum"], [name]) for name in graph_onnx.OUTPUTS[1:]]
        return [*nodes[:-1], onnx.helper.make_node("Cast", ["stat"], ["stat_wide"], to=1), *where, *back]

    before = tensors(np.random.default_rng(4), 3000, "float16")
    before[2][:] = 0x7C01
    target = OnnxRuntime(with_body(KEYS[0], "spec", through_float32, "float16"))
    lr, m = scalar(0.1, "float16"), scalar(0.0, "float16")
    assert wrong(target, before, "float16", KEYS[0], "spec", lr, m, (3000,)) >= 3000


# --- the functions ---------------------------------------------------------------------------------------------------

def operators(nodes):
    """Types of the operators in a body, branches included."""
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            yield from operators(attribute.g.node)


ARITHMETIC = {"Add", "Sub", "Mul"}


def arithmetic(function):
    return [(node.op_type.lower(), *node.input, *node.output) for node in function.node if node.op_type in ARITHMETIC]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.variant)
def test_a_function(key, order):
    function = graph_onnx.function(key.variant, order)
    assert function == graph_onnx.function(key, order) == graph_onnx.function(key._replace(sch_mode=1), order)
    assert function.domain == "samestep"
    assert function.name == f"SGD_{key.variant}" + ("_ascend950" if order == "ascend950" else "")
    assert tuple(function.input) == INPUTS
    assert tuple(function.output) == graph_onnx.OUTPUTS
    terms = {name for name in ("dampening", "weight_decay") if getattr(key, name)}
    assert set(function.attribute) == terms
    moving = {"Constant", "Cast", "CastLike", "Reshape", "Shape", "ConstantOfShape", "Identity", "Equal", "If"}
    assert set(operators(function.node)) <= ARITHMETIC | moving
    steps = trace.trace(key, order).steps
    assert arithmetic(function) == [(step.operation, step.left, step.right, step.name) for step in steps]


def test_what_onnxruntime_runs_is_kernels_for_these_types(tmp_path):
    """No operator is left that the CPU provider has no kernel for: CastLike has become Cast, and all is float32."""
    for dtype, order, key in itertools.product(NUMPY, ORDERS, KEYS):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        options.log_severity_level = 4
        model = model_of(key, dtype, order, (4, 5))
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        run = onnx.load(options.optimized_model_filepath)
        assert not run.functions
        assert set(operators(run.graph.node)) <= {
            "Cast", "Reshape", "Identity", "Equal", "If", "Add", "Sub", "Mul", "Shape", "ConstantOfShape"}


def test_the_body_is_the_formula(monkeypatch):
    """Another formula gives another body: nothing of the arithmetic is typed in the ONNX code."""
    before = graph_onnx.function("K0")

    def other(p, g, lr, a, m, s, d, wd, one, nesterov, weight_decay, dampening, ascend950):
        doubled = a + a
        return p - doubled, doubled * m

    with monkeypatch.context() as patch:
        trace._trace.cache_clear()
        patch.setattr(formula, "cann", other)
        after = graph_onnx.function("K0")
    trace._trace.cache_clear()
    assert arithmetic(after) == [
        ("add", "a", "a", "doubled"), ("sub", "p", "doubled", "p_out"), ("mul", "doubled", "m", "accum_t")]
    assert before == graph_onnx.function("K0") != after


def test_the_names_of_the_steps_are_those_of_the_formula():
    steps = trace.trace("K3").steps
    assert [step.name for step in steps] == [
        "p_times_wd", "grad", "a_times_m", "accum_t", "first", "grad_times_first", "grad_times_first_times_d",
        "accum_t_2", "step", "p_out"]
    assert (trace.trace("K3").p_out, trace.trace("K3").accum_t) == ("p_out", "accum_t_2")
    assert trace.trace("K0").reads == ("p", "g", "lr", "a", "m")


def test_twelve_functions_stand_in_one_model():
    functions = [graph_onnx.function(key, order) for key in KEYS for order in ORDERS]
    assert len({function.name for function in functions}) == 12
    model = graph_onnx.model((2,))
    del model.functions[:]
    model.functions.extend(functions)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("variant", ["K6", "k0", "", None, 0])
def test_no_such_variant(variant):
    with pytest.raises(ValueError, match="no business variant; there are K0, K1, K2, K3, K4, K5"):
        graph_onnx.function(variant)


def test_no_such_key_or_order():
    with pytest.raises(ValueError, match="nesterov excludes dampening"):
        graph_onnx.function(TilingKey(0, True, False, True))
    with pytest.raises(ContractError) as caught:
        graph_onnx.function("K0", "other")
    assert caught.value.code == "unknown_order"


# --- the model -------------------------------------------------------------------------------------------------------

def test_a_model_has_the_operators_names_shapes_and_attributes():
    model = graph_onnx.model((2, -1, 3), "bfloat16", weight_decay=1e-3, dampening=0.1, learning_rate=(),
                             momentum=(1, 1))
    assert [value.name for value in model.graph.input] == list(INPUTS)
    assert [value.name for value in model.graph.output] == ["parameters_out", "accum_out", "stat_out"]
    dims = {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*model.graph.input, *model.graph.output)}
    assert dims == {name: [2, "dim1", 3] for name in dims} | {"learning_rate": [], "momentum": [1, 1]}
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {onnx.TensorProto.BFLOAT16}
    node = model.graph.node[-1]
    assert (node.domain, node.op_type) == ("samestep", "SGD_K3")
    given = {attribute.name: attribute.f for attribute in node.attribute}
    assert given == {"dampening": float(np.float32(0.1)), "weight_decay": float(np.float32(1e-3))}
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 16, "samestep": 1}


def test_attributes_are_float32_first():
    (node,) = graph_onnx.model((2,), weight_decay=1e-50, dampening=1e-50, nesterov=True).graph.node
    assert (node.op_type, len(node.attribute)) == ("SGD_K5", 0)


REFUSED = [
    ({"shape": ()}, "rank_out_of_range"), ({"shape": (1,) * 9}, "rank_out_of_range"),
    ({"shape": (2, 0)}, "null_input"), ({"shape": (-2,)}, "rank_out_of_range"), ({"shape": "2"}, "wrong_type"),
    ({"momentum": (2,)}, "scalar_shape"), ({"learning_rate": (0,)}, "scalar_shape"),
    ({"momentum": (-2,)}, "rank_out_of_range"), ({"dtype": "float64"}, "unsupported_dtype"),
    ({"weight_decay": -1}, "attribute_value_out_of_range"), ({"dampening": "1"}, "wrong_type"),
    ({"weight_decay": math.nan}, "attribute_value_out_of_range"), ({"order": "none"}, "unknown_order"),
    ({"dampening": 0.1, "nesterov": True}, "attribute_value_out_of_range"),
]


@pytest.mark.parametrize(("changed", "code"), REFUSED, ids=str)
def test_a_model_refuses_what_the_operator_refuses(changed, code):
    with pytest.raises(ContractError) as caught:
        graph_onnx.model(**({"shape": (2, 3)} | changed))
    assert caught.value.code == code


def test_without_onnx_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'samestep\[graph\]'"):
        graph_onnx.function("K0")


# --- shapes that are known only at run time --------------------------------------------------------------------------

DYNAMIC = {rank: runtimes(graph_onnx.model((-1,) * rank)) for rank in (1, 2, 3)}
LENGTHS = st.lists(st.sampled_from([0, 1, 2, 3, 6]), min_size=1, max_size=3).map(tuple)


def feeds_like(**shapes):
    all_shapes = {name: (1,) if name in ("learning_rate", "momentum") else shapes["parameters"] for name in INPUTS}
    return {name: np.ones(shape, np.float32).view(np.uint32) for name, shape in (all_shapes | shapes).items()}


@settings(max_examples=150, deadline=None)
@given(first=LENGTHS, other=LENGTHS, name=st.sampled_from(["gradient", "accum", "stat"]))
def test_shapes_are_compared_at_run_time(first, other, name):
    feeds = feeds_like(**{"parameters": first, name: other})
    for runtime in DYNAMIC[len(first)].values():
        if first == other and 0 not in first:
            assert [output.shape for output in runtime(feeds, "float32")] == [first] * 3
        else:
            with pytest.raises(FAILS):
                runtime(feeds, "float32")


@pytest.mark.parametrize(("first", "other"), [((2, 3), (1, 3)), ((2, 3), (3, 2)), ((1, 3), (2, 3)), ((2, 2), (2,)),
                                              ((6,), (2, 3)), ((1,), (1, 1)), ((2, 0), (2, 0)), ((0,), (0,))], ids=str)
def test_nothing_is_broadcast_or_reshaped(first, other):
    for runtime in DYNAMIC[len(first)].values():
        with pytest.raises(FAILS):
            runtime(feeds_like(parameters=first, stat=other), "float32")


@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
def test_a_scalar_of_two_elements_fails_at_run_time(name):
    model = graph_onnx.model((2,), learning_rate=(-1,), momentum=(-1,))
    for runtime in runtimes(model).values():
        with pytest.raises(FAILS):
            runtime(feeds_like(parameters=(2,), **{name: (2,)}), "float32")
        assert len(runtime(feeds_like(parameters=(2,)), "float32")) == 3


# --- what the documentation says of runtimes -------------------------------------------------------------------------

def test_onnxruntime_keeps_the_sign_of_zero_when_told_not_to_drop_additions():
    """A one-element tensor that is a constant +0 is taken for nothing; with the option in the docs it is added."""
    model = graph_onnx.model((1,))
    zero = onnx.helper.make_tensor("gradient", onnx.TensorProto.FLOAT, [1], [0.0])
    model.graph.initializer.append(zero)
    model.graph.input.remove(next(value for value in model.graph.input if value.name == "gradient"))
    minus = np.array([-0.0], np.float32).view(np.uint32)
    before = [minus, np.zeros(1, np.uint32), minus, minus]
    lr, m = scalar(0.1, "float32"), scalar(0.9, "float32")
    want = run("reference", before, "float32", KEYS[0], "spec", lr, m)
    feeds = {name: words for name, words in feeds_of(before, lr, m, (1,)).items() if name != "gradient"}
    told = OnnxRuntime(model, disabled=["NoopElimination"])
    for target in (told, OnnxRuntime(model, optimised=False), Evaluator(model)):
        assert [int(words[0]) for words in target(feeds, "float32")] == [int(want[k][0]) for k in (0, 2, 3)]


def frozen(model, constants, dtype):
    """The model with some of its inputs made constants."""
    again = onnx.ModelProto.FromString(model.SerializeToString())
    kept = [value for value in again.graph.input if value.name not in constants]
    del again.graph.input[:]
    again.graph.input.extend(kept)
    again.graph.initializer.extend(
        onnx.helper.make_tensor(name, element_type(dtype), words.shape, words.tobytes(), raw=True)
        for name, words in constants.items())
    return again


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("names", [("momentum",), ("learning_rate",), ("learning_rate", "momentum"), ("parameters",),
                                   ("gradient",), ("accum",), ("stat",)], ids=str)
def test_no_optimisation_for_constants_changes_bits_with_that_option(names, dtype):
    """Constants are what onnxruntime folds, drops and fuses; one element each, where most of its rewrites apply."""
    for key, order, value in itertools.product(KEYS, ORDERS, (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, 1e-45, 0.5)):
        constants = dict.fromkeys(names, scalar(value, dtype).view(BITS[dtype]))
        model = frozen(model_of(key, dtype, order, (1,)), constants, dtype)
        target = OnnxRuntime(model, disabled=["NoopElimination"])
        for momentum, other in itertools.product((0.9, 0.0), (-0.0, 1.0)):
            feeds = {name: scalar(other, dtype).view(BITS[dtype]) for name in INPUTS}
            feeds |= {"momentum": scalar(momentum, dtype).view(BITS[dtype])} | constants
            before = [feeds[name] for name in ("parameters", "gradient", "accum", "stat")]
            lr, m = (feeds[name].view(NUMPY[dtype]) for name in ("learning_rate", "momentum"))
            want = run("reference", before, dtype, key, order, lr, m)
            p, a, s = target({name: words for name, words in feeds.items() if name not in names}, dtype)
            assert differing(want, [p, before[1], a, s], dtype, masked=float(m[0]) == 0) == 0
