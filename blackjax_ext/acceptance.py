"""Tests of AMAGOLD's proposals: a pass over all rows, or an exact one that reads a few."""

from blackjax_ext.sgmcmc.acceptance import (
    FULL_PASS,
    Acceptance,
    Verdict,
    check_acceptance,
    full_pass,
)
from blackjax_ext.subsampling.row_tests import subsampled

__all__ = ["FULL_PASS", "Acceptance", "Verdict", "check_acceptance", "full_pass", "subsampled"]
