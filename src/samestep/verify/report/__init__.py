"""Reports in HTML, JSON and CSV (`write` of the suite's results, `write_comparison` of dumps)."""

from samestep.verify.report.writing import check_suffix, comparison_json, write, write_comparison

__all__ = ["check_suffix", "comparison_json", "write", "write_comparison"]
