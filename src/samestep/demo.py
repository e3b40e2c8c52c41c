"""The operator at work on real data: a digit classifier trained step by step, then judged bit by bit.

A small network learns the 1,797 handwritten digits that scikit-learn ships. Parameters, gradient, accum and stat are
kept in the dtype asked for, and every update of all weights and biases is one call of `sgd_batch_`. Some steps are
recorded and done again afterwards by another engine and by the exact oracle.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from samestep.demo_network import (
    LAYERS,
    Array,
    Digits,
    back_propagate,
    initial_parameters,
    load_digits,
    one_thread,
    predict,
)
from samestep.engine import DEFAULT
from samestep.op import sgd_, sgd_batch_
from samestep.rounding import round_number
from samestep.verify import oracle

BATCH_SIZE = 32
RECORDED_STEPS = 16
ORACLE_ELEMENTS = 4096


class MissingExtraError(ImportError):
    """A package that only the demo needs is not installed; the message says how to get it."""


class Options(NamedTuple):
    """What `samestep demo` can be told. The update's own options are those of `samestep.sgd_batch_`."""

    dtype: str = "float32"
    learning_rate: float = 0.1
    momentum: float = 0.9
    dampening: float = 0.0
    weight_decay: float = 0.0001
    nesterov: bool = False
    order: str = "spec"
    engine: str | None = None
    epochs: int = 30
    seed: int = 0
    out: Path = Path("out/demo")

    def attributes(self) -> dict[str, Any]:
        """Return the keyword arguments that operator and oracle share."""
        return {"dampening": self.dampening, "weight_decay": self.weight_decay, "nesterov": self.nesterov,
                "order": self.order}


class Progress(NamedTuple):
    """Where training stands after a step. `loss` is that step's; `accuracy` is the test set's after the last epoch."""

    step: int
    steps: int
    epoch: int
    loss: float
    accuracy: float | None


class Record(NamedTuple):
    """One step as it happened: all tensors of a kind flattened and joined, in the dtype of training."""

    before: list[Array]  # parameters, gradient, accum, stat
    after: list[Array]  # parameters, accum, stat


class Training(NamedTuple):
    """A finished training: curves with one value per epoch, what was recorded, and the time inside the operator."""

    losses: list[float]
    accuracies: list[float]
    records: list[Record]
    predictions: Array
    steps: int
    parameters: int
    fingerprint: str
    seconds_in_first_call: float
    seconds_in_updates: float


class Replay(NamedTuple):
    """The recorded steps done again: bits against `engine`, sampled elements against the exact oracle."""

    engine: str
    steps: int
    bits: int
    bits_differing: int
    elements: int
    elements_differing: int


class Result(NamedTuple):
    """What `run` found and wrote."""

    training: Training
    replay: Replay
    picture: Path
    figures: Path

    @property
    def accuracy(self) -> float:
        """The share of test images read rightly after the last epoch."""
        return self.training.accuracies[-1]

    @property
    def element_updates(self) -> int:
        """How many single parameters were updated, counting each step."""
        return self.training.steps * self.training.parameters

    @property
    def nanoseconds_per_element(self) -> float:
        """Mean time inside `sgd_batch_` per updated element, without the first call."""
        return 1e9 * self.training.seconds_in_updates / self.element_updates

    @property
    def same(self) -> bool:
        """Did every replayed bit and every element given to the oracle come out the same?"""
        return not (self.replay.bits_differing or self.replay.elements_differing)


def run(options: Options, watch: Callable[[Progress], None] = lambda progress: None) -> Result:
    """Train, replay, and write ``learning_curve.png`` and ``figures.json`` to `options.out`.

    `watch` is called after every step. Raises `MissingExtraError` without scikit-learn or matplotlib, `ContractError`
    where the operator refuses the options, OSError where `options.out` cannot be written; all before training.
    """
    require("sklearn", "matplotlib")
    options.out.mkdir(parents=True, exist_ok=True)
    digits = load_digits(options.seed)
    training = train(options, digits, watch)
    result = Result(training, replay(training.records, options), options.out / "learning_curve.png",
                    options.out / "figures.json")
    from samestep import demo_plot

    demo_plot.draw(result, digits, options)
    result.figures.write_text(json.dumps(figures(result, options), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return result


def require(*packages: str) -> None:
    """Raise `MissingExtraError` unless all of `packages` can be imported."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join("scikit-learn" if name == "sklearn" else name for name in missing)
        raise MissingExtraError(f"the demo needs {names}; install with: pip install 'samestep[demo]'")


def train(options: Options, digits: Digits, watch: Callable[[Progress], None]) -> Training:
    """Train for `options.epochs` epochs of minibatches and record `RECORDED_STEPS` steps spread over them."""
    rng = np.random.default_rng((options.seed, 1))
    updates = _Updates(initial_parameters(rng, options.dtype), options)
    images, labels = digits.training_images, digits.training_labels
    starts = range(0, len(images), BATCH_SIZE)
    steps = options.epochs * len(starts)
    recorded = set(np.linspace(1, steps, min(RECORDED_STEPS, steps)).round().astype(int).tolist())
    losses: list[float] = []
    accuracies: list[float] = []
    predictions = labels[:0]
    with one_thread():
        for epoch in range(1, options.epochs + 1):
            shuffled, total = rng.permutation(len(images)), 0.0
            for start in starts:
                chosen = shuffled[start:start + BATCH_SIZE]
                loss, gradient = back_propagate(updates.parameters, images[chosen], labels[chosen])
                updates.step(gradient, updates.steps + 1 in recorded)
                total += loss * len(chosen)
                watch(Progress(updates.steps, steps, epoch, loss, accuracies[-1] if accuracies else None))
            predictions = predict(updates.parameters, digits.test_images)
            losses.append(total / len(images))
            accuracies.append(float(np.mean(predictions == digits.test_labels)))
    watch(Progress(steps, steps, options.epochs, losses[-1], accuracies[-1]))
    return Training(losses, accuracies, updates.records, predictions, steps, sum(p.size for p in updates.parameters),
                    hashlib.sha256(_joined(updates.parameters).tobytes()).hexdigest(), updates.seconds_in_first_call,
                    updates.seconds)


class _Updates:
    """The network's parameters with the operator's state beside them; accum is 0 and stat 1 before the first step."""

    def __init__(self, parameters: list[Array], options: Options) -> None:
        self.parameters = parameters
        self.accum = [np.zeros_like(p) for p in parameters]
        self.stat = [np.ones_like(p) for p in parameters]
        self.records: list[Record] = []
        self.steps = 0
        self.seconds = 0.0
        self._options = options
        copies = [[x.copy() for x in tensors] for tensors in (self.parameters, self.accum, self.accum, self.stat)]
        self.seconds_in_first_call = self._update(*copies)

    def step(self, gradient: Sequence[Array], record: bool) -> None:
        """One update of everything by `gradient` (float32, rounded here to the dtype of parameters)."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = [g.astype(p.dtype) for g, p in zip(gradient, self.parameters, strict=True)]
        before = [_joined(x) for x in (self.parameters, rounded, self.accum, self.stat)] if record else []
        self.seconds += self._update(self.parameters, rounded, self.accum, self.stat)
        self.steps += 1
        if record:
            self.records.append(Record(before, [_joined(x) for x in (self.parameters, self.accum, self.stat)]))

    def _update(self, parameters: list[Array], gradient: list[Array], accum: list[Array], stat: list[Array]) -> float:
        """One call of the operator; the seconds it took."""
        options = self._options
        start = time.perf_counter()
        sgd_batch_(parameters, gradient, options.learning_rate, accum, options.momentum, stat,
                   engine=options.engine, **options.attributes())
        return time.perf_counter() - start


def _joined(tensors: Sequence[Array]) -> Array:
    return np.concatenate([x.ravel() for x in tensors])


def replay(records: Sequence[Record], options: Options) -> Replay:
    """Do the recorded steps again: whole ones by the reference engine, `ORACLE_ELEMENTS` elements by the oracle.

    Training by the reference engine is replayed by the cpu engine, since an engine cannot vouch for itself. The
    tensors come back joined to one, so every element also stands at another index than in training (rule O8).
    """
    engine = "cpu" if options.engine == "reference" else "reference"
    rng = np.random.default_rng((options.seed, 2))
    bits = bits_differing = elements = elements_differing = 0
    for record in records:
        p, g, a, s = (x.copy() for x in record.before)
        sgd_(p, g, options.learning_rate, a, options.momentum, s, engine=engine, **options.attributes())
        computed = (True, *[round_number(options.momentum, options.dtype)[0] != 0] * 2)
        for expected, found, by_value in zip((p, a, s), record.after, computed, strict=True):
            bits += 8 * found.nbytes
            bits_differing += differing_bits(expected, found, by_value)
        sample = rng.choice(p.size, min(p.size, -(-ORACLE_ELEMENTS // len(records))), replace=False)
        elements += len(sample)
        elements_differing += _oracle_differing(record, sample, options)
    return Replay(engine, len(records), bits, bits_differing, elements, elements_differing)


def differing_bits(expected: Array, found: Array, computed: bool) -> int:
    """How many bits differ between two arrays of one dtype; of computed values, any NaN equals any other (rule O9)."""
    pattern = f"u{expected.itemsize}"
    different = expected.view(pattern) ^ found.view(pattern)
    if computed:
        different[np.isnan(expected) & np.isnan(found)] = 0
    return int(np.unpackbits(different[different != 0].view(np.uint8)).sum())


def _oracle_differing(record: Record, sample: Array, options: Options) -> int:
    """How many of the elements at the indices `sample` break the rule."""
    before, after = ([x.view(f"u{x.itemsize}")[sample].tolist() for x in tensors] for tensors in record)
    found = oracle.differing(
        before, after, dtype=options.dtype, learning_rate=round_number(options.learning_rate, options.dtype)[1],
        momentum=round_number(options.momentum, options.dtype)[1], **options.attributes(),
    )
    return len({difference.position for difference in found})


def figures(result: Result, options: Options) -> dict[str, Any]:
    """Everything the demo found, as values that JSON can hold; null stands for a number that is not finite."""
    training = result.training
    return {
        "options": {**{name: _finite(value) for name, value in options._asdict().items()}, "out": str(options.out),
                    "engine": options.engine or DEFAULT},
        "layers": LAYERS, "parameters": training.parameters, "steps": training.steps,
        "test_accuracy": result.accuracy, "element_updates": result.element_updates,
        "nanoseconds_per_element": result.nanoseconds_per_element,
        "seconds_in_first_call": training.seconds_in_first_call, "parameters_sha256": training.fingerprint,
        "replay": result.replay._asdict(),
        "loss_per_epoch": [_finite(loss) for loss in training.losses],
        "test_accuracy_per_epoch": training.accuracies,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
