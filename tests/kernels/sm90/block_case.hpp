// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "cuda/memory.hpp"
#include "kernels/sm90/guarded_call.hpp"
#include "magi/block_mask.hpp"

// Calls under masks of blocks, for the tests of both directions.
namespace magi::test {

/// One call under a random mask of blocks.
struct BlockCase {
  std::int32_t rows_q = 256;
  std::int32_t rows_k = 256;
  std::int32_t heads_q = 8;
  std::int32_t heads_kv = 2;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  DType type = DType::BFloat16;
  Layout layout = Layout::Contiguous;
  bool has_float_out = false;
  std::int32_t num_sinks = 0;
  std::int32_t q_block = 64;
  std::int32_t k_block = 64;
  std::int32_t mask_heads = 2;
  bool is_causal = false;
  std::int32_t percent = 30;    ///< of blocks that are visible
  std::int32_t most_times = 1;  ///< that a block counts
  std::int32_t packed_heads = 0;
  std::uint64_t seed = 1;

  std::int32_t num_q() const { return (rows_q + q_block - 1) / q_block; }
  std::int32_t num_k() const { return (rows_k + k_block - 1) / k_block; }
  CallShape shape() const {
    return {type, rows_q, rows_k, heads_q, heads_kv, dim_qk, dim_v, layout, num_sinks};
  }
};

std::ostream& operator<<(std::ostream& stream, const BlockCase& test);

/// Any case that the kernels for blocks take.
BlockCase random_block_case(std::uint64_t seed);

/// Inputs on host and device.
struct BlockCaseData : GuardedInputs {
  explicit BlockCaseData(const BlockCase& test);

  std::vector<std::uint8_t> visible;  ///< [mask_heads, q blocks, k blocks]
  DeviceBuffer on_device;             ///< of visible
};

/// With room for what is visible.
BlockMask mask_of(const BlockCase& test, const BlockCaseData& data);

/// How often each row sees each key in a kv head, by the definition: [rows_q, rows_k].
std::vector<std::uint16_t> counts_of(const BlockCase& test, const BlockCaseData& data,
                                     std::int32_t kv_head);

}  // namespace magi::test
