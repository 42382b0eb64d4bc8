# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that keep out and lse of attention, so that recomputation runs neither its kernels
nor its exchanges again. The backward needs q, k and v besides, which are cheap to project anew. Of
recurrent layers they keep what ranks exchange: states of runs, and rows before these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from magi_attention._native.tensors import is_intercepted
from magi_attention.functional._exchanged import exchanged_op
from magi_attention.functional._kept import Keeping, keeping_around
from magi_attention.functional._operators import flex_forward_op, listed_forward_op
from magi_attention.functional.dist_attn import dist_forward_op
from magi_attention.functional.latent_attn import latent_forward_op

# As which a policy of torch's selective checkpoints sees attention and the exchanges of recurrent
# layers, in eager code too.
ATTENTION_OPS = (
    dist_forward_op, flex_forward_op, listed_forward_op, latent_forward_op, exchanged_op,
)  # fmt: skip


def _unchanged(found: tuple[torch.Tensor, int]) -> torch.Tensor:
    """RuntimeError where an operation in place has changed what recomputation is to be given."""
    tensor, version = found
    if tensor._version != version:
        raise RuntimeError(
            f"a result of attention of shape {list(tensor.shape)}, which a checkpoint keeps, was "
            "changed in place; allowed: operations that give a new tensor"
        )
    return tensor


def save_attention() -> tuple[Any, Any]:
    """A context_fn of torch.utils.checkpoint.checkpoint(..., use_reentrant=False), with which
    attention is not computed or exchanged again, and recurrent layers exchange nothing again. What
    calc_sparse_attn and calc_latent_attn bring from other ranks comes again, as backward needs it,
    and dispatch, undispatch and roll run again. To keep results of other operators as well, give
    ATTENTION_OPS and these to torch's create_selective_checkpoint_contexts.
    """
    if is_intercepted():  # a compiler knows torch's own contexts
        return create_selective_checkpoint_contexts([*ATTENTION_OPS])
    around = keeping_around()
    if around is not None:
        return around.contexts_inside()
    return Keeping(lambda tensor: (tensor, tensor._version), _unchanged).contexts()


def keeping_attention(
    function: Callable, context_fn: Callable[[], tuple[Any, Any]] = save_attention
) -> Callable:
    """function for one checkpoint that runs it twice by itself and takes no context_fn, such as
    torch's with use_reentrant=True: the first call keeps attention, the later one is given it.
    """
    contexts: list[Any] = []

    def run(*arguments: Any, **keywords: Any) -> Any:
        if not contexts:  # what a checkpoint around has kept is known at the first call
            contexts.extend(context_fn())
        with contexts.pop(0) if len(contexts) > 1 else contexts[0]:
            return function(*arguments, **keywords)

    return run
