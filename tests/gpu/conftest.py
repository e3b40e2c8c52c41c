"""Triton's interpreter stands in for a device. It has to be chosen before Triton is imported."""

import importlib.util
import os

if importlib.util.find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
