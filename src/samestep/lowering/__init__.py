"""The kernels compiled ahead of time: for NVIDIA and AMD GPUs by Triton, for Ascend 950 by the NPU compilers too.

No device is needed, and nothing is downloaded: compilers are found, or it is said how to get them.
"""
