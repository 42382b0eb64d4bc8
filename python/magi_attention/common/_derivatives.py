# SPDX-License-Identifier: Apache-2.0
"""What gradients of this package's functions have not."""

from __future__ import annotations

import torch


def refuse_second_derivative(of: str) -> None:
    """Raises RuntimeError in a backward where its gradients are to have gradients themselves, which
    they would lack without a word. A compiler, which asks here as it traces, refuses by itself.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(f"create_graph is True; {of} has no second derivative")
