# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments that need no process group: one sentence that names the argument."""

import ctypes
import inspect
import re
from types import SimpleNamespace

import pytest
import torch

from magi_attention import Plan, api, attention, functional, masks, testing, utils
from magi_attention._native import structs, vtable
from magi_attention._native.library import lib
from magi_attention.common import AttnMaskType, AttnRange, AttnRanges, RangeError
from magi_attention.common.enum import AttnOverlapMode, OverlapAlgType
from magi_attention.config import DispatchConfig, DistAttnConfig, GrpCollConfig, OverlapConfig
from magi_attention.integrations import packed
from magi_attention.meta.solver import dispatch_solver as solver
from magi_attention.meta.solver.overlap_solver import GreedyOverlapAlg
from magi_attention.testing import ref_attn_func
from magi_attention.utils import sparse_utils
from magi_attn_extensions.fa3_interface_with_sink import fa3_func_with_sink

ONE = AttnRanges.from_ranges([(0, 64)])
X = torch.zeros(64, 2)
HUGE = 2**40


def plan(**changes):
    arguments = {
        "q_ranges": ONE, "k_ranges": ONE, "attn_mask_type": "full", "total_seqlen": 64,
        "cp_size": 1, "num_heads_q": 4, "num_heads_kv": 2, "head_dim": 8, **changes,
    }  # fmt: skip
    return Plan.from_ranges(**arguments)


def ranges(start, end):
    return AttnRanges.from_ranges([(start, end)])


def window(*size, q=(0, 8), k=(0, 8)):
    return api.infer_attn_mask_from_sliding_window(AttnRange(*q), AttnRange(*k), size)


def documents(bounds, **options):
    return api.infer_attn_mask_from_cu_seqlens(bounds, [0, 8], **options)


PLANS = [
    (lambda: plan(cp_size=0), ValueError, "cp_size is 0"),
    (lambda: plan(cp_size=5000), ValueError, "cp_size is 5000; allowed: 1 to 4096"),
    (lambda: plan(num_heads_q=3), ValueError, "num_heads_q is 3; allowed: multiples"),
    (lambda: plan(head_dim=0), ValueError, "head_dim is 0"),
    (lambda: plan(cp_size="2"), TypeError, "cp_size is '2'; allowed: an int"),
    (lambda: plan(num_heads_q=2**32 + 4), ValueError, "num_heads_q is 4294967300"),
    (lambda: plan(total_seqlen=-1), ValueError, "total_seqlen is -1"),
    (lambda: plan(total_seqlen=HUGE), ValueError, "total_seqlen is 1099511627776"),
    (lambda: plan(k_ranges=None), TypeError, "k_ranges is a NoneType"),
    (lambda: plan(q_ranges=ranges(0, 65)), ValueError, "q_ranges[0].end is 65; allowed: 0 to 64"),
    (lambda: plan(q_ranges=ranges(-1, 4)), ValueError, "q_ranges[0].start is -1"),
    (lambda: plan(k_ranges=ranges(5, 2)), RangeError, "range is [5, 2); allowed: start <= end"),
    (lambda: plan(k_ranges=ranges(0, HUGE)), ValueError, "k_ranges[0].end is 1099511627776"),
    (lambda: plan(q_ranges=ranges(0, 2.5)), TypeError, "q_ranges[0].end is 2.5; allowed: an int"),
    (lambda: plan(attn_mask_type=1), TypeError, "attn_mask_type is a int"),
    (lambda: plan(k_ranges=AttnRanges()), ValueError, "k_ranges has 0 entries; allowed: 1"),
    (lambda: plan(attn_mask_type=["full"] * 2), ValueError, "attn_mask_type has 2"),
    (lambda: plan(attn_mask_type="diagonal"), ValueError, "attn_mask_type is 'diagonal'"),
    (lambda: plan(attn_mask_type=["x"]), ValueError, "attn_mask_type is 'x'"),
    (lambda: plan(on=3), TypeError, "on is a int; allowed: a Plan, or None"),
    (lambda: plan(cp_size=2, on=plan()), ValueError, "on.cp_size is 1; allowed: 2, cp_size"),
    (lambda: plan().ranges_of(1), ValueError, "rank is 1; allowed: 0 to 0"),
    (lambda: plan().rows_of(-1), ValueError, "rank is -1; allowed: 0 to 0"),
    (lambda: plan().position_ids(2), ValueError, "rank is 2; allowed: 0 to 0"),
    (lambda: Plan.from_json(None), TypeError, "text is a NoneType; allowed: a str"),
    (
        lambda: plan().bind().dispatch(torch.zeros(64), "x"),
        TypeError,
        "pad_value is a str; allowed: a float",
    ),
]

HELPERS = [
    (lambda: api.compute_pad_size(10, 2, 1.5), TypeError, "chunk_size is 1.5"),
    (lambda: api.compute_pad_size("a", 2, 2), TypeError, "total_seqlen_q is 'a'"),
    (lambda: api.squash_batch_dim([1]), TypeError, "x is a list; allowed: a torch.Tensor"),
    (lambda: api.infer_varlen_mask_from_batch(-1, 4, "cpu"), ValueError, "batch_size is -1"),
    (lambda: api.infer_varlen_mask_from_batch(2.5, 4, "cpu"), TypeError, "batch_size is 2.5"),
    (lambda: api.infer_varlen_mask_from_batch(2**20, 2**20, "cpu"), ValueError,
     "seq_len is 1048576; allowed: 0 to 1023"),
    (lambda: api.pad_at_dim(X, 5, 1), ValueError, "dim is 5; allowed: -2 to 1"),
    (lambda: api.pad_at_dim(X, 0, -1), ValueError, "pad_size is -1"),
    (lambda: api.pad_at_dim(X, 0, 1, side="top"), ValueError, "side is 'top'"),
    (lambda: api.squash_batch_dim(X[0]), ValueError, "x has"),
    (lambda: api.pad_at_dim([1], 0, 1), TypeError, "x is a list"),
    (lambda: api.pad_at_dim(X, 0, 1.5), TypeError, "pad_size is 1.5"),
    (lambda: api.unpad_at_dim(X, -3, 1), ValueError, "dim is -3; allowed: -2 to 1"),
    (lambda: api.unpad_at_dim(X, 0, 65), ValueError, "pad_size is 65; allowed: 0 to 64"),
    (lambda: api.apply_padding(None, ONE, [], 64, 2), TypeError, "q_ranges is a NoneType"),
    (lambda: api.apply_padding(ONE, ONE, "full", 64, 2), TypeError, "attn_mask_type is a str"),
    (lambda: api.apply_padding(ONE, AttnRanges(), [AttnMaskType.FULL], 64, 2), ValueError,
     "k_ranges has 0 entries; allowed: 1"),
    (lambda: window(1, 1, 1), ValueError, "window_size is (1, 1, 1); allowed: (left, right)"),
    (lambda: window(-2, 1), ValueError, "window_size[0] is -2"),
    (lambda: window(1, 1.5), TypeError, "window_size[1] is 1.5"),
    (lambda: window(1, 1, q=(4, 0)), RangeError, "range is [4, 0)"),
    (lambda: window(1, 1, k=(-4, 0)), ValueError, "k_range.start is -4"),
    (lambda: window(1, 1, k=(HUGE, HUGE + 8)), ValueError, "k_range.start is 1099511627776"),
    (lambda: api.infer_attn_mask_from_sliding_window((0, 4), AttnRange(0, 4), (1, 1)), TypeError,
     "q_range is a tuple; allowed: an AttnRange"),
    (lambda: documents(None), TypeError, "cu_seqlens_q is a NoneType"),
    (lambda: documents("08"), TypeError, "cu_seqlens_q is a str"),
    (lambda: documents([0, 5, 3]), ValueError, "cu_seqlens_q"),
    (lambda: documents([1, 5]), ValueError, "cu_seqlens_q"),
    (lambda: documents(torch.zeros(2, 2, dtype=torch.int32)), ValueError, "cu_seqlens_q"),
    (lambda: documents([0, 6.5]), TypeError, "cu_seqlens_q[1] is 6.5"),
    (lambda: documents([]), ValueError, "cu_seqlens_q is empty"),
    (lambda: documents(torch.zeros(2)), TypeError, "cu_seqlens_q.dtype is torch.float32"),
    (lambda: documents(torch.zeros(2, dtype=torch.int32, device="meta")), ValueError,
     "cu_seqlens_q is on meta"),
    (lambda: documents([0, 8], window_size=None), ValueError, "window_size is None"),
    (lambda: documents([0, 8], window_size=(1, 0), causal=True), ValueError, "window_size"),
    # A window in the place of causal, by position, would be lost.
    (lambda: api.infer_attn_mask_from_cu_seqlens([0, 8], [0, 8], (5, 0)), TypeError,
     "causal is (5, 0); allowed: a bool"),
    (lambda: masks.from_cu_seqlens([0, 8], causal="no"), TypeError, "causal is 'no'"),
    (lambda: documents([0, 8], global_window_size=-1), ValueError, "global_window_size is -1"),
]  # fmt: skip

CONFIGS = [
    (lambda: DispatchConfig(chunk_size=0), ValueError, "chunk_size"),
    (lambda: DispatchConfig(alg="min_heap"), TypeError, "alg is a str"),
    (lambda: DispatchConfig(uneven_shard="yes"), TypeError, "uneven_shard is a str; allowed"),
    (lambda: DispatchConfig(uneven_shard=1), TypeError, "uneven_shard is a int; allowed"),
    (lambda: DispatchConfig(layout="round"), ValueError, "layout is 'round'; allowed: permu"),
    (lambda: DispatchConfig(max_runs=0), ValueError, "max_runs is 0"),
    (lambda: DispatchConfig(layout=1), TypeError, "layout is a int; allowed: a str"),
    (
        lambda: DispatchConfig(alg=solver.MinHeapDispatchAlg(), layout="contiguous"),
        ValueError,
        "alg is MinHeapDispatchAlg while layout is 'contiguous'",
    ),
    (lambda: DistAttnConfig(work="rows"), ValueError, "work is 'rows'; allowed: keys, que"),
    (lambda: DistAttnConfig(head_shares=-1, work="heads"), ValueError, "head_shares is -1"),
    (lambda: DistAttnConfig(max_exchange_bytes=-1), ValueError, "max_exchange_bytes is -1"),
    (lambda: solver.ToppHeapDispatchAlg(top_p=2), ValueError, "top_p"),
    (lambda: solver.BatchToppHeapDispatchAlg(num_of_select_chunk=0), ValueError, "num_of"),
    (lambda: solver.SortedSequentialSelectAlg(-0.1), ValueError, "allocation_ratio"),
    (lambda: OverlapConfig(degree=-1), ValueError, "degree"),
    (lambda: OverlapConfig(degree=None), ValueError, "STATIC"),
    (lambda: OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=2), ValueError, "DYNAMIC"),
    (lambda: OverlapConfig(calc_cost_factor=0), ValueError, "calc_cost_factor is 0"),
    (lambda: OverlapConfig(min_chunk_size=0), ValueError, "min_chunk_size"),
    (lambda: OverlapConfig(alg=GreedyOverlapAlg()), NotImplementedError, "GreedyOverlapAlg"),
    (lambda: OverlapConfig(alg=OverlapAlgType.GREEDY), NotImplementedError, "GreedyOverlap"),
    (lambda: DistAttnConfig(overlap_config=DispatchConfig()), TypeError, "overlap_config"),
    (lambda: GrpCollConfig(num_sms=0), ValueError, "num_sms"),
    (lambda: OverlapConfig(degree="a"), TypeError, "degree is 'a'"),
    (lambda: OverlapConfig(mode="static"), TypeError, "mode is a str"),
    (lambda: OverlapConfig(calc_cost_factor=-1), ValueError, "calc_cost_factor is -1"),
    (lambda: OverlapConfig(comm_cost_factor=float("nan")), ValueError, "comm_cost_factor is nan"),
    (lambda: DispatchConfig(chunk_size=2.5), TypeError, "chunk_size is 2.5"),
    (lambda: GrpCollConfig(num_sms="a"), TypeError, "num_sms is 'a'"),
    (lambda: api.ToppHeapDispatchAlg(top_p="a"), TypeError, "top_p is a str"),
    (lambda: plan(config=DistAttnConfig(overlap_config=OverlapConfig(degree=1000))), ValueError,
     "degree is 1000"),
]  # fmt: skip

# Numbers whose low 32 or 64 bits are allowed ones.
WIDE = [
    (lambda: OverlapConfig(degree=2**32 + 2), ValueError, "degree is 4294967298; allowed: 0 to 21"),
    (lambda: masks.from_document_ids([0, 0, 1], padding_id=-(2**63)), ValueError,
     "padding_id is -9223372036854775808; allowed: -2147483648 to 2147483647"),
    (lambda: structs.PlanConfig(num_ranks=2**32 + 2), ValueError, "num_ranks is 4294967298; allo"),
    (lambda: setattr(structs.PlacementConfig(), "seed", -1), ValueError, "seed is -1; allowed: 0"),
    (lambda: lib.magi_placement_rows_of(None, 2**32, None), ctypes.ArgumentError,
     "an argument of the library is 4294967296; allowed: -2147483648 to 2147483647"),
    (lambda: vtable._records([(0, 2**32, 1)]), ValueError, "rows are beyond int32"),
]  # fmt: skip

FUNCTIONS = [
    (lambda: functional.dispatch_func(X, None, None), TypeError, "meta is a NoneType"),
    (lambda: functional.undispatch_func(X, "meta", None), TypeError, "meta is a str"),
    (lambda: functional.roll_func(X, 1, None, None), TypeError, "meta is a NoneType"),
    (lambda: functional.dist_attn_func(X, X, X, None), TypeError, "dist_attn_runtime is a None"),
    (lambda: functional.ffa_fa4_func(X, X, X, None, None), ValueError, "q.rank is 2"),
    (lambda: plan().bind().roll(X, 1.5), TypeError, "shift is 1.5; allowed: an int"),
    (lambda: plan().bind().roll(X, 1, 0.5), TypeError, "dim is 0.5; allowed: an int"),
    (lambda: plan().bind().roll(X, 1, 2), ValueError, "x has 2 axes; allowed: those with axis 2"),
    (lambda: plan().bind().dispatch(X.to_sparse()), ValueError, "x has layout torch.sparse_coo"),
    (lambda: plan().bind().undispatch(X, "no"), TypeError, "is_partial_grad is 'no'; allowed: a"),
    (lambda: plan().bind().undispatch([1]), TypeError, "x is a list; allowed: a torch.Tensor"),
    (lambda: api.calc_attn(X, X, X, None), TypeError, "key is a NoneType"),
    (lambda: api.get_position_ids("k"), TypeError, "key is a str"),
    (lambda: api.get_most_recent_key(None), TypeError, "cp_group is a NoneType"),
    (lambda: api.clear_cache("group"), TypeError, "cp_group is a str"),
    (lambda: api.make_flex_key_for_new_mask_after_dispatch(ONE, ONE, "full", "k"), TypeError,
     "key_for_dispatch is a str"),
    (lambda: api.make_varlen_key_for_new_mask_after_dispatch([0, 64], [0, 64], None), TypeError,
     "key_for_dispatch is a NoneType"),
]  # fmt: skip


BLOCKS = torch.ones(1, 2, 2, dtype=torch.bool)
QKV = [torch.zeros(8, 2, 8)] * 3
PACKED = SimpleNamespace(cu_seqlens_q=[0, 8], cu_seqlens_kv=[0, 8])
STATE = {name: torch.zeros(8, 2) for name in ("lse1", "lse2")} | dict.fromkeys(
    ("out1", "out2"), torch.zeros(8, 2, 8)
)
# Calls that take "no" for one flag.
FLAGS = {
    "masks.ids causal": lambda flag: masks.from_document_ids([0, 0, 1, 0], causal=flag),
    "masks.packed causal": lambda flag: masks.from_packed_seq_params(PACKED, causal=flag),
    "masks.flashmask causal": lambda flag: masks.from_flashmask([[8]] * 8, causal=flag),
    "masks.columns causal": lambda flag: masks.to_flashmask(
        masks.from_cu_seqlens([0, 8]), causal=flag, num_bounds=1
    ),
    "masks.blocks is_causal": lambda flag: masks.from_blocks(BLOCKS[0], 4, 4, 8, 8, flag),
    "blocks is_causal": lambda flag: functional.block_sparse_attn_func(
        *QKV, BLOCKS, q_block_size=4, k_block_size=4, is_causal=flag
    ),
    "spec causal": lambda flag: packed.AttnMaskSpec.varlen([4, 4], flag),
    "spec.window causal": lambda flag: packed.AttnMaskSpec.varlen([8], flag, window_size=(2, 2)),
    "lse inplace": lambda flag: functional.correct_attn_lse(STATE["lse1"], STATE["lse2"], flag),
    "out inplace": lambda flag: functional.correct_attn_out_lse(**STATE, inplace=flag),
    "local is_self_merged": lambda flag: ONE.make_ranges_local(ONE, is_self_merged=flag),
    "reference return_lse": lambda flag: ref_attn_func(
        *QKV, torch.ones(8, 8).bool(), return_lse=flag
    ),
    "fa3 return_attn_probs": lambda flag: fa3_func_with_sink(
        *(x[None] for x in QKV), return_attn_probs=flag
    ),
    "fa3 causal": lambda flag: fa3_func_with_sink(*(x[None] for x in QKV), causal=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_no_texts(name):
    """Each text but the empty one counts as true, "no" too."""
    FLAGS[name](True)
    with pytest.raises(TypeError, match=f"^{name.split()[1]} is 'no'; allowed: a bool"):
        FLAGS[name]("no")


@pytest.mark.parametrize("call, error, text", PLANS + HELPERS + CONFIGS + FUNCTIONS + WIDE)
def test_is_refused(call, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        call()
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)


def test_sizes_beyond_every_sequence_mean_no_bound():
    """The library's integers have 32 bits; larger values must not lose their high ones."""
    far = 2**32 + 1
    assert window(far, 0) == window(-1, 0) and window(0, far) == window(0, -1)
    assert documents([0, 8], window_size=(far, 0)) == documents([0, 8], window_size=(-1, 0))
    seen = documents([0, 8], window_size=(1, 0), global_window_size=2**32)
    assert seen == documents([0, 8], window_size=(1, 0), global_window_size=8)
    coarse = DistAttnConfig(DispatchConfig(chunk_size=far), OverlapConfig(min_chunk_size=far))
    assert plan(cp_size=2, config=coarse).chunk_size == plan(cp_size=2).chunk_size


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert plan(head_dim=numpy.int64(8), cp_size=numpy.int32(1)) == plan()
    assert api.compute_pad_size(numpy.int64(10), 2, 8) == 6


ROW = torch.tensor([[0, 40]], dtype=torch.int32)
Q, K = torch.zeros(40, 4, 8), torch.zeros(40, 2, 8)
LONG = torch.tensor([[0, 400]], dtype=torch.int32)
HEADS_FIRST = [torch.zeros(heads, 400, 8) for heads in (4, 2, 2)]
MASK = masks.from_cu_seqlens([0, 40])
flex = functional.flex_flash_attn_func


def of_mask(mask=MASK, **changes):
    sizes = {"cp_size": 1, "num_heads_q": 4, "num_heads_kv": 2, "head_dim": 8}
    return Plan.from_mask(mask, **{**sizes, **changes})


def calc(*qkv):
    return of_mask().bind().calc_attn(*qkv)


# What people try in their first hour: the call, the argument and the value that it names.
FIRST_HOUR = [
    (lambda: flex(Q, K, K), "q_ranges", "NoneType"),
    (lambda: flex(Q, K, K, ROW), "k_ranges", "NoneType"),
    (lambda: flex(Q, K, K, [[0, 40]], [[0, 40]]), "q_ranges", "list"),
    (lambda: flex(Q, K, K, MASK, MASK), "q_ranges", "Mask"),
    (lambda: flex(Q, K, K, ROW.long(), ROW.long()), "q_ranges", "int64"),
    (lambda: flex(Q, K, K, ROW[0], ROW[0]), "q_ranges", "[2]"),
    (lambda: flex(Q, K, K, ROW, ROW, "causal"), "attn_type_map", "str"),
    (lambda: flex(Q, K, K, ROW, ROW, torch.zeros(1).bool()), "attn_type_map", "bool"),
    (lambda: flex(Q, K, K, causal=True), "causal", "causal"),
    (lambda: flex(Q, K, K, window_size=(3, 0)), "window_size", "window_size"),
    (lambda: flex(Q, K, K, cu_seqlens_q=[0, 40]), "cu_seqlens_q", "cu_seqlens_q"),
    (lambda: flex(Q, K, K, dropout_p=0.1), "dropout_p", "dropout_p"),
    (lambda: flex(Q, K, K, attn_mask=None), "attn_mask", "attn_mask"),
    (lambda: flex(*HEADS_FIRST, LONG, LONG), "q_ranges", "0:400"),
    (lambda: flex(Q[None], K[None], K[None], ROW, ROW), "q", "4"),
    (lambda: flex(Q[:, :3], K, K, ROW, ROW), "heads_q", "3"),
    (lambda: flex(Q.int(), K.int(), K.int(), ROW, ROW), "q", "int32"),
    (lambda: flex(Q, K.half(), K, ROW, ROW), "k", "float16"),
    (lambda: flex(Q, K, K, ROW, ROW, softmax_scale=0), "softmax_scale", "0"),
    (lambda: attention(Q, K, K, torch.ones(40, 40)), "mask", "Tensor"),
    (lambda: attention(*HEADS_FIRST, MASK), "mask", "40"),
    (lambda: masks.from_cu_seqlens([400, 600]), "cu_seqlens_q", "400"),
    (lambda: masks.from_cu_seqlens([0, 600, 400]), "cu_seqlens_q", "400"),
    (lambda: masks.from_cu_seqlens(40), "cu_seqlens_q", "0 axes"),
    (lambda: masks.from_cu_seqlens([0, 40.5]), "cu_seqlens_q", "float32"),
    (lambda: masks.from_cu_seqlens([0, 40], causal="yes"), "causal", "yes"),
    (lambda: masks.from_cu_seqlens([0, 40], window_size=5), "window_size", "5"),
    (lambda: masks.from_matrix(torch.ones(3)), "visible", "1"),
    (lambda: masks.from_matrix("causal"), "visible", "str"),
    (lambda: of_mask(cp_size=2000), "cp_size", "2000"),
    (lambda: of_mask(ROW), "mask", "Tensor"),
    (lambda: of_mask(masks.from_cu_seqlens([0, 40], [0, 20])), "mask", "20 keys"),
    (lambda: of_mask(config=DistAttnConfig(), work="auto"), "work", "auto"),
    (lambda: plan(q_ranges=[(0, 64)]), "q_ranges", "list"),
    (lambda: DistAttnConfig(head_shares=2), "head_shares", "2"),
    (lambda: Plan.from_json("{}"), "plan", "format"),
    (lambda: of_mask(cp_size=2).bind(), "cp_group", "1"),
    (lambda: of_mask().bind("world"), "cp_group", "str"),
    (lambda: of_mask().bind(None, backend="flash"), "backend", "flash"),
    (lambda: calc(Q[:20], K[:20], K[:20]), "q", "20"),
]


def test_mistakes_of_the_first_hour_name_a_next_step():
    """Counts the messages that name argument, value, what is allowed and what to try."""
    untold = []
    for number, (call, argument, value) in enumerate(FIRST_HOUR):
        with pytest.raises((TypeError, ValueError)) as raised:
            call()
        told = str(raised.value)
        steps = ("; allowed: ", "; try: ")
        if not (re.search(rf"\b{argument}\b", told) and all(p in told for p in (value, *steps))):
            untold.append(f"{number}: {told}")
    print(f"first.mistakes {len(FIRST_HOUR) - len(untold)}")
    assert len(FIRST_HOUR) == 40 and len(untold) <= 2, untold


def test_a_long_question_of_pairs_is_told(monkeypatch, caplog):
    monkeypatch.setattr("magi_attention.masks._dense._SECONDS_SILENT", 0.0)
    monkeypatch.setattr("magi_attention.masks._dense._STRIP_PAIRS", 8)
    masks.from_mask_mod(lambda b, h, q, k: q >= k, 4, 4)
    assert "asked for 2 of 4 rows" in caplog.text and "from_intervals" in caplog.text


MODULES = (api, functional, masks, packed, sparse_utils, testing, utils)
OUTSIDE = {
    "save", "load", "register_magi_attention", "setup_dist_env", "clearup_dist_env",
    "set_random_seed",
}  # fmt: skip
OTHERS = (None, 3, "x", [1.5], object(), torch.zeros(2, 2), {})


def wrong_calls():
    """Each public function with the same wrong value for all that it needs."""
    for module in MODULES:
        for name in getattr(module, "__all__", None) or vars(module):
            function = getattr(module, name)
            if inspect.isfunction(function) and name not in OUTSIDE and name[0] != "_":
                needed = [
                    p for p in inspect.signature(function).parameters.values()
                    if p.default is p.empty and p.kind is not p.VAR_KEYWORD
                ]  # fmt: skip
                named = {p.name: 1 for p in needed if p.kind is p.KEYWORD_ONLY}
                for value in OTHERS:
                    yield name, function, [value] * (len(needed) - len(named)), named


@pytest.mark.filterwarnings("ignore")
def test_wrong_types_raise_no_errors_of_attributes():
    found = set()
    for name, function, values, named in wrong_calls():
        try:
            function(*values, **named)
        except AttributeError as error:
            found.add(f"{name}: {error}")
        except Exception:
            continue
    assert not found
