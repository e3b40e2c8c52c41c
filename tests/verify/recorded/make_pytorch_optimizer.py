"""Record pytorch_optimizer's SGDW and QHM, float32: torch's momentum with another weight decay, and another velocity.

    pip install torch pytorch_optimizer numpy; python make_pytorch_optimizer.py
"""

from importlib.metadata import version

import torch
from pytorch_optimizer import QHM, SGDW
from recording import Recording, as_float32, as_words


def recorder(kind, **hyperparameters):
    def step(k, p, g, v, s):
        parameter = torch.nn.Parameter(torch.from_numpy(as_float32(p).copy()))
        parameter.grad = torch.from_numpy(as_float32(g).copy())
        optimizer = kind([parameter], lr=0.1, momentum=0.9, foreach=False, **hyperparameters)
        if v is not None:
            optimizer.state[parameter]["momentum_buffer"] = torch.from_numpy(as_float32(v).copy())
        optimizer.step()
        buffer = optimizer.state[parameter]["momentum_buffer"]
        return as_words(parameter.detach().numpy()), as_words(buffer.numpy()), None

    return step


recording = Recording("pytorch_optimizer", pytorch_optimizer=version("pytorch_optimizer"), torch=torch.__version__)
for case, hyperparameters in {"plain": {}, "nesterov": {"nesterov": True}, "dampening": {"dampening": 0.25}}.items():
    recording.add(f"sgdw-{case}", recorder(SGDW, **hyperparameters), start="none", **hyperparameters)
for case, decoupled in (("L2", False), ("decoupled", True)):
    recording.add(f"sgdw-{case}", recorder(SGDW, weight_decay=0.01, weight_decouple=decoupled), start="none",
                  weight_decay=0.01)
recording.add("qhm", recorder(QHM, nu=0.7))
recording.save()
