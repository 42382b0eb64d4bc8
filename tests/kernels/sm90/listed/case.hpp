// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "cuda/memory.hpp"
#include "kernels/sm90/guarded_call.hpp"
#include "magi/key_lists.hpp"

namespace magi::test {

/// One call under lists against float64.
struct ListedCase {
  DType type = DType::BFloat16;
  std::int32_t rows_q = 5;
  std::int32_t rows_k = 300;
  std::int32_t heads_q = 2;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  std::int32_t entries = 200;
  std::int32_t block_keys = 1;
  Layout layout = Layout::Contiguous;
  bool has_float_out = false;  ///< of the backward: dq, dk and dv
  bool has_dlse = false;
  bool has_max_logits = false;
  std::int32_t num_sinks = 0;
  bool repeats_sinks = false;  ///< of RowSinkHead: all rows are one row in memory
  std::int32_t sm_margin = 0;
  bool is_fast = true;  ///< of the backward: sums of dk and dv have no order
  AttentionParams params;
  double magnitude = 1.0;       ///< standard deviation of the inputs, roughly
  bool has_full_lists = false;  ///< no list is empty or ends early, every entry is a block
  bool is_distinct = false;     ///< no list names a block twice
  std::uint64_t seed = 1;

  CallShape shape() const {
    return {type, rows_q, rows_k, heads_q, heads_kv, dim_qk, dim_v, layout, num_sinks, params};
  }
  DType written_type() const { return has_float_out ? DType::Float32 : type; }
  /// Whether keys are latents, whose first columns are the values.
  bool is_latent() const { return dim_qk == 576 && dim_v == 512; }
};

std::ostream& operator<<(std::ostream& stream, const ListedCase& test);

/// Lists on host and device: keys several times and in any order, none, and no blocks at all; some
/// lists are empty, others end early.
class ListedIndices {
 public:
  explicit ListedIndices(const ListedCase& test);

  KeyLists view() const;
  /// How often the heads of a kv head see each key, from the definition.
  reference::RowCounts counts_of(std::int32_t kv_head) const;
  /// Makes NaN of all keys that no list names.
  void poison_unseen_keys(GuardedInputs& inputs) const;
  /// Checks the report of a call.
  void check_report_sync() const;

 private:
  std::span<const std::int32_t> list(std::int32_t row, std::int32_t kv_head) const;

  ListedCase test_;
  std::vector<std::int32_t> values_;
  DeviceBuffer device_;
  DeviceBuffer report_;
};

/// Runs the forward on poisoned outputs inside NaN guards and checks out, lse, max_logits, the
/// report, guards, and that a second run, where what no list names is NaN, gives the same bits.
void check_listed_forward(const ListedCase& test);

/// Runs the backward, from out and lse of the forward on the GPU, and checks the gradients of
/// everything by the error rule, guards, and that a second run gives the same bits of dq and dsink.
void check_listed_backward(const ListedCase& test);

}  // namespace magi::test
