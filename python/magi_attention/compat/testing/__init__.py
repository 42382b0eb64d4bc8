# SPDX-License-Identifier: Apache-2.0
"""What tests of the original import: dense reference attention, comparisons of tensors, and cases
of parameters.
"""

from magi_attention.compat.testing.precision import (
    EPSILON,
    assert_close,
    calc_inf_norm,
    extract_mismatch_info,
)
from magi_attention.compat.testing.ref_attn import ref_attn_func
from magi_attention.compat.testing.template import parameterize

__all__ = [
    "EPSILON", "assert_close", "calc_inf_norm", "extract_mismatch_info", "parameterize",
    "ref_attn_func",
]  # fmt: skip
