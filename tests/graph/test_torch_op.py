"""`torch.ops.samestep.sgd_`: the operator as a node of torch's graphs, with its rules, refusals and bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import samestep
from compiled_pair import backends, inductor
from graph.host_cases import CASES, UNKNOWN_RANK, Case
from samestep import torch_ops
from suite import KERNELS, MOMENTA, NUMPY, attributes, scalar, tensors
from torch_suite import differing, same_bits

pytestmark = [
    # Inductor itself scripts a function when it is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    # torch.export copies tree specifications in a way that torch deprecates.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]
OPERATOR = torch.ops.samestep.sgd_
WRITTEN = (0, 3, 5)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def draw(*shape, dtype=torch.float32):
    """The six inputs."""
    lr, m = torch.tensor(0.1, dtype=dtype), torch.tensor([0.9], dtype=dtype)
    p, g, a = (torch.randn(*shape).to(dtype) for _ in range(3))
    return [p, g, lr, a, m, torch.rand(*shape).to(dtype)]


def copies(given):
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in given]


def act(p, g, lr, a, m, s):
    """The operator between others that make its gradient and read what it writes, before it and after."""
    before = p + a
    OPERATOR(p, g * 2, lr, a, m, s, dampening=0.3, weight_decay=0.1)
    return before, p + s, a * 2


class Act(torch.nn.Module):
    def forward(self, *given):
        return act(*given)


def check(function, *shape, times=1):
    """`function` against `act`: same results, same bits in the inputs, which the reference is `samestep.sgd_` for."""
    for _ in range(times):
        given = draw(*shape)
        found = copies(given)
        expected = (given[0] + given[3],)
        samestep.sgd_(given[0], given[1] * 2, *given[2:], dampening=0.3, weight_decay=0.1)
        expected += (given[0] + given[5], given[3] * 2)
        assert differing(expected, function(*found)) == 0
        assert all(map(same_bits, given, found))


# --- what is refused, and when ---------------------------------------------------------------------------------------

def outcome(call):
    """(code, input) of what `call` refuses, with None for a call that is accepted."""
    try:
        call()
    except samestep.ContractError as error:
        return error.code, error.input
    return None, None


def fake(shape, dtype):
    """A tensor of the active FakeTensorMode; each -1 is a length that is not known at all."""
    environment = torch._guards.detect_fake_mode().shape_env
    lengths = [environment.create_unbacked_symint() if dim == -1 else dim for dim in shape]
    return torch.empty(lengths, dtype=getattr(torch, dtype))


HOST_CASES = [case for case in CASES if UNKNOWN_RANK not in case.shapes]  # a tensor of torch has a rank
STATIC = [case for case in CASES if case.static]


def test_the_table_is_nearly_all_of_use_here():
    assert len(HOST_CASES) > 0.95 * len(CASES)
    assert len(STATIC) < len(HOST_CASES)


@pytest.mark.parametrize("case", HOST_CASES, ids=lambda case: case.name)
def test_host_cases_while_tracing(case: Case):
    with FakeTensorMode(shape_env=ShapeEnv()):
        given = [fake(shape, dtype) for shape, dtype in zip(case.shapes, case.dtypes, strict=True)]
        result = []
        assert outcome(lambda: result.append(torch_ops.sgd_(*given, **case.attributes))) == (case.code, case.input)
    if case.accepted:
        assert result[0] is given[0]  # so of the shape and dtype of case.output
        known = tuple(dim if isinstance(dim, int) else -1 for dim in result[0].shape)
        assert (known, str(result[0].dtype)) == (case.output[0], f"torch.{case.output[1]}")


@pytest.mark.parametrize("case", STATIC, ids=lambda case: case.name)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_host_cases_on_tensors(case: Case, device):
    given = [torch.ones(shape, dtype=getattr(torch, dtype), device=device)
             for shape, dtype in zip(case.shapes, case.dtypes, strict=True)]
    assert outcome(lambda: OPERATOR(*given, **case.attributes)) == (case.code, case.input)


@pytest.mark.parametrize("case", STATIC, ids=lambda case: case.name)
def test_host_cases_with_symbols_for_lengths(case: Case):
    """A graph of dynamic lengths is refused by those of its example."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    given = []
    for name, shape, dtype in zip(samestep.contract.INPUTS, case.shapes, case.dtypes, strict=True):
        context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
        x = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        given.append(mode.from_tensor(x, source=ConstantSource(name), symbolic_context=context))
    lengths = [dim for x in given for dim in x.shape]
    assert any(isinstance(dim, torch.SymInt) for dim in lengths) or max(lengths) < 2
    with mode:
        assert outcome(lambda: OPERATOR(*given, **case.attributes)) == (case.code, case.input)


def changed(**change):
    return [change.get(name, x) for name, x in zip(samestep.contract.INPUTS, draw(4, 3), strict=True)]


def one_tensor_twice():
    given = draw(4, 3)
    return [*given[:5], given[3]]


def overlapping():
    base = torch.randn(20)
    return changed(parameters=base[:12].view(4, 3), accum=base[8:].view(4, 3))


REFUSED = {
    "strided gradient": (lambda: changed(gradient=torch.randn(3, 4).t()), {}, "not_contiguous", "gradient"),
    "expanded stat": (lambda: changed(stat=torch.ones(3).expand(4, 3)), {}, "not_contiguous", "stat"),
    "sparse gradient": (lambda: changed(gradient=torch.ones(4, 3).to_sparse()), {}, "wrong_type", "gradient"),
    "negated gradient": (lambda: changed(gradient=torch._neg_view(torch.randn(4, 3))), {}, "wrong_type", "gradient"),
    "negated accum": (lambda: changed(accum=torch._neg_view(torch.randn(4, 3))), {}, "wrong_type", "accum"),
    "one tensor twice": (one_tensor_twice, {}, "overlap", "stat"),
    "overlapping views": (overlapping, {}, "overlap", "accum"),
    "order": (lambda: draw(4, 3), {"order": "fast"}, "unknown_order", "order"),
    "order before shape": (lambda: draw(0), {"order": "fast"}, "unknown_order", "order"),
    "shape before attribute": (lambda: changed(stat=torch.ones(4)), {"weight_decay": -1.0}, "shape_mismatch", "stat"),
    "attribute before overlap": (overlapping, {"weight_decay": -1.0}, "attribute_value_out_of_range", "weight_decay"),
}


@pytest.mark.parametrize(("make", "settings", "code", "name"), REFUSED.values(), ids=REFUSED)
def test_refused_by_a_call_and_while_tracing(make, settings, code, name):
    given = make()
    before = [x.to_dense().resolve_neg().clone() for x in given]
    assert outcome(lambda: OPERATOR(*given, **settings)) == (code, name)
    assert all(map(same_bits, before, [x.to_dense().resolve_neg() for x in given]))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    faked = [mode.from_tensor(x) for x in given]
    with mode:
        assert outcome(lambda: OPERATOR(*faked, **settings)) == (code, name)


def test_views_of_one_tensor_that_share_nothing_are_accepted_while_tracing():
    with FakeTensorMode():
        base = torch.randn(4, 4, 3)
        scalars = torch.ones(2)
        OPERATOR(base[0], base[1], scalars[0], base[2], scalars[0], base[3])


def test_another_device_is_refused_while_tracing():
    with FakeTensorMode() as mode:
        given = [FakeTensor(mode, x, torch.device("cuda:0")) for x in torch.empty(6, 4, 3, device="meta")]
        given[2], given[4] = torch.ones(()), torch.ones(())
        assert outcome(lambda: OPERATOR(*given)) == ("unsupported_device", "parameters")


@pytest.mark.parametrize("k", range(6))
def test_a_tensor_without_data_among_others_is_refused(k):
    given = draw(4, 3)
    given[k] = given[k].to("meta")
    assert outcome(lambda: OPERATOR(*given)) == ("unsupported_device", samestep.contract.INPUTS[k])


def test_what_is_no_tensor_is_refused_by_the_wrapper():
    for k, bad in ((0, np.ones((4, 3), np.float32)), (1, 0.5), (2, True), (4, np.ones(1, np.float32)), (5, None)):
        given = draw(4, 3)
        given[k] = bad
        assert outcome(lambda given=given: torch_ops.sgd_(*given)) == ("wrong_type", samestep.contract.INPUTS[k])


@backends
def test_a_compiled_call_says_why_it_is_refused(backend):
    given = changed(stat=torch.ones(3, 4))
    message = r"ContractError\('shape_mismatch', 'stat', 'shape \(3, 4\)', '\(4, 3\)"
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
        torch.compile(act, backend=backend, fullgraph=True)(*given)


def test_an_export_is_refused_with_the_error_itself():
    with pytest.raises(samestep.ContractError, match=r"stat: got shape \(3, 4\).*\[shape_mismatch\]"):
        torch.export.export(Act(), tuple(changed(stat=torch.ones(3, 4))))


# --- every kind of graph ---------------------------------------------------------------------------------------------

@backends
def test_compiled(backend):
    check(torch.compile(act, backend=backend, fullgraph=True), 33, 5, times=2)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    graph = make_fx(act, tracing_mode=mode)(*draw(4, 3))
    assert [node.target for node in graph.graph.nodes].count(OPERATOR.default) == 1
    check(graph, 4, 3)
    if mode == "symbolic":
        check(graph, 7, 5)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    program = torch.export.export(Act(), tuple(draw(4, 3)), strict=strict)
    assert [node.target for node in program.graph.nodes].count(OPERATOR.default) == 1
    check(program.module(), 4, 3)
    functional = program.run_decompositions()
    targets = [node.target for node in functional.graph.nodes]
    assert OPERATOR.default not in targets
    assert torch.ops.higher_order.auto_functionalized_v2 in targets
    check(functional.module(), 4, 3)


def test_the_operator_declares_what_it_does():
    torch.library.opcheck(OPERATOR.default, draw(4, 3, dtype=torch.bfloat16), {"nesterov": True, "weight_decay": 0.1})
    torch.library.opcheck(OPERATOR.default, draw(4, dtype=torch.float16), {"dampening": 0.1, "order": "ascend950"})
    given = draw(4, 3)
    for k in WRITTEN:
        given[k].requires_grad_(True)
    torch.library.opcheck(OPERATOR.default, given)
    torch.library.opcheck(torch.ops.samestep.number.default, (torch.tensor(0.1, dtype=torch.float64), given[0]))


def batch_of_kernels():
    """Every kernel of the operator: inputs of special values and any bits, and the attributes that select it."""
    rng = np.random.default_rng(0)
    found = []
    for dtype, order, key in KERNELS:
        p, g, a, s = (torch.from_numpy(x).view(getattr(torch, dtype)) for x in tensors(rng, 203, dtype))
        lr, m = (torch.from_numpy(np.atleast_1d(scalar(value, "float32"))).to(p.dtype) for value in (0.1, 0.9))
        found.append(([p, g, lr, a, m, s], {**attributes(key)._asdict(), "order": order}))
    assert {dtype for dtype, *_ in KERNELS} == set(NUMPY)
    return found


@backends
def test_every_kernel_has_the_bits_of_the_operator_in_one_graph(backend):
    kernels = batch_of_kernels()
    assert len(kernels) == 36

    def act(sets):
        for (given, settings) in zip(sets, (settings for _, settings in kernels), strict=True):
            OPERATOR(*given, **settings)

    compiled = torch.compile(act, backend=backend, fullgraph=True)
    for momentum in MOMENTA:
        expected = [copies(given) for given, _ in kernels]
        for given in expected:
            given[4].fill_(momentum)
        found = [copies(given) for given in expected]
        for given, (_, settings) in zip(expected, kernels, strict=True):
            samestep.sgd_(*given, **settings)
        compiled(found)
        for one, other in zip(expected, found, strict=True):
            for k, (x, y) in enumerate(zip(one, other, strict=True)):
                computed = k == 0 or (k in WRITTEN and momentum != 0)
                assert differing([x], [y]) == 0 if computed else same_bits(x, y)


@backends
def test_parameters_that_are_views_of_one_flat_tensor(backend):
    def act(flat, gradients, accum, stat, lr, m):
        OPERATOR(flat[:12].view(4, 3), gradients[:12].view(4, 3), lr, accum[:12].view(4, 3), m, stat[:12].view(4, 3))
        OPERATOR(flat[12:], gradients[12:], lr, accum[12:], m, stat[12:])
        return flat * 2

    flat, gradients, lr, accum, m, stat = draw(20)
    given = [flat, gradients, accum, stat, lr, m]
    found = copies(given)
    samestep.sgd_(flat, gradients, lr, accum, m, stat)
    assert same_bits(torch.compile(act, backend=backend, fullgraph=True)(*found), flat * 2)
    assert all(map(same_bits, given, found))


# --- lengths that are not known --------------------------------------------------------------------------------------

def test_a_graph_of_dynamic_lengths_is_compiled_once():
    counter = CompileCounter()
    compiled = torch.compile(act, backend=counter, fullgraph=True)
    for n in (4, 7, 33):
        given = draw(n, 3)
        for k in (0, 1, 3, 5):
            torch._dynamo.mark_dynamic(given[k], 0)
        found = [*given]
        expected = act(*copies(given))
        assert differing(expected, compiled(*found)) == 0
    assert counter.frame_count == 1


def test_a_dynamic_length_that_has_to_equal_a_known_one_is_said_to_be_no_dynamic_one():
    def only(p, g, lr, a, m, s):
        OPERATOR(p, g, lr, a, m, s)

    given = draw(4, 3)
    torch._dynamo.mark_dynamic(given[0], 0)
    with pytest.raises(ConstraintViolationError, match=r"marked L\['p'\].* as dynamic"):
        torch.compile(only, backend="eager", fullgraph=True)(*given)


def test_an_export_for_any_length():
    n = torch.export.Dim("n")
    shapes = tuple({0: n} if k in (0, 1, 3, 5) else None for k in range(6))
    program = torch.export.export(Act(), tuple(draw(4, 3)), dynamic_shapes=(shapes,))
    check(program.module(), 7, 3)
    check(program.run_decompositions().module(), 9, 3)


def test_two_lengths_of_an_export_that_have_to_be_equal():
    shapes = tuple({0: torch.export.Dim("m" if k == 3 else "n")} if k in (0, 1, 3, 5) else None for k in range(6))
    with pytest.raises(torch._dynamo.exc.UserError, match=r"(m = n|n = m)"):
        torch.export.export(Act(), tuple(draw(4, 3)), dynamic_shapes=(shapes,))


@pytest.mark.parametrize("strict", [False, True])
def test_a_length_that_depends_on_data(strict):
    class Chosen(torch.nn.Module):
        def forward(self, mask, other, p, lr, m):
            chosen, gradient = p[mask], p[other]
            accum, stat = torch.zeros_like(chosen), torch.ones_like(chosen)
            torch_ops.sgd_(chosen, gradient, lr, accum, m, stat)
            return chosen, accum, stat

    p, lr, m = torch.randn(8, 3), torch.tensor(0.1), torch.tensor(0.9)
    mask = torch.arange(8) % 2 == 0
    program = torch.export.export(Chosen(), (mask, mask.clone(), p, lr, m), strict=strict).module()
    for mask in (torch.arange(8) < 3, torch.arange(8) > 1):
        assert differing(Chosen()(mask, mask.flip(0), p, lr, m), program(mask, mask.flip(0), p, lr, m)) == 0
    with pytest.raises(samestep.ContractError, match="shape_mismatch"):
        program(torch.arange(8) < 3, torch.arange(8) > 5, p, lr, m)
    with pytest.raises(samestep.ContractError, match="null_input"):
        program(torch.arange(8) > 8, torch.arange(8) > 5, p, lr, m)


# --- numbers, gradients, and samestep.sgd_ itself --------------------------------------------------------------------

# In bfloat16 this is 1 + 2**-7; rounded to float32 first it would be a tie, and 1.
TIE = 1 + 2**-8 + 2**-40
NUMBERS = (0.1, 1, TIE, -TIE, -0.0, 1e-45, 1e-60, 3.4e38, 65519.9, 65520.0, math.inf, math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_rounded_as_the_operator_rounds_them(dtype):
    for value in NUMBERS:
        given = draw(40, dtype=dtype)
        given[2], given[4] = value, 0.25
        found = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
        samestep.sgd_(*given)
        assert torch_ops.sgd_(*found) is found[0]
        assert differing([given[k] for k in WRITTEN], [found[k] for k in WRITTEN]) == 0


def test_a_number_is_rounded_once():
    bfloat16 = torch.ones(1, dtype=torch.bfloat16)
    found = [torch.ops.samestep.number(torch.tensor(x, dtype=torch.float64), bfloat16).item() for x in (TIE, -0.0)]
    assert found[0] == 1 + 2**-7
    assert math.copysign(1, found[1]) == -1
    assert torch.tensor(TIE, dtype=torch.float32).bfloat16().item() == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=[
    *inductor.marks, pytest.mark.exhaustive])])
def test_samestep_sgd_is_the_node_in_what_is_compiled(backend):
    def act(p, g, a, s, lr, momentum):
        samestep.sgd_(p, g * 2, lr, a, momentum, s, nesterov=True, weight_decay=1e-4)
        return p + 1

    counter = CompileCounter() if backend == "eager" else None
    compiled = torch.compile(act, backend=counter or backend, fullgraph=True)
    for k in range(5):  # from the second on, the numbers are symbols of the graph
        p, g, _, a, _, s = draw(33)
        given, found = [p, g, a, s], copies([p, g, a, s])
        lr, momentum = 0.1 / (k + 3), 1 - 0.1 / (k + 3)
        assert same_bits(act(*given, lr, momentum), compiled(*found, lr, momentum))
        assert all(map(same_bits, given, found))
    assert counter is None or counter.frame_count <= 2


def test_samestep_sgd_in_an_export():
    class Direct(torch.nn.Module):
        def forward(self, *given):
            return samestep.sgd_(*given)

    given = draw(4, 3)
    found = copies(given)
    torch.export.export(Direct(), tuple(given), strict=True).module()(*found)
    samestep.sgd_(*given)
    assert all(map(same_bits, given, found))
    with pytest.raises(samestep.ContractError, match="wrong_type"):  # traced with stand-ins, not by dynamo
        torch.export.export(Direct(), tuple(given), strict=False)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
def test_what_a_graph_cannot_hold_is_left_to_the_eager_call():
    def act(p, g, lr, a, m, s, engine):
        samestep.sgd_(p, g, lr, a, m, s, engine=engine)
        return a + 1

    given = draw(5)
    found = copies(given)
    assert same_bits(act(*given, "reference"), torch.compile(act, backend="eager")(*found, "reference"))
    assert all(map(same_bits, given, found))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(act, backend="eager", fullgraph=True)(*found, "reference")
    arrays = [x.numpy().copy() for x in given]
    act(*given, None)
    torch.compile(act, backend="eager")(*arrays, None)
    assert all(same_bits(x, torch.from_numpy(y)) for x, y in zip(given, arrays, strict=True))


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_parameters_that_require_gradients(backend):
    """As with `samestep.sgd_`: written in place, no derivative, and a backward that needs the old values notices."""
    given = draw(4, 3)
    given[0].requires_grad_(True)
    expected, found = copies(given), copies(given)
    samestep.sgd_(*expected)
    call = torch.compile(torch_ops.sgd_, backend=backend, fullgraph=True) if backend else torch_ops.sgd_
    product = (found[0] * found[0]).sum()
    versions = [found[k]._version for k in WRITTEN]
    call(*found)
    assert all(map(same_bits, expected, found))
    assert found[0].is_leaf and found[0].requires_grad and found[0].grad_fn is None
    assert all(found[k]._version > version for k, version in zip(WRITTEN, versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_inference_mode_and_vmap():
    with torch.inference_mode():
        check(act, 4, 3)
    given = draw(4, 3)
    before = copies(given)
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.vmap(OPERATOR, in_dims=(0, 0, None, 0, None, 0))(*given)
    assert all(map(same_bits, before, given))
