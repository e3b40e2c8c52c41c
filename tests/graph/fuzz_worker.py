"""Files that are damaged or absurd: every function of `samestep.graph.ge` gives a result or one of its two errors.

Run in a process of its own, so that a crash, a hang and the peak of memory are seen: ``fuzz_worker.py KIND COUNT SEED``
where KIND is ``mutate`` or ``structure``; prints one JSON object.
"""

from __future__ import annotations

import json
import math
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

import samestep
from samestep.graph import ge
from samestep.graph.lint import graphs

WORDS = (
    (b"sgd0:0", b"sgd1:0"), (b"sgd0:-1", b"sgd1:-1"), (b"w0:0", b"w0:9"), (b"w0:0", b"g0:0"), (b"w1:0", b"w0:0"),
    (b"w1:0", b"w1-0"), (b"SGD", b"Add"), (b"Data", b"Cast"), (b"Const", b"SGD\xff\xfe"), (b"ND", b"NC"),
    (b"s0", b"s1"), (b"rate:0", b"rate:-"), (b"weight_decay", b"weight_dekay"),
    (b"\x08\x02", b"\x08\x00"), (b"\x08\x01", b"\x08\x1b"),
)
RUN = 200
SECONDS = 10  # for one case, on a machine that does other things, too
seen: Counter[str] = Counter()
slowest = [0.0]  # seconds of one case


def has_unknown(message: Any) -> bool:
    """Whether `message`, or one in it, has a field that its schema does not list."""
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inside = [value[key] for key in value] if field.message_type.fields_by_name["value"].message_type else []
        else:
            inside = [value] if hasattr(value, "ListFields") else list(value)
        if any(map(has_unknown, inside)):
            return True
    return False


def survive(data: bytes) -> None:
    """Do with `data` all that can be done with a file; any error but the two promised ones comes out."""
    try:
        graph = ge.from_bytes(data)
    except ge.AirError:
        seen["no graph"] += 1
        return
    seen["graph"] += 1
    again = ge.to_bytes(graph)
    other = ge.from_bytes(again)
    # protobuf keeps a map's entry that has an unknown field as bytes that it writes anew, maps inside in any order.
    assert other == graph or (has_unknown(graph.model) and sorted(ge.to_bytes(other)) == sorted(again))
    clean = ge.lint(graph).clean
    attempt(run, graph)
    if attempt(ge.infer, graph):
        assert findings(graph) <= {"O10"}, "lint finds what infer does not"
        seen["lint finds shared or constant memory"] += bool(findings(graph))
    else:
        assert not clean, "infer refuses what lint does not find"
        assert ge.to_bytes(graph) == again, "a refused graph is unchanged"
    if seen["graph"] % 20 == 0:
        assert isinstance(ge.dump(graph), str)


def attempt(act: Callable[[ge.Graph], object], graph: ge.Graph) -> bool:
    try:
        act(graph)
    except (ge.AirError, samestep.ContractError) as refused:
        text, name = str(refused), getattr(refused, "code", "AirError")
    else:
        text, name = "", "ok"
    assert bool(text) == (name != "ok")
    assert len(text) < 5000
    seen[f"{act.__name__}: {name}"] += 1
    return name == "ok"


def findings(graph: ge.Graph) -> set[str]:
    """Rules that lint calls broken, in the graphs that infer looks at."""
    if len(list(graphs(graph.model))) > len(graph.model.graph):
        return set()
    return {finding.rule for report in ge.lint(graph).reports for finding in report.findings}


def run(graph: ge.Graph) -> None:
    """Run on small feeds of ones, as far as the data nodes say what they want."""
    feeds = {}
    for op in graph.root.op:
        if op.type == "Data" and op.output_desc:
            shape = [2 if dim == -1 else dim for dim in op.output_desc[0].shape.dim]
            dtype = {1: "float32", 2: "float16", 27: "bfloat16"}.get(op.output_desc[0].dtype)
            if dtype and len(shape) < 10 and all(0 <= dim < 64 for dim in shape) and math.prod(shape) < 5000:
                feeds[op.name] = np.ones(shape, dtype)
    ge.run(graph, feeds, engine="reference")


def sample() -> bytes:
    """A graph with two updates, a variable, constants, a control edge and a foreign operator."""
    graph = ge.Graph("train")
    rate, momentum = graph.constant("rate", [0.1]), graph.constant("momentum", np.float32(0.9))
    last: tuple[Any, ...] = ()
    for k in (0, 1):
        tensors = [graph.data(f"{name}{k}", (2, 3)) for name in ("w", "g", "a")]
        stat = graph.variable(f"s{k}", np.ones((2, 3), np.float32))
        last = (graph.sgd(*tensors[:2], rate, tensors[2], momentum, stat, weight_decay=0.1 * k, name=f"sgd{k}",
                          after=last),)
    graph.output(*last)
    ge.infer(graph)
    return ge.to_bytes(graph)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """`data` with one to four random changes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        length = rng.choice((1, 1, 2, 8, 64, 1000))
        kind = rng.choice((0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 6, 6, 6, 7))
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del found[at:at + length]
        elif kind == 3:
            found[at:at] = rng.randbytes(length)
        elif kind == 4:
            start = rng.randrange(len(found) + 1)
            found[at:at] = found[start:start + length]
        elif kind == 5:
            found[at:at] = b"\xff" * 9 + b"\x01"  # the largest varint
        elif kind == 6:
            word, other = rng.choice(WORDS)  # of one length, so that the message stays one
            place = found.find(word, at)
            if place >= 0:
                found[place:place + len(word)] = other
        else:
            del found[at:]
    return bytes(found)


def mutate(count: int, seed: int) -> None:
    rng, data = random.Random(seed), sample()
    for _ in range(count):
        case(mutated(rng, data))


def case(data: bytes) -> None:
    signal.alarm(SECONDS)  # ends the process
    start = time.perf_counter()
    survive(data)
    slowest[0] = max(slowest[0], time.perf_counter() - start)
    signal.alarm(0)


def structure(count: int, seed: int) -> None:
    """Graphs that are well-formed messages, drawn by hypothesis, in runs: it remembers all that it drew in one."""
    import air_strategies
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded

    for start in range(0, count, RUN):
        @seeded(seed + start)
        @settings(max_examples=min(RUN, count - start), deadline=None, database=None,
                  suppress_health_check=list(HealthCheck))
        @given(air_strategies.models())
        def survives(model: Any) -> None:
            case(model.SerializeToString())

        survives()


def main() -> None:
    kind, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    survive(sample())  # what is imported and compiled once belongs to no case
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    {"mutate": mutate, "structure": structure}[kind](count, seed)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"mebibytes": grown / 1024, "seconds": slowest[0], "seen": seen}))


if __name__ == "__main__":
    main()
