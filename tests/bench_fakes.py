"""Made-up peers for the benchmark's own tests: a module as `samestep.bench.run` takes it, with one fault a peer.

What is right here computes by engine reference.
"""

from __future__ import annotations

import gc
import os
import signal
import time

import samestep
from samestep.bench import peers
from samestep.bench.peer import Peer, Prepared, Written
from samestep.bench.peers import no_objection

HERE = os.getpid()


def operator(engine, before=lambda: None):
    def prepare(case, memory):
        settings = case.settings

        def step():
            before()
            samestep.sgd_batch_(
                memory.parameters, memory.gradient, memory.learning_rate, memory.accum, memory.momentum, memory.stat,
                dampening=settings.dampening, weight_decay=settings.weight_decay, nesterov=settings.nesterov,
                engine=engine)

        return Prepared(step, lambda: Written(memory.parameters, memory.accum, memory.stat), no_objection)

    return prepare


def lazily(case, memory):
    """A peer that writes nothing at all."""
    return Prepared(no_objection, lambda: Written(memory.parameters, memory.accum, memory.stat), no_objection)


def raising(case, memory):
    raise OSError("no compiler")


def hanging(case, memory):
    while True:
        try:
            time.sleep(60)
        except Exception:  # what a compiler may do
            continue


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def crashing(case, memory):
    die()


def when_timed(what):
    """Calls `what` in rounds only: no garbage is collected there."""
    def before():
        if not gc.isenabled():
            what()

    return operator("reference", before)


def complain():
    raise ValueError("it is late")


def talking(case, memory):
    print("a peer talks", flush=True)
    os.system("echo a compiler talks")
    return operator("reference")(case, memory)


def made(name, prepare, claims="cann", unavailable=no_objection, cannot=no_objection):
    return Peer(name, name, claims, unavailable, cannot, prepare)


FAKES = [
    made("reference", operator("reference")), made("talking", talking), made("lazy", lazily, "real"),
    made("raising", raising), made("hanging", hanging), made("crashing", crashing), made("late", when_timed(complain)),
    made("dying late", when_timed(die), cannot=lambda case: None if case.shape == "64" else "only dies at 64"),
    made("missing", raising, unavailable=lambda: "not installed: pip install missing"),
    made("float64 only", raising, cannot=lambda case: f"has no {case.dtype}"),
    made("limit", lazily, ""),
]
_PEERS = {"op": {"samestep": peers.load("op", "samestep"), **{peer.name: peer for peer in FAKES}}}
PEERS = {suite: tuple(there) for suite, there in _PEERS.items()}


def load(suite, name):
    return _PEERS[suite][name]
