"""Judging kernels to the bit.

Here stand the judges, which know nothing of the package's formula (`oracle`, `oracle_torch`, `vectorised`), and what an
observed step is (`observation`, `patterns`). The packages below ask: `suite` (is it right?), `fingerprint` (what does
it do instead?), `compare` and `dumps` (tensors of a device), `report` and `export` (files for people and tools).
"""
