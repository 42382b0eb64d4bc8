# SPDX-License-Identifier: Apache-2.0
import copy
import dataclasses
import json
import logging
import pickle
import warnings

import pytest

from magi_attention import env
from magi_attention.common import AttnRanges
from magi_attention.common.enum import (
    AttnOverlapMode,
    DispatchAlgType,
    MagiAttentionKernelBackend,
    MagiAttentionPrecision,
    OverlapAlgType,
)
from magi_attention.config import (
    DispatchConfig,
    DistAttnConfig,
    GrpCollConfig,
    OverlapConfig,
    library,
)
from magi_attention.config.library import COST_VARIABLE
from magi_attention.env import apply_log_level, build, comm, general
from magi_attention.meta.solver import dispatch_solver as solver
from magi_attention.meta.solver.overlap_solver import UniformOverlapAlg
from magi_attention.plan import Plan
from test_errors import cost_file

ALGORITHMS = [
    solver.LBDispatchAlg, solver.DPDispatchAlg, solver.BSDispatchAlg, solver.MinHeapDispatchAlg,
    solver.BTPDispatchAlg, solver.ToppHeapDispatchAlg, solver.RandomSelectDispatchAlg,
    solver.SequentialDispatchAlg, solver.BatchToppHeapDispatchAlg, solver.SortedSequentialSelectAlg,
    solver.AutoDispatchAlg, solver.ThoroughDispatchAlg, solver.ZigzagDispatchAlg,
    solver.AffinityDispatchAlg,
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_are_values(algorithm):
    made = algorithm()
    assert made == algorithm() and hash(made) == hash(algorithm())
    assert isinstance(made.type, DispatchAlgType)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.something = 1


def test_algorithms_differ():
    assert len({algorithm().type for algorithm in ALGORITHMS}) == len(ALGORITHMS)
    assert solver.MinHeapDispatchAlg() != solver.AutoDispatchAlg()
    assert solver.ToppHeapDispatchAlg(top_p=0.2) != solver.ToppHeapDispatchAlg()


def test_defaults_and_hash():
    assert DispatchConfig().alg == solver.AutoDispatchAlg()
    assert DistAttnConfig() == DistAttnConfig() and hash(DistAttnConfig()) == hash(DistAttnConfig())
    other = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=64))
    assert other != DistAttnConfig()
    assert DistAttnConfig(work="keys") != DistAttnConfig(work="auto") != DistAttnConfig()
    assert DistAttnConfig(work="heads") != DistAttnConfig(work="heads", head_shares=2)
    assert DistAttnConfig(max_exchange_bytes=0) != DistAttnConfig()
    assert GrpCollConfig().num_nvl_bytes == 2_000_000_000


def test_overlap_config():
    blocking = OverlapConfig(degree=0)
    assert blocking.no_overlap and not blocking.enable and blocking.degree == 1
    assert blocking == OverlapConfig(degree=0) and blocking != OverlapConfig(degree=1)
    assert len({blocking, OverlapConfig(degree=0), OverlapConfig(degree=1)}) == 2
    copied = {part.name: getattr(blocking, part.name) for part in dataclasses.fields(blocking)}
    assert dataclasses.replace(blocking, **copied) == blocking == dataclasses.replace(blocking)
    assert not dataclasses.replace(blocking, degree=2).no_overlap
    assert dataclasses.replace(blocking, degree=1) == OverlapConfig(degree=1)
    assert dataclasses.replace(OverlapConfig(), degree=0) == blocking
    assert dataclasses.replace(blocking, min_chunk_size=7).no_overlap
    assert pickle.loads(pickle.dumps(blocking)) == blocking == copy.deepcopy(blocking)
    assert OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=1).mode is AttnOverlapMode.STATIC
    assert OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=None).degree is None
    assert not OverlapConfig(alg=UniformOverlapAlg(random_seed=3)).enable
    assert OverlapConfig(alg=OverlapAlgType.UNIFORM) == OverlapConfig(alg=UniformOverlapAlg())
    assert OverlapConfig(degree=2).enable
    assert OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=None).enable


class TestEnvironment:
    def test_defaults(self, monkeypatch):
        for name in list(__import__("os").environ):
            if name.startswith("MAGI_ATTENTION_") or name == "CUDA_DEVICE_MAX_CONNECTIONS":
                monkeypatch.delenv(name)
        assert general.kernel_backend() is MagiAttentionKernelBackend.FFA
        assert general.precision() is None and general.log_level() == logging.WARNING
        assert general.dist_attn_runtime_dict_size() == 1000
        assert general.min_chunks_per_rank() == 8
        assert comm.dsink_all_reduce_op() == "none" and build.nvcc_threads() == 4
        assert comm.ffa_fwd_sm_margin_save_for_comm() == 4
        assert comm.ffa_bwd_sm_margin_save_for_comm() == 4
        flags = [
            general.is_sanity_check_enable, general.is_flatten_head_groups_enable,
            general.is_cuda_device_max_connections_one, general.is_deterministic_mode_enable,
            general.is_profile_mode_enable, general.is_auto_range_merge_enable,
            general.is_range_merge_enable,
            general.is_cat_gqa_enable, general.dist_attn_backward_hide_tail_reduce,
            general.is_cpp_backend_enable, comm.is_hierarchical_comm_enable,
            comm.is_qo_comm_enable, comm.is_fwd_high_precision_reduce_enable,
            comm.is_bwd_high_precision_reduce_enable, comm.is_native_grpcoll_enable,
            build.is_no_build_cache, build.is_force_jit_build, build.is_build_verbose,
            build.is_build_debug,
        ]  # fmt: skip
        assert not any(flag() for flag in flags)
        assert build.workspace_base_dir()

    def test_newest_names(self, monkeypatch):
        monkeypatch.delenv("MAGI_ATTENTION_KERNEL_BACKEND", raising=False)
        for name in ("fa4", "cutedsl", "cudnn"):
            monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", name)
            assert general.kernel_backend() is MagiAttentionKernelBackend(name)
        monkeypatch.setenv("MAGI_ATTENTION_RANGE_MERGE", "1")
        assert general.is_range_merge_enable() and general.is_auto_range_merge_enable()
        monkeypatch.delenv("MAGI_ATTENTION_RANGE_MERGE")
        monkeypatch.setenv("MAGI_ATTENTION_AUTO_RANGE_MERGE", "1")
        with pytest.warns(DeprecationWarning, match="use MAGI_ATTENTION_RANGE_MERGE"):
            assert general.is_range_merge_enable()

    def test_log_level(self, monkeypatch, capsys):
        logger = logging.getLogger("magi_attention")
        monkeypatch.setenv("MAGI_ATTENTION_LOG_LEVEL", "INFO")
        assert general.log_level() == logging.INFO
        handlers = list(logger.handlers)
        try:
            apply_log_level()
            assert logger.level == logging.INFO and logger.hasHandlers()
        finally:
            logger.handlers[:] = handlers
            logger.setLevel(logging.NOTSET)

    def test_a_level_that_the_program_gave_stays(self, monkeypatch):
        logger = logging.getLogger("magi_attention")
        monkeypatch.delenv("MAGI_ATTENTION_LOG_LEVEL", raising=False)
        before = logger.level
        try:
            logger.setLevel(logging.NOTSET)
            apply_log_level()
            assert logger.level == logging.WARNING
            logger.setLevel(logging.DEBUG)
            apply_log_level()
            assert logger.level == logging.DEBUG
            monkeypatch.setenv("MAGI_ATTENTION_LOG_LEVEL", "error")
            apply_log_level()
            assert logger.level == logging.ERROR
        finally:
            logger.handlers.clear()
            logger.setLevel(before)

    def test_values(self, monkeypatch):
        monkeypatch.setenv("MAGI_ATTENTION_PRECISION", "FP64")
        monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa_ol")
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        assert general.precision() is MagiAttentionPrecision.FP64
        assert general.kernel_backend() is MagiAttentionKernelBackend.SDPA_OL
        assert comm.ffa_fwd_sm_margin_save_for_comm() == 0

    @pytest.mark.parametrize(
        "name, value, read",
        [
            ("MAGI_ATTENTION_KERNEL_BACKEND", "fa7", general.kernel_backend),
            ("MAGI_ATTENTION_SANITY_CHECK", "yes", general.is_sanity_check_enable),
            ("MAGI_ATTENTION_MIN_CHUNKS_PER_RANK", "0", general.min_chunks_per_rank),
            ("MAGI_ATTENTION_DSINK_ALL_REDUCE_OP", "max", comm.dsink_all_reduce_op),
        ],
    )
    def test_bad_values(self, monkeypatch, name, value, read):
        monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=f"{name} is '{value}'"):
            read()

    def test_snapshot_follows_every_change(self, monkeypatch):
        from magi_attention._environment import KEY_VARIABLES, key_snapshot

        for name in KEY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
            unset = key_snapshot()
            monkeypatch.setenv(name, "1")
            one = key_snapshot()
            monkeypatch.setenv(name, "0")
            assert len({unset, one, key_snapshot()}) == 3
            monkeypatch.delenv(name)
            assert key_snapshot() == unset

    def test_old_names_warn(self, monkeypatch):
        monkeypatch.setenv("MAGI_ATTENTION_SDPA_BACKEND", "1")
        with pytest.warns(DeprecationWarning, match="SDPA_BACKEND"):
            assert general.kernel_backend() is MagiAttentionKernelBackend.SDPA
        monkeypatch.setenv("MAGI_ATTENTION_SDPA_BACKEND", "0")
        with pytest.warns(DeprecationWarning, match="SDPA_BACKEND is deprecated; leave it out"):
            assert general.kernel_backend() is MagiAttentionKernelBackend.FFA
        monkeypatch.setenv("MAGI_ATTENTION_FFA_BACKWARD_HIGH_PRECISION_REDUCE", "1")
        with pytest.warns(DeprecationWarning, match="BACKWARD_HIGH_PRECISION_REDUCE"):
            assert comm.is_bwd_high_precision_reduce_enable()

    def test_every_variable_is_checked_when_a_key_is_made(self, monkeypatch):
        from magi_attention.dist_attn_runtime_mgr import check_flag_comb

        check_flag_comb()
        for name in ("PROFILE_MODE", "CATGQA", "CPP_BACKEND", "FFA_FORWARD_SM_MARGIN",
                     "FORWARD_HIGH_PRECISION_REDUCE", "FORCE_JIT_BUILD", "LOG_LEVEL"):  # fmt: skip
            monkeypatch.setenv("MAGI_ATTENTION_" + name, "maybe")
            with pytest.raises(ValueError, match=f"MAGI_ATTENTION_{name} is 'maybe'"):
                check_flag_comb()
            monkeypatch.delenv("MAGI_ATTENTION_" + name)
        for name in ("FFA_FORWARD_INPLACE_CORRECT", "FFA_BACKWARD_HIGH_PRECISION_REDUCE",
                     "SDPA_BACKEND"):  # fmt: skip
            monkeypatch.setenv("MAGI_ATTENTION_" + name, "1")
            with pytest.warns(DeprecationWarning, match=name):
                check_flag_comb()
            monkeypatch.delenv("MAGI_ATTENTION_" + name)

    def test_an_environment_that_is_known_is_not_read_again(self, monkeypatch):
        env.check_all()
        reads = []
        monkeypatch.setattr(env.comm, "transport", lambda: reads.append("transport"))
        env.check_all()
        assert not reads
        monkeypatch.setenv("MAGI_ATTENTION_CATGQA", "1")
        env.check_all()
        env.check_all()
        assert len(reads) == 1
        monkeypatch.setenv("MAGI_ATTENTION_SDPA_BACKEND", "0")
        for _ in range(2):  # an older name is warned of every time
            with pytest.warns(DeprecationWarning, match="SDPA_BACKEND") as caught:
                env.check_all()
            assert {w.filename for w in caught} == {__file__}

    def test_every_function_of_a_variable_is_listed(self):
        for module in (env.general, env.comm, env.build):
            found = [
                name for name, value in vars(module).items()
                if callable(value) and getattr(value, "__module__", "") == module.__name__
                and not name.startswith("_") and not name.endswith(("gpu_kernels", "architectures"))
            ]  # fmt: skip
            assert set(found) == set(module.VARIABLES)

    def test_old_and_new_name_must_agree(self, monkeypatch):
        monkeypatch.setenv("MAGI_ATTENTION_KERNEL_BACKEND", "sdpa_ol")
        monkeypatch.setenv("MAGI_ATTENTION_SDPA_BACKEND", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with pytest.raises(ValueError, match="SDPA_BACKEND"):
                general.kernel_backend()


@pytest.mark.parametrize(
    "alg, placed_as",
    [
        (solver.LBDispatchAlg(), "min_heap"),
        (solver.DPDispatchAlg(), "min_heap"),
        (solver.BSDispatchAlg(), "min_heap"),
        (solver.BTPDispatchAlg(), "min_heap"),
        (solver.SortedSequentialSelectAlg(0.5), "min_heap"),
        (solver.ToppHeapDispatchAlg(0.5), "auto"),
        (solver.BatchToppHeapDispatchAlg(0.5, 2), "auto"),
    ],
)
def test_names_of_the_original_place_as_ours(alg, placed_as):
    assert library.to_placement_config(DispatchConfig(alg=alg)).algorithm.decode() == placed_as


class TestCostFile:
    @staticmethod
    def plan() -> dict:
        """The JSON of a plan under the environment."""
        ranges = AttnRanges.from_ranges([(0, 64)])
        plan = Plan.from_ranges(
            ranges, ranges, "causal", 64, cp_size=2, num_heads_q=1, num_heads_kv=1, head_dim=8
        )
        return json.loads(plan.to_json())

    def test_constants_are_those_of_the_file(self, monkeypatch, tmp_path):
        monkeypatch.delenv(COST_VARIABLE, raising=False)
        default = self.plan()
        path = tmp_path / "costs.json"
        path.write_text(cost_file(bytes_per_second=1e9, seconds_per_launch=0.0))
        monkeypatch.setenv(COST_VARIABLE, str(path))
        plan = self.plan()
        constants = {"bytes_per_second": 1e9, "seconds_per_launch": 0}
        assert plan["config"]["cost"] == {**default["config"]["cost"], **constants}
        assert plan["digest"] != default["digest"]
        monkeypatch.delenv(COST_VARIABLE)
        assert self.plan() == default

    def test_bad_files_are_named(self, monkeypatch, tmp_path):
        monkeypatch.setenv(COST_VARIABLE, str(tmp_path / "none"))
        with pytest.raises(ValueError, match=f"{COST_VARIABLE} is '.*none', which cannot be read"):
            self.plan()
        (tmp_path / "bad").write_text(cost_file(bytes_per_second=0))
        monkeypatch.setenv(COST_VARIABLE, str(tmp_path / "bad"))
        with pytest.raises(ValueError, match=f"{COST_VARIABLE} is .*bytes_per_second is 0"):
            self.plan()
