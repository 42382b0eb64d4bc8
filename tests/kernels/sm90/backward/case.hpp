// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>

#include "kernels/schedule/backward_problem.hpp"
#include "magi/attention_cuda.hpp"
#include "reference/dense_attention.hpp"
#include "support/gpu/random_tensors.hpp"

namespace magi::test {

/// One call of the backward against float64.
struct BackwardCase {
  Mask mask;
  DType type = DType::BFloat16;
  std::int32_t heads_q = 2;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 128;
  std::int32_t dim_v = 128;
  Layout layout = Layout::Contiguous;
  bool has_float_out = false;        ///< out and dout
  bool has_float_gradients = false;  ///< dq, dk, dv
  bool is_accumulating = false;      ///< into float32
  bool is_writing_keys = false;      ///< dk and dv all the same
  bool has_dlse = false;
  std::int32_t num_sinks = 0;
  AttentionParams params;
  BackwardTuning tuning;
  double magnitude = 1.0;  ///< standard deviation of q, k, v and dout, roughly
  std::uint64_t seed = 1;

  DType out_type() const { return has_float_out ? DType::Float32 : type; }
  bool adds_keys() const { return is_accumulating && !is_writing_keys; }
  DType gradient_type() const {
    return has_float_gradients || is_accumulating ? DType::Float32 : type;
  }
};

/// Sets the head dims of the instance for dims of q and k up to `dim`: those up to 192 go with dims
/// of v up to 128, others with equal ones.
inline void set_instance_dims(BackwardCase& test, std::int32_t dim) {
  test.dim_qk = dim;
  test.dim_v = dim == 192 ? 128 : dim;
}

std::ostream& operator<<(std::ostream& stream, const BackwardCase& test);

/// Inputs on host and device; out and lse are those of float64, rounded to their types.
struct BackwardInputs {
  explicit BackwardInputs(const BackwardCase& test);
  /// The arguments of a call, without its outputs.
  BackwardArgs args(const BackwardCase& test) const;

  GuardedTensor q, k, v, out, lse, dout, dlse;
  std::unique_ptr<GuardedTensor> sink;
  reference::DenseInput dense;
  reference::DenseOutput dense_out;
};

/// Gradients in NaN guards: NaN themselves, or random where the case accumulates.
struct BackwardOutputs {
  explicit BackwardOutputs(const BackwardCase& test);
  void put_into(const BackwardCase& test, BackwardArgs& args) const;
  void download_sync();

  GuardedTensor dq, dk, dv;
  std::unique_ptr<GuardedTensor> dsink;
};

/// Memory of a call, all NaN at first, inside guards of its own.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::int64_t size_bytes);
  DeviceWorkspace view() const;
  bool has_whole_guards() const;

 private:
  std::int64_t size_bytes_;
  DeviceBuffer buffer_;
};

/// One call with a list and a poisoned workspace of its own, into outputs that are then on the
/// host.
void run_backward_sync(const BackwardCase& test, const BackwardInputs& inputs,
                       BackwardOutputs& outputs);

void expect_same_gradients(const BackwardOutputs& first, const BackwardOutputs& second);
/// Which gradients are checked.
enum class Gradients : std::uint8_t { All, Queries };
/// What checks the gradients of a case, which outlives it, by the error rule.
std::function<void(const BackwardOutputs& seen, Gradients which)> make_judge(
    const BackwardCase& test, const BackwardInputs& inputs);
/// What the fast mode repeats.
void expect_same_but_dq(const BackwardOutputs& first, const BackwardOutputs& second);

/// Runs the case on poisoned outputs and a poisoned workspace and checks the gradients, the guards
/// and that a second run on the used workspace gives the same bits (of dq only where the case is
/// deterministic). Failures are gtest failures.
void check_backward(const BackwardCase& test);

}  // namespace magi::test
