# SPDX-License-Identifier: Apache-2.0
"""Helpers of magi_attention.api that need no process group, and plans as values."""

import copy
import itertools
import pickle

import pytest
import torch

import dense
from magi_attention import api, masks
from magi_attention.common import AttnMaskType, AttnRange, AttnRanges
from magi_attention.config import DispatchConfig, DistAttnConfig, ZigzagDispatchAlg
from magi_attention.plan import Plan


def pairs(q_ranges, k_ranges, types, rows):
    kinds = [t.to_int_type() for t in types]
    mask = dense.Mask(q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges(), kinds, rows, rows)
    counts = mask.multiplicity()
    assert (counts <= 1).all()
    return counts > 0


class TestPadding:
    def test_compute_pad_size(self):
        assert api.compute_pad_size(100, 4, 8) == 28
        assert api.compute_pad_size(128, 4, 8) == 0 == api.compute_pad_size(0, 4, 8)
        with pytest.warns(DeprecationWarning, match="head_dim"):
            assert api.compute_pad_size(1000, 2, head_dim=64) == 24
        for arguments in ((10, 0, 8), (10, 2, 0), (-1, 2, 8)):
            with pytest.raises(ValueError):
                api.compute_pad_size(*arguments)
        with pytest.raises(TypeError, match="chunk_size"):
            api.compute_pad_size(10, 2)

    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_pad_and_unpad_along_any_axis(self, dim):
        x = torch.arange(24.0).reshape(2, 3, 4)
        right = api.pad_at_dim(x, dim, 5, value=7)
        left = api.pad_at_dim(x, dim, 5, value=7, side="left")
        assert right.shape[dim] == x.shape[dim] + 5 == left.shape[dim]
        assert torch.equal(api.unpad_at_dim(right, dim, 5), x)
        assert torch.equal(left.narrow(dim, 5, x.shape[dim]), x)
        assert (right.narrow(dim, x.shape[dim], 5) == 7).all()
        assert (left.narrow(dim, 0, 5) == 7).all()
        assert api.pad_at_dim(x, dim, 0) is x

    def test_apply_padding(self):
        q, k = AttnRanges.from_ranges([(0, 10)]), AttnRanges.from_ranges([(0, 10)])
        types = [AttnMaskType.CAUSAL]
        padded = api.apply_padding(q, k, types, 10, 6)
        assert padded[0].to_naive_ranges() == [(0, 10), (10, 16)]
        assert padded[1].to_naive_ranges() == [(0, 10), (0, 0)]
        assert padded[2] == [AttnMaskType.CAUSAL, AttnMaskType.FULL]
        assert len(q) == len(k) == len(types) == 1
        assert api.apply_padding(q, k, types, 10, 0)[0].to_naive_ranges() == [(0, 10), (10, 10)]

    def test_squash_batch_dim(self):
        assert api.squash_batch_dim(torch.zeros(2, 3, 4)).shape == (6, 4)


class TestMaskHelpers:
    def test_batches(self):
        q, k = api.infer_varlen_mask_from_batch(3, 5, device="cpu")
        assert q.tolist() == k.tolist() == [0, 5, 10, 15] and q.dtype == torch.int32
        with pytest.warns(DeprecationWarning, match="full_attention_to_varlen_attention"):
            assert api.full_attention_to_varlen_attention(3, 5, device="cpu")[0].equal(q)

    @pytest.mark.parametrize("window", [(2, 3), (0, 0), (-1, 2), (4, -1), (-1, -1), (30, 1)])
    @pytest.mark.parametrize("q, k", [((5, 15), (5, 15)), ((0, 6), (0, 11)), ((0, 11), (2, 8))])
    def test_sliding_windows(self, q, k, window):
        q_ranges, k_ranges, types = api.infer_attn_mask_from_sliding_window(
            AttnRange(*q), AttnRange(*k), window
        )
        rows = 20
        expected = torch.zeros(rows, rows, dtype=torch.bool)
        left, right = (side if side >= 0 else 10**6 for side in window)
        for i in range(*q):
            for j in range(*k):
                centre = i + k[1] - q[1]  # aligned bottom right
                expected[i, j] = centre >= k[0] and centre - left <= j <= centre + right
        assert torch.equal(pairs(q_ranges, k_ranges, types, rows), expected)
        assert len(types) <= 3

    @pytest.mark.parametrize(
        "causal, window", [(False, (-1, -1)), (True, (-1, -1)), (False, (3, 0))]
    )
    def test_cu_seqlens(self, causal, window):
        bounds = torch.tensor([0, 4, 11, 20], dtype=torch.int32)
        *mask, rows_q, rows_k = api.infer_attn_mask_from_cu_seqlens(bounds, bounds, causal, window)
        assert rows_q == rows_k == 20
        expected = torch.zeros(20, 20, dtype=torch.bool)
        for begin, end in ((0, 4), (4, 11), (11, 20)):
            for i in range(begin, end):
                for j in range(begin, end):
                    in_window = window == (-1, -1) or i - 3 <= j <= i
                    expected[i, j] = in_window and (not causal or j <= i)
        assert torch.equal(pairs(*mask, 20), expected)

    def test_windows_of_more_queries_than_keys(self):
        """The two meanings of the same arguments."""
        aligned = torch.tensor([[1, 1], [1, 1]], dtype=torch.bool)
        *mask, _, _ = api.infer_attn_mask_from_cu_seqlens([0, 4], [0, 2], window_size=(1, 1))
        found = pairs(*mask, 4)[:, :2]
        assert torch.equal(found[2:], aligned) and not found[:2].any()
        mask = masks.from_cu_seqlens([0, 4], [0, 2], causal=False, window_size=(1, 1)).ranges()
        found = pairs(*mask, 4)[:, :2]
        assert torch.equal(found[2:], aligned) and found[:2].int().tolist() == [[0, 0], [1, 0]]

    def test_global_keys_of_more_queries_than_keys(self):
        """Rows above the diagonal see no other keys."""
        for right, num_global, expected in (
            (0, 1, [[1, 0], [1, 0], [1, 0], [1, 1]]),
            (0, 2, [[1, 0], [1, 1], [1, 1], [1, 1]]),
            (-1, 1, [[1, 0], [1, 0], [1, 1], [1, 1]]),
        ):
            *mask, rows_q, rows_k = api.infer_attn_mask_from_cu_seqlens(
                [0, 4], [0, 2], window_size=(0, right), global_window_size=num_global
            )
            assert (rows_q, rows_k) == (4, 2)
            assert pairs(*mask, 4)[:, :2].int().tolist() == expected

    def test_windows_with_global_keys_over_documents(self, rng):
        """Row i sees key j up to the window's right side, and from its left side on or among the
        first keys of the document.
        """
        for _ in range(100):
            cuts = sorted(rng.sample(range(1, 24), 2))
            bounds = [0, *cuts, 24]
            left, right = rng.randint(-1, 12), rng.randint(-1, 12)
            num_global = rng.randint(0, 12)
            *mask, _, _ = api.infer_attn_mask_from_cu_seqlens(
                bounds, bounds, window_size=(left, right), global_window_size=num_global
            )
            expected = torch.zeros(24, 24, dtype=torch.bool)
            for begin, end in itertools.pairwise(bounds):
                i = torch.arange(end - begin)[:, None]
                j = torch.arange(end - begin)[None, :]
                before = (j <= i + right) | (right < 0)
                after = (j >= i - left) | (left < 0) | (j < num_global)
                expected[begin:end, begin:end] = before & after
            assert torch.equal(pairs(*mask, 24), expected), (bounds, left, right, num_global)

    def test_contents_count_not_identity(self):
        bounds = torch.tensor([0, 4, 8], dtype=torch.int32)
        first = api.infer_attn_mask_from_cu_seqlens(bounds, bounds)
        bounds[1] = 5
        assert api.infer_attn_mask_from_cu_seqlens(bounds, bounds) != first


def make_plan(name="varlen_causal", rows=100, **changes):
    mask = dense.masks(rows)[name]
    arguments = {"cp_size": 4, "num_heads_q": 4, "num_heads_kv": 2, "head_dim": 8, **changes}
    return Plan.from_ranges(*mask.ranges(), rows, **arguments)


class TestPlan:
    def test_is_a_value(self):
        plan, same, other = make_plan(), make_plan(), make_plan("full")
        assert plan == same and hash(plan) == hash(same) and plan != other and plan != 1
        assert Plan.from_json(plan.to_json()) == plan == pickle.loads(pickle.dumps(plan))
        assert "balance" in str(plan) and "total_seqlen=100" in repr(plan)
        assert plan.defects() == ""

    def test_a_bound_plan_tells_its_rank_and_rows(self):
        bound = make_plan(cp_size=1).bind()
        assert repr(bound).startswith(f"BoundPlan(rank=0, local_rows={bound.local_rows}, ")
        assert repr(bound.plan) in repr(bound)

    def test_a_copy_of_a_bound_plan_is_the_bound_plan(self):
        """As of a module that holds one: what the library made has one owner."""
        module = torch.nn.Linear(2, 2)
        module.bound = bound = make_plan(cp_size=1).bind()
        assert copy.deepcopy(module).bound is copy.copy(bound) is bound
        for shared in (bound.communicator, bound.plan.handle, bound.plan.placement):
            assert copy.deepcopy(shared) is copy.copy(shared) is shared
            with pytest.raises(TypeError, match="cannot be pickled, as it is an address"):
                pickle.dumps(shared)
        with pytest.raises(TypeError, match="a bound plan cannot be pickled"):
            pickle.dumps(bound)

    def test_position_ids_first_asked_for_in_inference_mode_serve_training(self):
        """They are kept, and tables of positions save them for backward."""
        bound = make_plan(cp_size=1).bind()
        with torch.inference_mode():
            bound.position_ids_on(torch.device("cpu"))
        table = torch.nn.Embedding(100, 2)
        table(bound.position_ids).sum().backward()
        assert table.weight.grad.sum() == 2 * bound.local_rows

    def test_position_ids_are_the_callers_to_change(self):
        bound = make_plan(cp_size=1).bind()
        x = torch.arange(100.0)
        for ids in (bound.position_ids, bound.position_ids_on(torch.device("cpu"))):
            ids += 1
            assert torch.equal(bound.undispatch(bound.dispatch(x)), x)

    def test_figures(self):
        plan = make_plan()
        assert plan.total_seqlen == 100 and plan.cp_size == 4
        assert plan.padded_seqlen % (plan.chunk_size * 4) == 0
        assert plan.pad_size == plan.padded_seqlen - 100
        assert sum(plan.rows_of(rank) for rank in range(4)) == plan.padded_seqlen
        area = dense.masks(100)["varlen_causal"].multiplicity().sum()
        assert sum(plan.report.rank_area) == int(area)
        assert len(plan.chunk_ranks) == plan.padded_seqlen // plan.chunk_size
        rows = [row for rank in range(4) for row in plan.position_ids(rank)]
        assert set(rows) == set(range(100))

    def test_a_contiguous_layout_is_not_ignored(self):
        in_order = DistAttnConfig(DispatchConfig(layout="contiguous"))
        first = make_plan(config=in_order)
        assert make_plan("full", config=in_order, on=first).chunk_ranks == first.chunk_ranks
        assert make_plan("full", on=first).chunk_ranks == first.chunk_ranks
        zigzag = make_plan(config=DistAttnConfig(DispatchConfig(alg=ZigzagDispatchAlg())))
        with pytest.raises(ValueError, match="on is a plan whose ranks hold several runs"):
            make_plan("full", config=in_order, on=zigzag)

    @pytest.mark.parametrize("work", [None, "keys", "queries", "heads", "auto"])
    def test_rows_in_order_are_one_run_a_rank(self, work):
        for rows, uneven in ((100, False), (101, False), (101, True)):
            layout = DispatchConfig(layout="contiguous", uneven_shard=uneven)
            plan = make_plan(rows=rows, config=DistAttnConfig(layout, work=work), num_heads_kv=4)
            assert plan.defects() == ""
            ids = [plan.position_ids(rank) for rank in range(4)]
            assert [row for of_rank in ids for row in of_rank if row < rows][:rows] == list(
                range(rows)
            )
            lengths = {plan.rows_of(rank) for rank in range(4)}
            # A chunk more or less, and the last one may be short.
            assert max(lengths) - min(lengths) < (2 * plan.chunk_size if uneven else 1)
        alone = DistAttnConfig(DispatchConfig(layout="contiguous", uneven_shard=True), work=work)
        permuted = DistAttnConfig(DispatchConfig(uneven_shard=True), work=work)
        for config in (alone, permuted):
            with pytest.raises(ValueError, match="cp_size is 11; allowed: 1 to the number of"):
                make_plan("full", rows=10, cp_size=11, config=config)

    def test_other_mask_on_the_same_rows(self):
        plan = make_plan()
        other = make_plan("full", on=plan)
        assert other.chunk_ranks == plan.chunk_ranks and other != plan

    @pytest.mark.parametrize("picture", ["mask", "placement", "traffic", "timeline"])
    def test_pictures(self, picture, tmp_path):
        path = tmp_path / "plan.svg"
        svg = make_plan().show(picture, str(path), "four ranks")
        assert svg.startswith("<svg") and "four ranks" in svg and path.read_text() == svg
        with pytest.raises(ValueError, match="picture is 'x'"):
            make_plan().show("x")

    def test_alone(self):
        """A plan of one rank needs no process group."""
        bound = make_plan(cp_size=1).bind()
        x = torch.randn(100, 4, 8, dtype=torch.float64)
        q, kv = bound.dispatch(x), bound.dispatch(x[:, :2])
        out, _ = bound.calc_attn(q, kv, kv)
        wanted, _, _ = dense.attention(x, x[:, :2], x[:, :2], dense.masks(100)["varlen_causal"])
        assert torch.allclose(bound.undispatch(out), wanted)
        with pytest.raises(ValueError, match="cp_group has 1 ranks; allowed: 4"):
            make_plan().bind()
        with pytest.raises(ValueError, match=r"x has shape \[99, 4, 8\]; allowed: \[100, ...\]"):
            bound.dispatch(x[1:])
        with pytest.raises(ValueError, match="q has 3 rows"):
            bound.calc_attn(q[:3], kv, kv)
        with pytest.raises(ValueError, match=r"q.shape is \[104, 8, 8\]; allowed: \[104, 4, 8\]"):
            bound.calc_attn(torch.cat((q, q), 1), kv, kv)
