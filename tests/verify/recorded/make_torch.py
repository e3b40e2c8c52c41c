"""Record torch.optim.SGD: the for-loop, foreach and the fused CPU kernel, float32 and bfloat16.

    pip install torch numpy; python make_torch.py

The fused kernel works in one thread, so that a file has one vector body and one tail.
"""

import torch
from recording import WORDS, Recording

INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def recorder(path, dtype, lr=0.1, momentum=0.9, **hyperparameters):
    """A step that gives torch's optimizer the tensors anew each time, as a loaded checkpoint would."""
    kind = getattr(torch, dtype)
    integer = INTEGERS[kind]

    def tensor(words):
        return torch.from_numpy(words.view(f"i{words.itemsize}").copy()).view(kind)

    def words(value):
        return value.detach().view(integer).numpy().view(WORDS[dtype]).copy()

    def step(k, p, g, v, s):
        parameter = torch.nn.Parameter(tensor(p))
        parameter.grad = tensor(g)
        optimizer = torch.optim.SGD([parameter], lr=lr, momentum=momentum, foreach=path == "foreach",
                                    fused=path == "fused", **hyperparameters)
        if v is not None:
            optimizer.state[parameter]["momentum_buffer"] = tensor(v)
        optimizer.step()
        buffer = optimizer.state[parameter].get("momentum_buffer")
        return words(parameter), None if buffer is None else words(buffer), None

    return step


CASES = {
    "plain": {}, "dampening": {"dampening": 0.25}, "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.01}, "all": {"weight_decay": 0.01, "nesterov": True},
}

torch.set_num_threads(1)
for path in ("loop", "foreach", "fused"):
    recording = Recording(f"torch_{path}", torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability())
    for dtype in ("float32", "bfloat16"):
        for name, hyperparameters in CASES.items():
            recording.add(f"{dtype}-{name}", recorder(path, dtype, **hyperparameters), dtype=dtype, start="none",
                          **hyperparameters)
    recording.add("float32-zero", recorder(path, "float32", momentum=0.0), momentum=0.0, start="random", steps=1)
    recording.save()
