"""The quick way through `sgd_`: taken where all is plain, with the ordinary way's bits, never in a refusal's place."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import struct
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import environments
import samestep
import suite
from samestep import dlpack
from samestep.contract import DTYPES, INPUTS
from samestep.engine import plain_call, quick
from samestep.engine.cpu import ONE_BLOCK
from samestep.rounding import round_number
from samestep.verify.suite.refusals import refusals

WRITTEN = ("parameters", "accum", "stat")
SCALARS = ("learning_rate", "momentum")
FORMATS = {"float32": (32, 24, -149), "float16": (16, 11, -24), "bfloat16": (16, 8, -133)}
PLAIN = {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "order": "spec", "engine": None}
KINDS = ("numpy", "torch")
DONE = {"numpy": True, "torch": None}  # what quick.step answers


@pytest.fixture(scope="module", autouse=True)
def known():
    """All kernels, and both kinds of tensors, have been met."""
    for dtype, order, key in suite.KERNELS:
        samestep.sgd_(**usual(dtype), **suite.attributes(key)._asdict(), order=order)
    samestep.sgd_(**usual("float32", kind="torch"))
    assert quick.step is not quick._nothing


def usual(dtype="float32", shape=(2, 3), kind="numpy", seed=0):
    """Tensors of moderate numbers."""
    rng = np.random.default_rng(seed)
    tensors = {name: rng.standard_normal((1,) if name in SCALARS else shape).astype(suite.NUMPY[dtype])
               for name in INPUTS}
    return {name: of_kind(x, kind) for name, x in tensors.items()}


def of_kind(x, kind):
    """The same memory as a torch tensor."""
    if kind == "numpy" or not isinstance(x, np.ndarray):
        return x
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def bits(x):
    if isinstance(x, torch.Tensor):
        return x.detach().clone().flatten().view(torch.uint8).numpy().tobytes()
    return x.tobytes() if isinstance(x, np.ndarray) else b""


def ask(tensors, **attributes):
    """The compiled function's own answer."""
    return quick.step(*tensors.values(), *(PLAIN | attributes).values())


@contextlib.contextmanager
def switched_off():
    before, quick.step = quick.step, lambda *arguments: False
    try:
        yield
    finally:
        quick.step = before


def ordinarily(tensors, **attributes):
    with switched_off():
        samestep.sgd_(*tensors.values(), **attributes)


def refused(tensors, attributes):
    """The code and the sentence with which `sgd_` refuses, or None."""
    try:
        samestep.sgd_(*tensors.values(), **attributes)
    except samestep.ContractError as error:
        return error.code, str(error)
    return None


def check_both_ways(make, kind, **attributes):
    """`make()` twice: one goes the quick way, and the bits are those of the other."""
    one, other = make(), make()
    assert ask(one, **attributes) is DONE[kind]
    ordinarily(other, **attributes)
    assert_equal(one, other)
    return one


def assert_equal(one, other):
    """Rule O9: all bits, but which NaN a computed NaN is."""
    for x, y in zip(map(bits, one.values()), map(bits, other.values()), strict=True):
        assert x == y or words(x, one) == words(y, one)


def words(memory, tensors):
    dtype = str(tensors["parameters"].dtype).removeprefix("torch.")
    found = np.frombuffer(memory, suite.BITS[dtype]).copy()
    found[suite.is_nan(found, dtype)] = 0xFFFF
    return found.tobytes()


# --- what is taken has the ordinary way's bits ------------------------------------------------------------------------

LENGTHS = (1, 2, 15, 64, 67, 2049, 5000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_bits(dtype, order, key, kind):
    rng = np.random.default_rng(3)
    attributes = suite.attributes(key)._asdict()
    for length, momentum in zip(itertools.cycle(LENGTHS), suite.MOMENTA, strict=False):
        columns = suite.tensors(rng, length, dtype)
        for as_number in itertools.product((False, True), repeat=2):
            def make(columns=columns, as_number=as_number, momentum=momentum):
                p, g, a, s = (of_kind(c.copy().view(suite.NUMPY[dtype]), kind) for c in columns)
                lr, m = (x if plain else of_kind(suite.scalar(x, dtype), kind)
                         for x, plain in zip((0.1, momentum), as_number, strict=True))
                return dict(zip(INPUTS, (p, g, lr, a, m, s), strict=True))
            after = check_both_ways(make, kind, order=order, **attributes)
            if momentum == 0:  # rule O6: not a byte
                assert [bits(after["accum"]), bits(after["stat"])] == [columns[2].tobytes(), columns[3].tobytes()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_and_attributes_that_rounding_decides(dtype, kind):
    """Around the least float32 a weight decay is there or not; numbers are rounded to the tensors' dtype."""
    edges = [0, 0.0, -0.0, 2.0**-150, math.nextafter(2.0**-150, 1), 2.0**-149, 5e-324, 1e-40, 1e300, math.inf]
    for number in [*edges, math.nan, -math.inf, 65520.0, 65519.9, 1 + 2.0**-8, 1 + 2.0**-9 + 2.0**-40, -2.0**-25]:
        for name in SCALARS:
            check_both_ways(lambda name=name, number=number: usual(dtype, kind=kind) | {name: number}, kind)
    for number in [*edges, -1e-50]:
        check_both_ways(lambda: usual(dtype, kind=kind), kind, weight_decay=number)
    for number in [*edges, -1.0, -(2.0**-149), math.nan]:
        check_both_ways(lambda: usual(dtype, kind=kind), kind, dampening=number)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind):
    for rank in range(1, 9):
        for shape in ((1,) * rank, (2,) * rank, (*(1,) * (rank - 1), 7), (3, *(1,) * (rank - 1))):
            check_both_ways(lambda shape=shape: usual("float32", shape, kind), kind)
    for rank in range(9):
        for name in SCALARS:
            scalar = np.full((1,) * rank, 0.25, np.float32)
            check_both_ways(lambda name=name, scalar=scalar: usual(kind=kind) | {name: of_kind(scalar, kind)}, kind)
    check_both_ways(lambda: usual("bfloat16", (ONE_BLOCK - 1,), kind), kind)


def test_the_rest_that_is_taken():
    rate = np.full(1, 0.5, np.float32)
    check_both_ways(lambda: usual() | {"learning_rate": rate, "momentum": rate}, "numpy", engine="cpu")
    gradient = np.arange(6, dtype=np.float32).reshape(2, 3)
    gradient.flags.writeable = False
    check_both_ways(lambda: usual() | {"gradient": gradient, "momentum": gradient[:1, :1]}, "numpy")  # both only read
    memory = [np.arange(20, dtype=np.float32) for _ in range(2)]
    views = [dict(zip(INPUTS, (x[:3], x[3:6], x[6:7], x[7:10], x[10:11], x[11:14]), strict=True)) for x in memory]
    check_both_ways(views.pop, "numpy")  # neighbours share nothing
    assert memory[0].tobytes() == memory[1].tobytes()
    assert memory[0][14:].tolist() == [14, 15, 16, 17, 18, 19]
    check_both_ways(lambda: {k: torch.nn.Parameter(x) for k, x in usual(kind="torch").items()}, "torch")
    check_both_ways(lambda: {k: x.requires_grad_().clone() for k, x in usual(kind="torch").items()}, "torch")
    whole = torch.zeros(3, 4, 3)
    check_both_ways(lambda: usual("float32", (4, 3), "torch") | {"gradient": whole[2]}, "torch")
    dense = torch.ones(7).as_strided((1, 3), (77, 1))
    check_both_ways(lambda: usual("float32", (1, 3), "torch") | {"gradient": dense}, "torch")


FTZ = 0x8040 if environments.os.uname().machine == "x86_64" else 1 << 24


@pytest.mark.parametrize("kind", KINDS)
def test_the_callers_floating_point_environment_does_not_matter(kind):
    rng = np.random.default_rng(5)
    columns = [column & np.uint32(0x80FFFFFF) for column in suite.tensors(rng, 500, "float32")]  # many subnormals
    results = []
    for change in (0, FTZ, 0x6000):
        p, g, a, s = (of_kind(c.copy().view(np.float32), kind) for c in columns)
        before = environments.read_register()
        environments.write_register(before | change)
        inside = environments.read_register()
        try:
            done = ask(dict(zip(INPUTS, (p, g, 0.1, a, 0.9, s), strict=True)), dampening=0.1, weight_decay=1e-40)
            after = environments.read_register()
        finally:
            environments.write_register(before)
        assert (inside ^ after) & ~environments.STICKY == 0
        assert done is DONE[kind]
        results.append(list(map(bits, (p, a, s))))
    assert results[0] == results[1] == results[2]


def test_many_threads_at_once():
    """Small updates under the GIL, larger ones without."""
    wanted, results = {}, []
    for length in (10, 50_000):
        tensors = usual("float32", (length,))
        ordinarily(tensors)
        wanted[length] = list(map(bits, tensors.values()))

    def work():
        for length in (10, 50_000) * 20:
            tensors = usual("float32", (length,))
            results.append(ask(tensors) is True and list(map(bits, tensors.values())) == wanted[length])

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [True] * 240


@given(st.integers(0, 2**64 - 1) | st.floats().map(lambda x: struct.unpack("Q", struct.pack("d", x))[0])
       | st.builds(lambda a, b, c: struct.unpack("Q", struct.pack("d", (1 + a * 2.0**-b) * 2.0**c))[0],
                   st.integers(0, 2**12), st.integers(8, 26), st.integers(-160, 130)))
@settings(max_examples=1000, deadline=None)
def test_the_compiled_rounding_is_the_other(word):
    value = struct.unpack("d", struct.pack("Q", word))[0]
    for dtype in DTYPES:
        got = plain_call.rounded(word - (word >> 63 << 64), *FORMATS[dtype])
        assert got == round_number(value, dtype)[1], (value, dtype)


# --- what is not taken ------------------------------------------------------------------------------------------------

REFUSALS = list(refusals("cann"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_refusal_of_the_suite_one_step_from_plain(kind):
    """Nothing is taken, nothing written, and the error is the ordinary way's."""
    count = 0
    for refusal in REFUSALS:
        tensors, attributes = refusal.make()
        if kind == "torch" and "read-only" in refusal.name:
            continue  # torch has no such tensors
        named = {name: of_kind(x, kind) for name, x in zip(INPUTS, tensors, strict=True)}
        before = [x.tobytes() for x in tensors]
        assert ask(named, **attributes) is False, refusal.name
        error = refused(named, attributes)
        with switched_off():
            assert error == refused(named, attributes)
        assert error is not None
        assert error[0] == refusal.code, refusal.name
        assert [x.tobytes() for x in tensors] == before
        count += 1
    assert count > 150
    assert ask(usual(kind=kind)) is DONE[kind]  # what they were one step from


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "int32", "int16", "uint8", "bool", "complex64", "int64"])
def test_one_dtype_for_all_but_another(dtype, kind):
    tensors = {name: of_kind(np.ones(1 if name in SCALARS else (2, 3), dtype), kind) for name in INPUTS}
    for change in ({}, {"learning_rate": 0.5, "momentum": 0.5}):
        before = list(map(bits, tensors.values()))
        assert ask(tensors | change) is False
        assert refused(tensors | change, {})[0] == "unsupported_dtype"
        assert list(map(bits, tensors.values())) == before


class Equal:
    """Equal to a plain attribute, and of its hash."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other

    def __hash__(self):
        return hash(self.value)


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_only_equal_plain_ones(kind):
    refusable = [("nesterov", 0), ("nesterov", 0.0), ("nesterov", None), ("nesterov", Equal(False)),
                 *((name, value) for name in ("dampening", "weight_decay")
                   for value in (False, True, None, "0", Equal(0.0), [], 0j)),
                 ("order", Equal("spec")), ("order", None), ("engine", Equal("cpu")), ("engine", 0),
                 ("weight_decay", -(2.0**-149)), ("weight_decay", math.nan), ("weight_decay", -math.inf)]
    for name, value in refusable:
        tensors = usual(kind=kind)
        assert ask(tensors, **{name: value}) is False, (name, value)
        assert refused(tensors, {name: value}) is not None, (name, value)
    others = [("nesterov", np.False_), ("dampening", 1), ("dampening", np.float64(0.5)), ("dampening", np.float32(0.5)),
              ("weight_decay", 1), ("weight_decay", Number(0.5)),
              ("order", Text("spec")), ("order", "".join(["sp", "ec"])), ("engine", "reference"),
              ("engine", "".join(["c", "pu"]))]
    for name, value in others:
        one, other = usual(kind=kind), usual(kind=kind)
        assert ask(one, **{name: value}) is False, (name, value)
        samestep.sgd_(**one, **{name: value})
        ordinarily(other, **{name: value})
        assert_equal(one, other)


def test_numbers_that_are_not_plain():
    for name in SCALARS:
        for value in (1, -3, 10**400, np.float64(0.5), np.float32(0.5), Number(0.5)):
            one, other = (usual() | {name: value} for _ in range(2))
            assert ask(one) is False
            samestep.sgd_(**one)
            ordinarily(other)
            assert_equal(one, other)
        for value in (True, False, None, "0.5", np.float16(0.5), [0.5], 1j):
            tensors = usual() | {name: value}
            assert ask(tensors) is False
            assert refused(tensors, {}) is not None, value
    for name in ("parameters", "gradient", "accum", "stat"):
        assert refused(usual() | {name: 0.5}, {}) is not None
        assert ask(usual() | {name: 0}) is False


def unaligned(x):
    buffer = bytearray(x.nbytes + 1)
    view = np.frombuffer(buffer, x.dtype, x.size, 1).reshape(x.shape)
    view[:] = x
    return view


def with_metadata(x):
    return x.view(np.dtype(x.dtype, metadata={"unit": "m"}))


UNPLAIN = {
    "unaligned": unaligned, "metadata": with_metadata, "DLPack": lambda x: DLPackOnly(torch.from_numpy(x.copy())),
    "torch": lambda x: torch.from_numpy(x.copy()), "memmap": lambda x: np.memmap.__new__(np.memmap, "", shape=x.shape),
}


class DLPackOnly:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("what", ["unaligned", "metadata", "DLPack", "torch", "memmap"])
@pytest.mark.parametrize("name", INPUTS)
def test_arrays_that_are_not_plain_are_updated_all_the_same(name, what, tmp_path):
    def changed(tensors):
        if what == "memmap":
            x = np.memmap(tmp_path / "x", np.float32, "w+", shape=tensors[name].shape)
            x[:] = tensors[name]
        else:
            x = UNPLAIN[what](tensors[name])
        return tensors | {name: x}

    one, other = changed(usual()), usual()
    assert ask(one) is False
    samestep.sgd_(**one)
    ordinarily(other)
    one[name] = getattr(one[name], "tensor", one[name])
    assert list(map(bits, map(np.asarray, one.values()))) == list(map(bits, other.values()))


def test_arrays_that_are_refused():
    class Own(np.ndarray):
        pass

    changes = [lambda x: x.view(Own), lambda x: x.astype(x.dtype.newbyteorder()), lambda x: x.view(np.uint32),
               lambda x: x.tolist(), np.ma.array, lambda x: np.empty(x.shape, object), lambda x: None,
               lambda x: np.empty(x.shape, [("a", np.float32)])]
    for name in INPUTS:
        for change in changes:
            tensors = usual()
            tensors[name] = change(tensors[name])
            assert ask(tensors) is False
            assert refused(tensors, {}) is not None


def test_overlap_is_exactly_what_the_rule_says():
    """Six pieces of one buffer at random places: refused if one that is written meets another, and taken if not."""
    random.seed(0)
    taken = 0
    for _ in range(3000):
        buffer = np.arange(1, 41, dtype=np.float32)
        lengths = [1 if name in SCALARS else 3 for name in INPUTS]
        starts = [random.randrange(37) for _ in INPUTS]
        if random.random() < 0.3:
            starts[4] = starts[2]
        tensors = {n: buffer[k:k + length] for n, k, length in zip(INPUTS, starts, lengths, strict=True)}
        spans = [set(range(k, k + length)) for k, length in zip(starts, lengths, strict=True)]
        meet = any(spans[i] & spans[k] and (INPUTS[i] in WRITTEN or INPUTS[k] in WRITTEN)
                   for i, k in itertools.combinations(range(6), 2))
        before = buffer.tobytes()
        assert ask(tensors) is not meet
        if meet:
            assert buffer.tobytes() == before
            assert (refused(tensors, {}) or "?")[0] == "overlap"
        taken += not meet
    assert 50 < taken < 2950


# --- torch ------------------------------------------------------------------------------------------------------------

def test_version_counters_go_up_for_what_is_written():
    for change in ({}, {"learning_rate": 0.1, "momentum": 0}):
        tensors = usual(kind="torch") | change
        before = {name: x._version for name, x in tensors.items() if isinstance(x, torch.Tensor)}
        assert samestep.sgd_(**tensors) is tensors["parameters"]
        for name, version in before.items():
            assert (tensors[name]._version > version) == (name in WRITTEN)
    tensors = usual(kind="torch")
    assert ask(tensors, weight_decay=-1.0) is False
    assert refused(tensors, {"weight_decay": -1.0}) is not None
    assert all(x._version == 0 for x in tensors.values())


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        one, other = ({k: x.clone() for k, x in usual(kind="torch").items()} for _ in range(2))
    assert one["parameters"].is_inference()
    samestep.sgd_(**one)
    ordinarily(other)
    assert_equal(one, other)
    with torch.inference_mode():
        check_both_ways(lambda: usual(kind="torch"), "torch")


def with_storage_of(x, nbytes):
    x = x.clone()
    x.untyped_storage().resize_(nbytes)
    return x


def shrunk_behind(x):
    flat = torch.ones(x.numel() + 1)
    view = flat[1:].view(x.shape)
    flat.untyped_storage().resize_(x.nbytes)
    return view


class Subclass(torch.Tensor):
    pass


TORCH_REFUSALS = {
    "negated": torch._neg_view,
    "no storage": lambda x: with_storage_of(x, 0),
    "too small a storage": lambda x: with_storage_of(x, x.nbytes - 1),
    "too small behind an offset": shrunk_behind,
    "zero tensor": lambda x: torch._efficientzerotensor(tuple(x.shape)),
    "functional": torch._to_functional_tensor,
    "sparse": lambda x: x.to_sparse(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "meta": lambda x: x.to("meta"),
    "subclass": lambda x: x.as_subclass(Subclass),
    "float64": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "expanded": lambda x: torch.ones(2)[:1].expand(2, *x.shape)[0],
}


@pytest.mark.parametrize("what", TORCH_REFUSALS)
@pytest.mark.parametrize("name", INPUTS)
def test_torch_tensors_that_are_refused(name, what):
    if what == "expanded" and name in SCALARS:
        pytest.skip("one element is contiguous however it is strided")
    tensors = usual(kind="torch")
    tensors[name] = TORCH_REFUSALS[what](tensors[name])
    others = [x for other, x in tensors.items() if other != name]
    before = list(map(bits, others))
    assert ask(tensors) is False
    assert refused(tensors, {}) is not None
    assert list(map(bits, others)) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, at its first dual tensor
def test_dual_tensors_are_refused_and_plain_ones_beside_them_not():
    for name in INPUTS:
        with torch.autograd.forward_ad.dual_level():
            tensors = usual(kind="torch")
            tensors[name] = torch.autograd.forward_ad.make_dual(tensors[name], torch.ones_like(tensors[name]))
            assert ask(tensors) is False
            assert (refused(tensors, {}) or "?")[0] == "wrong_type"
            plain = usual(kind="torch")
            assert ask(plain) is False  # left to the ordinary way, which looks at each
            samestep.sgd_(**plain)


def test_inside_transforms_nothing_is_taken():
    def inside(x):
        tensors = usual("float32", tuple(x.shape), "torch") | {"gradient": x}
        assert ask(tensors) is False
        assert refused(tensors, {}) is not None
        return x.sum()

    torch.func.grad(inside)(torch.ones(3))
    torch.func.vmap(inside)(torch.ones(2, 3))
    torch.func.functionalize(inside)(torch.ones(3))


def test_a_lazy_copy_is_copied_before_it_is_written():
    original = torch.ones(6).view(2, 3)
    tensors = usual(kind="torch") | {"parameters": torch._lazy_clone(original)}
    assert ask(tensors) is None
    assert original.tolist() == [[1] * 3] * 2
    assert tensors["parameters"].tolist() != original.tolist()


def test_a_failure_of_torch_leaves_no_error_behind():
    """A Python error that were left set would come out of whatever is called next."""
    tensors = usual(kind="torch") | {"stat": torch.eye(3).to_sparse()}
    for _ in range(10):
        assert ask(tensors) is False
        assert int("7") == 7


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_kept_alive(kind):
    tensors = usual(kind=kind)
    held = [*tensors.values(), True, False, None]
    if kind == "torch":
        held += [x.untyped_storage() for x in tensors.values()]
    before = list(map(sys.getrefcount, held))
    for _ in range(1000):
        quick.step(*tensors.values(), 0.0, 0.0, False, "spec", None)
        quick.step(*tensors.values(), 0.0, -1.0, False, "spec", None)
    after = list(map(sys.getrefcount, held))
    assert all(abs(now - then) < 100 for now, then in zip(after, before, strict=True))
    seen = weakref.ref(tensors["parameters"])
    del held, tensors
    assert seen() is None


# --- when it is on ----------------------------------------------------------------------------------------------------

def fresh_process(code):
    done = subprocess.run([sys.executable, "-c", f"import numpy as np\n{PREPARED}{code}"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


PREPARED = """
import samestep
from samestep.engine import quick
quick.PATIENCE = 0
def one(dtype=np.float32, ones=np.ones):
    p, g, a, s = (ones((3,), dtype=dtype) for _ in range(4))
    before = quick.step
    arguments = (p, g, 0.5, a, 0.5, s, 0.0, 0.0, False, 'spec', None)
    done = before(*arguments)
    if done is False:
        samestep.sgd_(p, g, 0.5, a, 0.5, s)
    assert p.tolist() == [0.25] * 3, p
    print(done)
"""


def test_nothing_is_compiled_for_a_script_of_a_few_calls():
    code = "quick.PATIENCE = 10\nfor _ in range(13): one()\nprint(quick.step is quick._nothing)"
    *done, at_last = fresh_process(code)
    assert done == ["False"] * 10 + ["True"] * 3
    assert at_last == "False"


def test_the_second_call_of_a_kernel_is_the_quick_one():
    assert fresh_process("one(); one(); one(np.float16); one(np.float16)") == ["False", "True", "False", "True"]
    assert fresh_process("samestep.sgd_(np.ones(1, np.float32), np.ones(1, np.float32), 1.0, np.ones(1, np.float32),"
                         "1.0, np.ones(1, np.float32), engine='reference'); one(); one()") == ["False", "True"]


def test_bfloat16_is_known_however_it_came_first():
    assert fresh_process("import ml_dtypes\none(ml_dtypes.bfloat16); one(ml_dtypes.bfloat16)") == ["False", "True"]
    code = """
import torch
one(torch.bfloat16, torch.ones); one(torch.bfloat16, torch.ones)
import ml_dtypes
one(ml_dtypes.bfloat16); one(ml_dtypes.bfloat16); one(torch.bfloat16, torch.ones)
"""
    assert fresh_process(code) == ["False", "None", "False", "True", "None"]


FIELDS = ("TYPE", "VALUE", "DATA", "RANK", "SHAPE", "STRIDES", "BASE", "DTYPE", "FLAGS", "C_CONTIGUOUS", "ALIGNED",
          "WRITEABLE", "UNSURE")


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_elsewhere_is_noticed(field, monkeypatch):
    assert quick.layout_is_known.__wrapped__()
    other = {"UNSURE": 0x4, "SHAPE": quick.STRIDES, "STRIDES": quick.SHAPE, "FLAGS": quick.RANK}
    monkeypatch.setattr(quick, field, other.get(field, getattr(quick, field) * 2))
    assert not quick.layout_is_known.__wrapped__()


def test_where_arrays_are_laid_out_otherwise_the_ordinary_way_does_it_all():
    assert fresh_process("quick.RANK = quick.BASE\none(); one()\nprint(quick.step is quick._nothing)") == [
        "False", "False", "True"]


def spoil_the_version(monkeypatch):
    monkeypatch.setattr(dlpack, "EXCHANGE_MAJOR", 2)


def take_the_table_away(monkeypatch):
    monkeypatch.delattr(torch.Tensor, dlpack.EXCHANGE_TABLE)


def spoil_a_dtype(monkeypatch):
    monkeypatch.setitem(quick.DLPACK_DTYPES, "bfloat16", 0x00011002)


@pytest.mark.parametrize("spoil", [None, spoil_the_version, take_the_table_away, spoil_a_dtype])
def test_where_torch_describes_its_tensors_otherwise_too(spoil, monkeypatch):
    if spoil is not None:
        spoil(monkeypatch)
    monkeypatch.setattr(quick, "_known", np.zeros_like(quick._known))
    quick.meet.__wrapped__(torch.Tensor)
    assert bool(quick._known[quick.EXCHANGE]) == bool(quick._known[quick.TENSOR]) == (spoil is None)


def test_torch_tensors_are_left_alone_as_long_as_they_are_not_known():
    words = [quick.TENSOR, quick.PARAMETER, quick.EXCHANGE]
    before = quick._known[words]
    quick._known[words] = 0
    try:
        assert ask(usual(kind="torch")) is False
        assert ask(usual()) is True
    finally:
        quick._known[words] = before


@pytest.mark.parametrize("first", ["", "import samestep.torch_ops"])
def test_it_is_compiled_below_a_graph_that_breaks(first):
    """Where a graph breaks at these calls, dynamo has no business with what they do, and would stumble over it."""
    code = """
import torch
def act(engine, p, g, a, s, lr, m):
    samestep.sgd_(p, g, lr, a, m, s, engine=engine)
    samestep.sgd_batch_([p], [g], lr, [a], m, [s], engine=engine)
    return p * 2
compiled = torch.compile(act, backend='eager')
quick.PATIENCE = 4
given = [*torch.rand(4, 5), torch.tensor(0.5), torch.tensor(0.5)]
found = [x.clone() for x in given]
engines = ('cpu', 'reference', None) * 4
results = [compiled(engine, *found) for engine in engines]
assert all(map(torch.equal, results, [act(engine, *given) for engine in engines]))
assert all(map(torch.equal, given, found))
print(quick.step is quick._nothing)
"""
    assert fresh_process(first + code) == ["False"]
