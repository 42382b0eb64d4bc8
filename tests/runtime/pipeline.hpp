// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/attention_case.hpp"
#include "magi/runtime.hpp"

namespace magi::testing {

/// What the ranks of a run hold at its end, put back into the order of the sequence.
struct PipelineRun {
  ForwardResult forward;
  reference::DenseGradients gradients;
  std::vector<CommCounters> after_forward;   ///< by rank
  std::vector<CommCounters> after_backward;  ///< by rank
  std::vector<std::size_t> workspace_bytes;  ///< by rank, at the end
  friend bool operator==(const PipelineRun& a, const PipelineRun& b) {
    return a.forward == b.forward && a.gradients.dq == b.gradients.dq &&
           a.gradients.dk == b.gradients.dk && a.gradients.dv == b.gradients.dv &&
           a.gradients.dsink == b.gradients.dsink;
  }
};

/// Heads and head dims of a case.
struct CaseSizes {
  std::int32_t heads_q = 8;
  std::int32_t heads_kv = 2;
  std::int32_t dim_qk = 16;
  std::int32_t dim_v = 8;
};
/// A case of values that are drawn with the seed, with as many rows as the mask.
AttentionCase make_case(const Mask& mask, DType dtype, const CaseSizes& sizes,
                        std::uint64_t seed = 1);

/// Draws the values again with 2 sinks, a softcap and a gradient through lse.
AttentionCase with_all_options(AttentionCase test, SinkLayout layout);

/// Sizes and types of the case and one remote stage, whose results are merged, otherwise defaults;
/// stages by rows are allowed to be short.
PlanConfig plan_config(const AttentionCase& test, std::int32_t num_ranks);

/// Shards the case, runs forward and backward on threads and gathers, all by the placement's
/// definition. Padding rows hold numbers that must not matter.
PipelineRun run_pipeline(const AttentionCase& test, const std::shared_ptr<const Plan>& plan);

/// Where one rank's tensors lie during its calls: in the arrays themselves.
class TensorHome {
 public:
  virtual ~TensorHome() = default;
  virtual TensorView view(HostArray& array) { return array.view(); }
  virtual void* stream() { return nullptr; }
  /// Everything back into the arrays.
  virtual void take_back_sync() {}
};

enum class PassKind { Forward, ForwardAndBackward };

/// One rank's part of run_pipeline on a communicator of the caller's.
void run_rank(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
              Communicator& communicator, PipelineRun& run);
/// The same with its tensors elsewhere, `repeats` times; several sections: by calls of these.
struct RankRun {
  TensorHome& home;
  PassKind kind = PassKind::ForwardAndBackward;
  int repeats = 1;
  AttentionOptions options = {};
  std::int32_t num_sections = 1;
};
void run_rank(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
              Communicator& communicator, const RankRun& how, PipelineRun& run);
/// Arrays of the right sizes for run_rank.
PipelineRun empty_run(const AttentionCase& test, std::int32_t num_ranks);

/// Fails where the checker of plans finds anything.
void expect_sound(const Plan& plan);

/// Runs the case and compares with dense float64 attention.
void expect_pipeline_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan);

std::shared_ptr<const Plan> shared_plan(const Mask& mask, const PlanConfig& config);

}  // namespace magi::testing
