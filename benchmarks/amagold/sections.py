"""All sections, in the order of the page."""

from benchmarks.amagold.many_rows import few_rows, rows_1e5, rows_1e6
from benchmarks.amagold.memory import memory
from benchmarks.amagold.network import network
from benchmarks.amagold.report import REPORT
from benchmarks.amagold.small_data import small_data
from benchmarks.amagold.synthetic import synthetic
from benchmarks.harness.report import by_name

__all__ = ["REPORT"]

REPORT.sections |= by_name(rows_1e5, rows_1e6, few_rows, synthetic, small_data, network, memory)
