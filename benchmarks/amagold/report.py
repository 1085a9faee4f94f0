"""The report that the sections write into; `sections` puts them there."""

from benchmarks.harness.report import Report

REPORT = Report(
    "amagold", "Minibatch samplers: yield and exactness", {}, long=("rows_1e6", "network")
)
