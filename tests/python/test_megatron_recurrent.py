# SPDX-License-Identifier: Apache-2.0
"""Recurrent mixers of Megatron-core under plans: Gated DeltaNet against Megatron's own forward for
each document, Mamba against the state row by row.
"""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

pytest.importorskip("megatron.core")

from megatron.core.models.backends import LocalSpecProvider
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import gated_delta_net
from megatron.core.transformer.torch_norm import WrappedTorchNorm

import test_megatron as cases
from magi_attention.integrations import megatron as ours
from magi_attention.integrations._megatron_recurrent import _UnderPlans, put_under_plans
from ranks import refuses

SIZES = pytest.mark.parametrize("size", [1, 2])


def norm(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def settings(size: int):
    return cases.config(
        size, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4, activation_func=torch.nn.functional.silu,
        deterministic_mode=True, normalization="RMSNorm", experimental_attention_variant=None,
    )  # fmt: skip


def gpt(size: int):
    with cases.on_cpu():
        return cases.gpt(cases.config(size), True)


def delta_net(size: int):
    """Equal weights on every rank."""
    torch.manual_seed(3)
    local = LocalSpecProvider()
    parts = gated_delta_net.GatedDeltaNetSubmodules(
        in_proj=local.column_parallel_linear(), out_norm=WrappedTorchNorm,
        out_proj=local.row_parallel_linear(),
    )  # fmt: skip
    groups = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
    known = dict(HAVE_FLA=True, get_cuda_rng_tracker=mock.MagicMock())
    with mock.patch.multiple(gated_delta_net, **known), cases.on_cpu():
        made = gated_delta_net.GatedDeltaNet(settings(size), parts, 1, pg_collection=groups)
    return made.double()


@cases.ON_ALL
@SIZES
@torch.compiler.set_stance("force_eager")  # Megatron compiles its norm, on every rank
def test_gated_delta_net(group, size):
    context = cases.start(size)
    alone, shared = delta_net(size), delta_net(size)
    put_under_plans("mixer", shared)
    torch.manual_seed(4)
    x = torch.randn(cases.ROWS, 1, 32, dtype=torch.float64)
    with mock.patch.object(gated_delta_net, "l2norm", norm, create=True):
        wanted = torch.cat([alone(part, None)[0] for part in x.split(cases.DOCUMENTS)])
    wanted.square().sum().backward()
    batch = ours.prepare_batch(cases.packed_batch(), gpt(size), context)
    params = batch["packed_seq_params"]
    bound = ours.bound_of(params.plan)
    local = bound.dispatch(x)
    out, _ = shared(local, None, packed_seq_params=params)
    out[: bound.rows.num_valid].square().sum().backward()
    cases.close({"out": bound.undispatch(out.detach())}, {"out": wanted.detach()})
    found = cases.gradients(shared)
    cases.sum_over(context, *found.values())
    cases.close(found, cases.gradients(alone))


class MambaMixer(torch.nn.Module):
    """The parameters and options of Megatron's, which is not made without mamba_ssm."""

    def __init__(self) -> None:
        super().__init__()
        self.d_inner_local_tp, self.nheads_local_tp = 16, 4
        self.ngroups_local_tp, self.d_state, self.rmsnorm, self.activation = 2, 3, False, "silu"
        self.in_proj = Pair(torch.nn.Linear(8, 16 + 16 + 12 + 4))
        self.out_proj = Pair(torch.nn.Linear(16, 8))
        self.conv1d = torch.nn.Conv1d(28, 28, 4, groups=28)
        for name in ("A_log", "D", "dt_bias"):
            setattr(self, name, torch.nn.Parameter(torch.randn(4)))

    def forward(self, hidden_states, inference_context=None, *, packed_seq_params=None):
        raise NotImplementedError

    def by_rows(self, x):
        """The result for one document."""
        z, mixed, dt = self.in_proj(x)[0].squeeze(1).split((16, 28, 4), 1)
        padded = torch.nn.functional.pad(mixed.T, (3, 0)).unsqueeze(0)
        mixed = torch.nn.functional.silu(self.conv1d(padded)[0].T)
        value, b, c = mixed.split((16, 6, 6), 1)
        dt = torch.nn.functional.softplus(dt + self.dt_bias)
        state, outs = x.new_zeros(4, 4, 3), []
        for row in range(len(x)):
            of_head = value[row].view(4, 4)
            keys, queries = (y[row].view(2, 3).repeat_interleave(2, 0) for y in (b, c))
            decay = (-self.A_log.exp() * dt[row]).exp().view(4, 1, 1)
            added = (dt[row, :, None] * of_head)[:, :, None] * keys[:, None]
            state = decay * state + added
            out = (state * queries[:, None]).sum(2) + self.D[:, None] * of_head
            outs.append(out.flatten() * torch.nn.functional.silu(z[row]))
        return self.out_proj(torch.stack(outs).unsqueeze(1))[0]


class Pair(torch.nn.Module):
    """A layer that gives its bias apart, as Megatron's do."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x), None


@cases.ON_ALL
@SIZES
def test_mamba(group, size):
    context = cases.start(size)
    torch.manual_seed(4)
    mixer = MambaMixer().double()
    x = torch.randn(cases.ROWS, 1, 8, dtype=torch.float64)
    wanted = torch.cat([mixer.by_rows(part) for part in x.split(cases.DOCUMENTS)])
    wanted.square().sum().backward()
    exact = {name: p.grad.clone() for name, p in mixer.named_parameters()}
    mixer.zero_grad()
    put_under_plans("mixer", mixer)
    model = gpt(size)
    params = ours.prepare_batch(cases.packed_batch(), model, context)["packed_seq_params"]
    bound = ours.bound_of(params.plan)
    out, _ = mixer(bound.dispatch(x), packed_seq_params=params)
    out[: bound.rows.num_valid].square().sum().backward()
    cases.close({"out": bound.undispatch(out.detach())}, {"out": wanted.detach()})
    found = cases.gradients(mixer)
    cases.sum_over(context, *found.values())
    cases.close(found, exact)


def test_what_mixers_are_given():
    """Parameters of a batch are found wherever they are, and what is not followed is refused."""
    mixer = MambaMixer()
    put_under_plans("mixer", mixer)
    params = object.__new__(ours.MagiPackedSeqParams)
    x = torch.zeros(4, 1, 8)
    refuses(lambda: mixer(x, object(), packed_seq_params=params), ValueError,
            "inference_context is given; allowed: None with batches of prepare_batch")  # fmt: skip
    refuses(lambda: mixer(x), NotImplementedError, "")
    net = gated_delta_net.GatedDeltaNet
    under = type(net.__name__, (_UnderPlans, net), {})
    for position, name in (
        (1, "attention_mask"),
        (2, "key_value_states"),
        (3, "inference_context"),
    ):
        given = [None, None, None, None, params]
        given[position - 1] = x
        refuses(lambda: under.forward(object.__new__(under), x, *given), ValueError,
                f"{name} is given; allowed: None")  # fmt: skip


def test_kinds_of_mixers():
    """Those that change nothing which is computed here are taken, others are refused."""

    class Named(MambaMixer):
        def __init__(self) -> None:
            super().__init__()
            self.name = "mine"

    class Changed(Named):
        def forward(self, hidden_states, **others):
            return hidden_states

    mixer = Named()
    put_under_plans("mixer", mixer)
    assert isinstance(mixer, _UnderPlans)
    pattern = "mixer is a Changed, which has a forward of its own; allowed: GatedDeltaNet"
    refuses(lambda: put_under_plans("mixer", Changed()), ValueError, pattern)


def test_other_mixers():
    other = SimpleNamespace(conv1d=None, A_log=None)
    pattern = "mixer is a SimpleNamespace, a recurrent layer without a plan; allowed: GatedDeltaNet"
    refuses(lambda: put_under_plans("mixer", other), ValueError, pattern)
