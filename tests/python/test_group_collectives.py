# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import group_cases as cases
from magi_attention.comm.primitive.grpcoll._config import GrpCollConfig

SIZES = pytest.mark.parametrize("size", [1, 2, 4])
SEEDS = pytest.mark.parametrize("seed", range(3))


@SIZES
@SEEDS
def test_casts(ranks, size, seed):
    ranks.run(size, cases.casts, seed)


@SIZES
@SEEDS
def test_reduces(ranks, size, seed):
    ranks.run(size, cases.reduces, seed)


@SIZES
def test_reduces_softmax_results(ranks, size):
    ranks.run(size, cases.reduces_softmax_results, 1)


def test_bad_arguments(ranks):
    ranks.run(2, cases.bad_arguments)


class TestConfig:
    def test_parts(self):
        config = GrpCollConfig(num_sms=8, num_nvl_bytes=7)
        assert config.to_kernel_config()[:2] == (8, 8)
        switches = {"low_latency_mode": False, "explicitly_destroy": True}
        assert config.to_buffer_args() == {
            "num_nvl_bytes": 7, "num_rdma_bytes": 0, "num_qps_per_rank": 1, **switches
        }  # fmt: skip
        assert GrpCollConfig(num_sms=8, num_rdma_bytes=1).to_buffer_args()["num_qps_per_rank"] == 8
        cast = GrpCollConfig.get_default_group_cast_config
        assert cast(8).to_kernel_config() == (24, 6, 256, 6, 128)
        assert cast(16) != cast(8) == cast(4)
        reduce = GrpCollConfig.get_default_group_reduce_config
        assert reduce(144).to_kernel_config() == (24, 2, 720, 8, 128)
        with pytest.raises(ValueError, match="num_ranks is 0"):
            GrpCollConfig.get_default_group_cast_config(0)

    def test_bytes_inside_a_node(self):
        one = GrpCollConfig.get_min_num_bytes_intranode(2, 1, 64, 10, torch.bfloat16)
        assert one % 128 == 0 and one >= 10 * 64 * 2
        arguments = (24, 8, 1024, 256, torch.bfloat16)
        plain = GrpCollConfig.get_min_num_bytes_intranode(*arguments)
        with_lse = GrpCollConfig.get_min_num_bytes_intranode(
            *arguments, transfer_lse=True, num_heads=8
        )
        three = GrpCollConfig.get_min_num_bytes_intranode(*arguments, num_groups=3)
        assert plain >= 12 * 8 * 256 * 2048 and with_lse - plain == 12 * 8 * 256 * 32
        assert 2 * plain < three < 3 * plain
        for bad, match in (((3, 8), "num_sms is 3"), ((24, 0), "num_ranks is 0")):
            with pytest.raises(ValueError, match=match):
                GrpCollConfig.get_min_num_bytes_intranode(*bad, 64, 10, torch.bfloat16)
        with pytest.raises(ValueError, match="num_heads is None"):
            GrpCollConfig.get_min_num_bytes_intranode(*arguments, transfer_lse=True)

    def test_bytes_between_nodes(self):
        arguments = (24, 2, 8, 1024, 128, 256, torch.bfloat16)
        rdma, nvl = GrpCollConfig.get_min_num_bytes_internode(*arguments)
        shared, _ = GrpCollConfig.get_min_num_bytes_internode(*arguments, rdma_decoulped=False)
        assert rdma >= 2 * 12 * 2 * 128 * 2048 and shared < rdma < nvl
