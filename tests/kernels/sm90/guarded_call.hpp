// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "magi/attention_cuda.hpp"
#include "reference/dense_attention.hpp"
#include "support/gpu/random_tensors.hpp"

// Tensors of calls on a GPU and the rules for their results, for every kind of mask.
namespace magi::test {

/// The sizes of a call and how its tensors lie in memory.
struct CallShape {
  DType type = DType::BFloat16;
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  Layout layout = Layout::Contiguous;
  std::int32_t num_sinks = 0;
  AttentionParams params = {};

  std::int32_t group() const { return heads_q / heads_kv; }
};

/// One call under a mask of slices, against float64.
struct AttentionCase {
  std::string backend = {};  ///< its name; empty: the library's choice for the device
  Mask mask = {};
  DType type = DType::BFloat16;
  std::int32_t heads_q = 2;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  Layout layout = Layout::Contiguous;
  bool has_float_out = false;  ///< out, and dout in a backward
  std::int32_t num_sinks = 0;
  AttentionParams params = {};
  double magnitude = 1.0;  ///< standard deviation of the inputs, roughly
  std::uint64_t seed = 1;

  CallShape shape() const {
    return {type,   mask.rows_q, mask.rows_k, heads_q,   heads_kv,
            dim_qk, dim_v,       layout,      num_sinks, params};
  }
};

std::ostream& operator<<(std::ostream& stream, const CallShape& shape);

/// Sinks, or their gradients, held as [1 or rows, sinks, heads]; null where the call has none.
std::unique_ptr<GuardedTensor> sink_tensor(const CallShape& shape);

/// Random inputs on host and device.
struct GuardedInputs {
  GuardedInputs(const CallShape& shape, std::uint64_t seed, double magnitude);

  /// Sets the inputs of a call of either direction.
  template <typename Args>
  void put_into(Args& args) const {
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.params = shape.params;
    if (sink) args.sink = sink_view(*sink, shape.params.sink_layout);
  }
  /// The problem of one kv head and its query heads.
  reference::DenseInput dense(std::int32_t kv_head) const;

  CallShape shape;
  GuardedTensor q, k, v;
  std::unique_ptr<GuardedTensor> sink;
};

/// Results of a forward, poisoned with NaN from the start.
struct GuardedOutputs {
  GuardedOutputs(const CallShape& shape, DType out_type);
  void put_into(ForwardArgs& args, bool has_max_logits) const;
  void download_sync();
  /// Expects that the guards are whole and that the heads of a kv head hold what float64 gives.
  void check_head(reference::DenseInput in, const reference::RowCounts& counts,
                  std::int32_t kv_head, bool has_max_logits) const;

  CallShape shape;
  GuardedTensor out, lse, max_logits;
};

void expect_same_outputs(const GuardedOutputs& first, const GuardedOutputs& second);

/// Results of a backward, poisoned with NaN from the start.
struct GuardedGradients {
  GuardedGradients(const CallShape& shape, DType type);
  void put_into(BackwardArgs& args) const;
  void upload_sync();
  void download_sync();
  bool has_whole_guards() const;

  CallShape shape;
  GuardedTensor dq, dk, dv;
  std::unique_ptr<GuardedTensor> dsink;
};

void expect_same_but_dq(const GuardedGradients& first, const GuardedGradients& second);
void expect_same_gradients(const GuardedGradients& first, const GuardedGradients& second);

/// The elements of heads [begin, begin + count).
std::vector<double> heads_of(const GuardedTensor& tensor, std::int64_t begin, std::int64_t count);

/// Sets them, on the host alone.
void set_heads(GuardedTensor& tensor, std::int64_t begin, std::int64_t count,
               const std::vector<double>& values);

/// Expects out within the rule of results in 16 bits, and lse or a largest logit within its own.
void expect_out(const std::vector<double>& seen, const std::vector<double>& truth,
                const std::vector<double>& plain, DType type);
void expect_lse(double seen, double expected, const char* name, std::int64_t place);

/// What gradients are held against: float64, a plain computation in 16 bits, and what sums that
/// cancel leave.
class GradientRule {
 public:
  /// What a backward was given besides the inputs.
  struct Given {
    std::vector<double> dout;
    std::vector<double> dlse;      ///< empty: none
    std::vector<double> stored;    ///< out as it was stored; empty: exact
    bool has_joined_rows = false;  ///< v is in k, and the gradient of v in that of k
  };
  GradientRule(const reference::DenseInput& in, const reference::RowCounts& counts, DType type,
               Given given);

  /// Checks the gradients of a kv head, without what `start` held where they were added to it.
  void check_head(const GuardedGradients& seen, std::int32_t kv_head,
                  const GuardedGradients* start = nullptr) const;
  /// Checks dq alone.
  void check_queries(const GuardedGradients& seen, std::int32_t kv_head,
                     const GuardedGradients* start = nullptr) const;

 private:
  using Gradient = std::vector<double> reference::DenseGradients::*;
  void check(const std::vector<double>& seen, Gradient gradient, double noise,
             const char* name) const;

  DType type_;
  reference::DenseGradients truth_, plain_;
  double noise_q_, noise_k_, noise_sink_;
};

}  // namespace magi::test
