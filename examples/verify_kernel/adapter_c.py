"""The kernel of sgd_kernel.c as a target of samestep: a shared library called through ctypes.

CC and CFLAGS choose the compiler and its flags, as for make.
"""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("sgd_kernel.c")


def build():
    flags = os.environ.get("CFLAGS", "-O3 -march=native").split()
    with tempfile.TemporaryDirectory() as folder:  # once loaded, the library needs no file
        library = Path(folder) / "sgd_kernel.so"
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-shared", "-fPIC", SOURCE, "-o", library], check=True)
        return ctypes.CDLL(library)


LIBRARY = build()


def sgd(parameters, gradient, learning_rate, accum, momentum, stat, *, dampening, weight_decay, nesterov):
    kernel = getattr(LIBRARY, f"sgd_{parameters.dtype.name}")
    tensors = (parameters, gradient, learning_rate, accum, momentum, stat)
    kernel(*(ctypes.c_void_p(tensor.ctypes.data) for tensor in tensors), ctypes.c_int64(parameters.size),
           ctypes.c_float(dampening), ctypes.c_float(weight_decay), ctypes.c_int(nesterov))
