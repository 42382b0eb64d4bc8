# SPDX-License-Identifier: Apache-2.0
"""Recurrences by the kernels of fla-core, for 16-bit tensors on GPUs. The only module that imports
it; without it, layers compute in plain torch.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import warnings
from typing import Any

import torch

from magi_attention._native.vtable import SUM
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.recurrent._kinds import Delta, Scalar
from magi_attention.recurrent._recurrence import Tensors
from magi_attention.recurrent._table import Halo, OwnRuns, moved

VERSIONS = ((0, 6), (0, 7))  # the first that these calls fit, and the first that they may not
_CHUNK = 64  # rows
_WIDEST_KEY = 256
_PART = 8192  # rows
_ROWS_OF_A_CALL = 65536  # for which a call that makes summaries holds states at all chunks' begins


@functools.cache
def is_installed() -> bool:
    """Whether fla-core is here, in a version whose functions these modules know."""
    try:
        version = importlib.metadata.version("fla-core")
    except importlib.metadata.PackageNotFoundError:
        return False
    low, high = VERSIONS
    known = re.match(r"(\d+)\.(\d+)", version)
    if known is not None and low <= tuple(map(int, known.groups())) < high:
        return True
    allowed = ">={}.{},<{}.{}".format(*low, *high)
    warnings.warn(
        f"fla-core is {version}; allowed: {allowed}; recurrent layers compute in plain torch",
        stacklevel=2,
    )
    return False


def serves(x: torch.Tensor) -> bool:
    """Whether layers over x compute by kernels."""
    is_fit = x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and len(x) > 0
    return is_fit and is_installed()


def serves_keys(k: torch.Tensor) -> bool:
    """Whether there is a kernel of the delta rule for such keys."""
    return k.shape[-1] <= _WIDEST_KEY


class Convolution:
    """A causal convolution over the runs of a rank: x [rows, channels], weight [channels, width],
    bias [channels] or None -> like x. halo: None, as all runs of all ranks begin documents.

    The kernel, which is slower with rows before its runs, convolves them as if each began a
    document. The few results that this makes wrong are computed again.
    """

    def __init__(self, activation: str | None, runs: OwnRuns, halo: Halo | None) -> None:
        self._activation, self._runs, self._halo = activation, runs, halo

    def __call__(self, x, weight, bias) -> torch.Tensor:
        return _Convolved.apply(self, x, weight, bias)

    def forward(self, x, weight, bias):
        """The results, and the rows that those of edges depend on."""
        from fla.modules.causal_conv1d.ops import causal_conv1d_fwd

        rows = _calls_of(self._runs, x.device).rows
        out, _ = causal_conv1d_fwd(
            x.unsqueeze(0), weight, bias, None, activation=self._activation, **rows
        )
        if (halo := self._halo) is None:
            return out[0], None
        edges = _edges_of(self._runs, halo)
        fetched = halo.fetch.fetched(x[halo.sent])
        given = torch.cat((x[edges.rows], fetched, x.new_zeros((1, x.shape[1]))))
        found = self._of_windows(given[edges.windows], weight, bias)
        out[0].index_copy_(0, edges.targets, found.flatten(0, 1)[edges.kept].to(x.dtype))
        return out[0], given

    def _of_windows(self, windows, weight, bias) -> torch.Tensor:
        """[runs, twice the rows that the convolution looks back, channels] -> the results of the
        latter half, float32.
        """
        pieces = windows.float().unfold(1, weight.shape[1], 1)
        found = (pieces * weight.float()).sum(-1)
        found = found if bias is None else found + bias.float()
        return found if self._activation is None else torch.nn.functional.silu(found)

    def backward(self, saved, dout, moves_rows: bool):
        from fla.modules.causal_conv1d.ops import causal_conv1d_bwd

        x, weight, bias, given = saved
        dx, dweight, dbias, *_ = causal_conv1d_bwd(
            x.unsqueeze(0), dout.unsqueeze(0), None, weight, bias, activation=self._activation,
            **_calls_of(self._runs, x.device).rows,
        )  # fmt: skip
        dx = dx[0]
        if self._halo is None:
            return dx, dweight, dbias
        of_given, *more = self._of_edges(given, weight, bias, dout)
        dweight, dbias = (
            None if found is None else (found.float() + other).to(found.dtype)
            for found, other in zip((dweight, dbias), (*more, None))
        )
        if moves_rows:
            self._add_of_given(dx, of_given)
        return dx, dweight, dbias

    def _of_edges(self, given, weight, bias, dout) -> Tensors:
        """The gradients of what an edge's results depend on, weight and bias, which there are,
        less those that the kernel made.
        """
        edges, width = _edges_of(self._runs, self._halo), weight.shape[1] - 1
        of_results = dout.new_zeros((edges.windows.shape[0] * width, dout.shape[1]))
        of_results = of_results.float().index_copy_(0, edges.kept, dout[edges.targets].float())
        with torch.enable_grad(), torch.autocast(dout.device.type, enabled=False):
            leaves = [
                x.detach().float().requires_grad_() for x in (given, weight, bias) if x is not None
            ]
            windows, *parameters = leaves[0][edges.windows], *leaves[1:], None
            of_runs_alone = torch.cat((torch.zeros_like(windows[:, :width]), windows[:, width:]), 1)
            right, wrong = (self._of_windows(x, *parameters[:2]) for x in (windows, of_runs_alone))
            return torch.autograd.grad((right - wrong).flatten(0, 1), leaves, of_results)

    def _add_of_given(self, dx: torch.Tensor, of_given: torch.Tensor) -> None:
        """Adds the gradients of own rows, none of which comes twice, and sends those of others
        back.
        """
        halo, edges = self._halo, _edges_of(self._runs, self._halo)
        own, fetched, _ = of_given.to(dx.dtype).split((len(edges.rows), halo.fetch.count, 1))
        sent = halo.fetch.move(SUM, fetched, len(halo.sent))
        for rows, found in ((edges.rows, own), (halo.sent, sent)):
            dx.index_add_(0, rows, found)


class _Edges:
    """The rows at the begins of runs that are no roots, whose results depend on rows before them.

    rows: the own rows that these are and depend on; windows: [runs, twice what a convolution looks
    back], of the rows before a run and its first ones the places among `rows`, fetched rows and,
    after these, one row of zeros; kept: which of the first ones there are, counted run by run;
    targets: these rows.
    """

    def __init__(self, runs: OwnRuns, halo: Halo) -> None:
        before = halo.on_host[runs.others]
        begins, ends = (
            x[runs.others].unsqueeze(1) for x in (runs.cu_seqlens[:-1], runs.cu_seqlens[1:])
        )
        first = begins + torch.arange(before.shape[1], device="cpu")
        count = int(runs.cu_seqlens[-1])
        windows = torch.cat((before, first.where(first < ends, count + halo.fetch.count)), 1)
        is_own = windows < count
        rows, places = windows[is_own].unique(return_inverse=True)
        windows += len(rows) - count
        windows[is_own] = places
        kept = (first < ends).flatten().nonzero().flatten()
        found = rows, windows, kept, first.flatten()[kept]
        device = halo.sent.device
        self.rows, self.windows, self.kept, self.targets = (moved(x, device) for x in found)


def _edges_of(runs: OwnRuns, halo: Halo) -> _Edges:
    """Those of the runs, made once for each width."""
    key = _Edges, halo.places.shape[1], halo.sent.device
    if key not in runs.kept:
        runs.kept[key] = _Edges(runs, halo)
    return runs.kept[key]


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer: Convolution, x, weight, bias):
        ctx.layer = layer
        out, given = layer.forward(x, weight, bias)
        ctx.save_for_backward(x, weight, bias, given)
        return out

    @staticmethod
    def backward(ctx, dout):
        refuse_second_derivative("a recurrent layer")
        return None, *ctx.layer.backward(ctx.saved_tensors, dout, ctx.needs_input_grad[1])


class _Calls:
    """The arguments that all calls of kernels over the runs of a rank take: chunks, and where each
    run's begin, which functions of states take besides and would else make anew.
    """

    def __init__(self, runs: OwnRuns, device: torch.device) -> None:
        from fla.ops.utils import chunk_local_cumsum
        from fla.ops.utils.constant import RCP_LN2

        self._host, self._spans = runs.cu_seqlens, {}
        self.of_states = _chunks_of(runs.cu_seqlens, device)
        self.chunks = {**self.of_states}
        self.offsets, self.borders = self.chunks.pop("chunk_offsets"), self.chunks["cu_seqlens"]
        self.rows = {name: self.chunks[name] for name in ("cu_seqlens", "chunk_indices")}
        self._sum, self._to_base_2 = chunk_local_cumsum, RCP_LN2

    def of_span(self, first: int, end: int) -> tuple[slice, dict[str, Any]]:
        """The rows of runs that follow each other, and of_states over these alone."""
        if (first, end) not in self._spans:
            host = self._host[first : end + 1]
            rows, host = slice(*host[[0, -1]].tolist()), host - host[0]
            self._spans[first, end] = rows, _chunks_of(host, self.borders.device)
        return self._spans[first, end]

    def decays(self, log_decay: torch.Tensor) -> torch.Tensor:
        """Sums since each chunk's begin, of logarithms to the base of 2."""
        return self._sum(log_decay.float(), scale=self._to_base_2, **self.chunks)

    def of_log_decay(self, gradient: torch.Tensor) -> torch.Tensor:
        return self._sum(gradient, reverse=True, **self.chunks)[0]


def _chunks_of(cu_seqlens: torch.Tensor, device: torch.device) -> dict[str, Any]:
    from fla.ops.utils import prepare_chunk_indices, prepare_chunk_offsets

    found = dict(
        cu_seqlens=cu_seqlens,
        chunk_indices=prepare_chunk_indices(cu_seqlens, _CHUNK),
        chunk_offsets=prepare_chunk_offsets(cu_seqlens, _CHUNK),
    )
    return {name: moved(x, device) for name, x in found.items()} | {"chunk_size": _CHUNK}


def _calls_of(runs: OwnRuns, device: torch.device) -> _Calls:
    """Those of the runs on a device; one object, as kernels keep what they make of its tensors."""
    key = _Calls, device
    if key not in runs.kept:
        runs.kept[key] = _Calls(runs, device)
    return runs.kept[key]


def _batched(inputs: Tensors) -> list[torch.Tensor]:
    """[rows, ...] -> [1, rows, ...]."""
    return [x.unsqueeze(0).contiguous() for x in inputs]


class DeltaKernels(Delta):
    """Delta, with one decay for each head (GDN), or one for each channel of k (KDA)."""

    part_rows = _PART

    def forward(self, inputs, runs):
        kind = _KdaForward if inputs[3].shape[-1] > 1 else _GdnForward
        return kind(self.scale, inputs, runs)

    def backward(self, saved, runs, states, dout):
        kind = _KdaBackward if saved[3].dim() == 4 else _GdnBackward
        return kind(self.scale, saved, runs, states, dout)


class _DeltaForward:
    """decay: the sums of logarithms of decays, under the name that kernels of states know them by;
    keys: the keys, as states take them in.
    """

    def summary(self):
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        heads, dim_v = self.u.shape[2:]
        dim_k = self.keys.shape[-1]
        shape = (len(self.runs.with_heirs), heads, dim_k, dim_v + dim_k)
        whole, at = self.u.new_zeros(shape, dtype=torch.float32), 0
        whole.diagonal(dim_v, -2, -1).fill_(1)  # the state [0, I] becomes [B, A]
        for first, end in self.runs.spans(self.runs.with_heirs, _ROWS_OF_A_CALL):
            rows, chunks = self.calls.of_span(first, end)
            added = torch.nn.functional.pad(self.u[:, rows], (0, dim_k))
            decay = {name: x[:, rows] for name, x in self.decay.items()}
            own = slice(at, at := at + end - first)
            _, _, whole[own] = chunk_gated_delta_rule_fwd_h(
                self.keys[:, rows], self.w[:, rows], added, **decay, initial_state=whole[own],
                output_final_state=True, save_new_value=False, **chunks,
            )  # fmt: skip
        return whole[..., dim_v:], whole[..., :dim_v]


def _states_and_values(call, states):
    """States at the begin of each chunk, and what each row adds to them."""
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

    h, values, _ = chunk_gated_delta_rule_fwd_h(
        call.keys, call.w, call.u, **call.decay, initial_state=states, **call.calls.of_states
    )
    return h, values


class _GdnForward(_DeltaForward):
    def __init__(self, scale: float, inputs: Tensors, runs: OwnRuns) -> None:
        from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra

        self.scale, self.runs = scale, runs
        self.calls = calls = _calls_of(runs, inputs[0].device)
        self.q, k, v, log_decay, beta = _batched(inputs)
        self.keys, g = k, calls.decays(log_decay.squeeze(-1))
        self.decay = dict(g=g)
        self.w, self.u, pairs = chunk_gated_delta_rule_fwd_intra(
            k=k, v=v, g=g, beta=beta, **calls.chunks
        )
        self.saved = (self.q, k, v, g, beta, pairs)

    def results(self, states):
        from fla.ops.common.chunk_o import chunk_fwd_o

        h, values = _states_and_values(self, states)
        options = dict(**self.decay, scale=self.scale, **self.calls.chunks)
        return chunk_fwd_o(self.q, self.keys, values, h, **options)[0]


class _KdaForward(_DeltaForward):
    def __init__(self, scale: float, inputs: Tensors, runs: OwnRuns) -> None:
        from fla.ops.kda.chunk_intra import chunk_kda_fwd_intra

        self.scale, self.runs = scale, runs
        self.calls = calls = _calls_of(runs, inputs[0].device)
        self.q, k, v, log_decay, beta = _batched(inputs)
        g = calls.decays(log_decay)
        self.decay = dict(gk=g)
        self.w, self.u, _, self.keys, self.scores, pairs = chunk_kda_fwd_intra(
            q=self.q, k=k, v=v, gk=g, beta=beta, scale=scale, **calls.chunks
        )
        self.saved = (self.q, k, v, g, beta, pairs, self.scores)

    def results(self, states):
        from fla.ops.gla.chunk import chunk_gla_fwd_o_gk

        h, values = _states_and_values(self, states)
        return chunk_gla_fwd_o_gk(
            q=self.q, v=values, g=self.decay["gk"], A=self.scores, h=h, scale=self.scale,
            **self.calls.chunks,
        )[0]  # fmt: skip


class _DeltaBackward:
    """queries: as gradients of states take them in; dvalues: gradients of what rows add to states,
    by the results of their own chunk.
    """

    def _begin(self, scale, runs, dout, queries) -> None:
        self.scale, self.runs = scale, runs
        self.calls = _calls_of(runs, dout.device)
        self.dout = dout.unsqueeze(0).contiguous().to(queries.dtype)

    def of_starts(self):
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_bwd_dhu

        heads, dim_v = self.dout.shape[2:]
        shape = (len(self.runs.others), heads, self.keys.shape[-1], dim_v)
        found, at = self.dout.new_zeros(shape, dtype=torch.float32), 0
        given = (self.queries, self.keys, self.w, self.dout, self.dvalues)
        for first, end in self.runs.spans(self.runs.others, _ROWS_OF_A_CALL):
            rows, chunks = self.calls.of_span(first, end)
            decay = {name: x[:, rows] for name, x in self.decay.items()}
            own = slice(at, at := at + end - first)
            _, found[own], _ = chunk_gated_delta_rule_bwd_dhu(
                *(x[:, rows] for x in given), **decay, h0=found[own], scale=self.scale, **chunks
            )
        return found

    def of_states(self, ends):
        """Gradients of states at the begin of each chunk, and of what rows add to them."""
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_bwd_dhu

        dh, _, dvalues = chunk_gated_delta_rule_bwd_dhu(
            self.queries, self.keys, self.w, self.dout, self.dvalues, **self.decay, dht=ends,
            scale=self.scale, **self.calls.of_states,
        )  # fmt: skip
        return dh, dvalues


class _GdnBackward(_DeltaBackward):
    def __init__(self, scale, saved: Tensors, runs: OwnRuns, states, dout) -> None:
        from fla.ops.common.chunk_o import chunk_bwd_dv_local
        from fla.ops.gated_delta_rule.wy_fast import recompute_w_u_fwd

        self.queries, self.keys, self.v, g, self.beta, self.pairs = saved
        self._begin(scale, runs, dout, self.queries)
        self.decay = dict(g=g)
        self.w, self.u = recompute_w_u_fwd(
            self.keys, self.v, self.beta, self.pairs, g, **self.calls.rows
        )
        self.h, self.values = _states_and_values(self, states)
        self.dvalues = chunk_bwd_dv_local(
            self.queries, self.keys, self.dout, **self.decay, scale=scale, **self.calls.chunks
        )

    def of_inputs(self, ends):
        from fla.ops.common.chunk_o import chunk_bwd_dqkwg
        from fla.ops.gated_delta_rule.wy_fast import prepare_wy_repr_bwd

        dh, dvalues = self.of_states(ends)
        dq, dk, dw, dg = chunk_bwd_dqkwg(
            self.queries, self.keys, self.values, self.dout, self.h, dh, w=self.w, dv=dvalues,
            **self.decay, scale=self.scale, **self.calls.chunks,
        )  # fmt: skip
        more_dk, dv, dbeta, more_dg = prepare_wy_repr_bwd(
            k=self.keys, v=self.v, beta=self.beta, **self.decay, A=self.pairs, dw=dw, du=dvalues,
            **self.calls.rows,
        )  # fmt: skip
        of_decay = self.calls.of_log_decay(dg.add_(more_dg)).unsqueeze(-1)
        return dq[0], dk.add_(more_dk)[0], dv[0], of_decay, dbeta[0]


class _KdaBackward(_DeltaBackward):
    def __init__(self, scale, saved: Tensors, runs: OwnRuns, states, dout) -> None:
        from fla.ops.kda.chunk_bwd import chunk_kda_bwd_dAv
        from fla.ops.kda.wy_fast import recompute_w_u_fwd

        self.q, self.k, self.v, g, self.beta, self.pairs, scores = saved
        self._begin(scale, runs, dout, self.q)
        self.decay = dict(gk=g)
        self.w, self.u, self.queries, self.keys = recompute_w_u_fwd(
            q=self.q, k=self.k, v=self.v, beta=self.beta, A=self.pairs, gk=g, **self.calls.rows
        )
        self.h, self.values = _states_and_values(self, states)
        self.dscores, self.dvalues = chunk_kda_bwd_dAv(
            q=self.q, k=self.k, v=self.values, do=self.dout, A=scores, scale=scale,
            **self.calls.chunks,
        )  # fmt: skip

    def of_inputs(self, ends):
        from fla.ops.kda.chunk_bwd import chunk_kda_bwd_wy_dqkg_fused
        from fla.ops.kda.chunk_intra import chunk_kda_bwd_intra

        dh, dvalues = self.of_states(ends)
        g = self.decay["gk"]
        dq, dk, dv, dbeta, dg, dpairs = chunk_kda_bwd_wy_dqkg_fused(
            q=self.q, k=self.k, v=self.v, v_new=self.values, g=g, beta=self.beta, A=self.pairs,
            h=self.h, do=self.dout, dh=dh, dv=dvalues, scale=self.scale, **self.calls.chunks,
        )  # fmt: skip
        dq, dk, dbeta, dg = chunk_kda_bwd_intra(
            q=self.q, k=self.k, g=g, beta=self.beta, dAqk=self.dscores, dAkk=dpairs, dq=dq, dk=dk,
            db=dbeta, dg=dg, **self.calls.chunks,
        )  # fmt: skip
        if self.v.shape[2] > self.k.shape[2]:  # keys that serve several heads
            dq, dk = (x.unflatten(2, (self.k.shape[2], -1)).sum(3) for x in (dq, dk))
        return dq[0], dk[0], dv[0], self.calls.of_log_decay(dg), dbeta[0]


class ScalarKernels(Scalar):
    def forward(self, inputs, runs):
        return _ScalarForward(inputs, runs)

    def backward(self, saved, runs, states, dout):
        return _ScalarBackward(saved, runs, states, dout)


class _ScalarForward:
    def __init__(self, inputs: Tensors, runs: OwnRuns) -> None:
        self.runs, self.log_decay = runs, inputs[3].float()
        self.calls = _calls_of(runs, inputs[0].device)
        self.q, self.k, self.v, _ = _batched(inputs)
        self.g = self.calls.decays(self.log_decay.unsqueeze(0))
        self.saved = (self.q, self.k, self.v, self.g)

    def summary(self):
        ends = _new_states(self.k, self.v, len(self.runs))
        _scalar_states(self.calls, self.saved[1:], None, self.k.dtype, ends)
        ends = ends[self.runs.with_heirs_on(ends.device)]
        factors = ends.new_empty(ends.shape[:2])
        decays = self.log_decay.split(self.runs.lengths)
        for i, run in enumerate(self.runs.with_heirs):
            factors[i] = decays[run].sum(0)
        return factors.exp_(), ends

    def results(self, states):
        from fla.ops.common.chunk_o import chunk_fwd_o

        h = _scalar_states(self.calls, self.saved[1:], states, self.k.dtype)
        return chunk_fwd_o(self.q, self.k, self.v, h, self.g, scale=1.0, **self.calls.chunks)[0]


class _ScalarBackward:
    def __init__(self, saved: Tensors, runs: OwnRuns, states, dout) -> None:
        self.saved, self.runs, self.states = saved, runs, states
        self.calls = _calls_of(runs, dout.device)
        self.dout = dout.unsqueeze(0).contiguous().to(saved[2].dtype)

    def _of_states(self, ends, starts=None) -> torch.Tensor:
        """The gradients of states at the begin of each chunk and, into `starts`, of runs."""
        from fla.ops.common.chunk_h import chunk_bwd_kernel_dh

        q, k, v, g = self.saved
        dh = _new_states(k, v, len(self.calls.chunks["chunk_indices"])).unsqueeze(0)
        _launch_scalar(
            chunk_bwd_kernel_dh, self.calls, (k, v, g), q=q, do=self.dout, dh=dh, dht=ends,
            dh0=starts, scale=1.0, HQ=k.shape[2], NG=1,
        )  # fmt: skip
        return dh

    def of_starts(self):
        starts = torch.empty_like(self.states)
        self._of_states(None, starts)
        return starts[self.runs.others_on(starts.device)]

    def of_inputs(self, ends):
        from fla.ops.common.chunk_o import chunk_bwd_dqkwg, chunk_bwd_dv

        q, k, v, g = self.saved
        h = _scalar_states(self.calls, (k, v, g), self.states, torch.float32)
        given = dict(q=q, k=k, g=g, do=self.dout, dh=self._of_states(ends), scale=1.0)
        dq, dk, _, dg = chunk_bwd_dqkwg(v=v, h=h, **given, **self.calls.chunks)
        dv = chunk_bwd_dv(**given, **self.calls.chunks)
        return dq[0], dk[0], dv[0], self.calls.of_log_decay(dg)


def _new_states(k, v, count: int, dtype=torch.float32) -> torch.Tensor:
    return k.new_empty((count, *k.shape[2:], v.shape[-1]), dtype=dtype)


def _scalar_states(calls: _Calls, inputs: Tensors, starts, dtype, ends=None) -> torch.Tensor:
    """The states of k, v and the decays' sums at the begin of each chunk and, into `ends`, at the
    ends of runs.
    """
    from fla.ops.common.chunk_h import chunk_fwd_kernel_h

    k, v, _ = inputs
    h = _new_states(k, v, len(calls.chunks["chunk_indices"]), dtype).unsqueeze(0)
    _launch_scalar(chunk_fwd_kernel_h, calls, inputs, k=k, v=v, h=h, h0=starts, ht=ends)
    return h


def _launch_scalar(kernel, calls: _Calls, inputs: Tensors, **given: Any) -> None:
    """Launches a kernel over the states of k, v and g. The functions of fla-core around it ask the
    device how many chunks there are, for which the host waits.
    """
    k, v, g = inputs
    (_, rows, heads, dim_k), dim_v = k.shape, v.shape[-1]

    def grid(meta):
        blocks = -(-dim_k // meta["BK"]) * -(-dim_v // meta["BV"])
        return (blocks * (len(calls.borders) - 1) * heads,)

    kernel[grid](
        **given, g=g, g_gamma=None, gk=None, gv=None, cu_seqlens=calls.borders,
        split_offsets=calls.offsets, T=rows, H=heads, K=dim_k, V=dim_v, BT=_CHUNK, BS=_CHUNK,
        USE_G=True, USE_G_GAMMA=False, USE_GK=False, USE_GV=False, STATE_V_FIRST=False,
    )  # fmt: skip
