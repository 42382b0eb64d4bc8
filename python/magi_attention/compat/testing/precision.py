# SPDX-License-Identifier: Apache-2.0
"""Comparisons of tensors."""

from __future__ import annotations

import re

import torch

from magi_attention.common._arguments import check_kind

EPSILON = 1e-8  # keeps quotients finite
_MISMATCHED = re.compile(r"Mismatched elements: (\d+) / (\d+)")


def extract_mismatch_info(error_msg: str) -> tuple[int, int, float]:
    """From a message of torch.testing.assert_close: elements that differ, all, and their share.
    ValueError for another message.
    """
    found = _MISMATCHED.search(error_msg)
    if found is None:
        raise ValueError(f"error_msg is {error_msg!r}; allowed: one that counts elements")
    differing, total = int(found[1]), int(found[2])
    return differing, total, differing / total


def assert_close(
    a: torch.Tensor,
    b: torch.Tensor,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    mismatch_threshold: float = 0,
    test_case: str = "",
) -> None:
    """AssertionError where more than the share mismatch_threshold of the elements differ from b by
    more than atol + rtol * |b|; test_case names the comparison in the message. ValueError for a
    share outside 0 to 1.
    """
    if not 0 <= mismatch_threshold <= 1:
        raise ValueError(f"mismatch_threshold is {mismatch_threshold}; allowed: 0 to 1")
    try:
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol)
    except AssertionError as error:
        found = _MISMATCHED.search(str(error))
        if found is None or int(found[1]) > mismatch_threshold * int(found[2]):
            title = f"{test_case}: " if test_case else ""
            raise AssertionError(f"{title}{error}") from None


def calc_inf_norm(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference of two elements, 0 for none."""
    for name, tensor in (("a", a), ("b", b)):
        check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
    difference = (a.float() - b.float()).abs()
    return difference.max().item() if difference.numel() else 0.0
