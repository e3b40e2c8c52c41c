"""What the rules that are checked are about, in a word."""

from __future__ import annotations

TITLES = {
    "O1": "dtypes", "O2": "shapes", "O3": "layout", "O4": "attributes", "O5": "arithmetic", "O6": "write-back",
    "O7": "IEEE 754", "O8": "determinism", "O10": "aliasing", "O12": "errors", "T": "rule torch",
}
