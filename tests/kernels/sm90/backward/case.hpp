// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <ostream>

#include "kernels/schedule/backward_problem.hpp"
#include "kernels/sm90/guarded_call.hpp"

namespace magi::test {

/// One call of the backward.
struct BackwardCase : AttentionCase {
  bool has_float_gradients = false;  ///< dq, dk, dv
  bool is_accumulating = false;      ///< into float32
  bool is_writing_keys = false;      ///< dk and dv all the same
  bool has_dlse = false;
  BackwardTuning tuning = {};

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
struct BackwardInputs : GuardedInputs {
  explicit BackwardInputs(const BackwardCase& test);
  /// The arguments of a call, without its outputs.
  BackwardArgs args(const BackwardCase& test) const;

  GuardedTensor out, lse, dout, dlse;
};

/// Gradients that are NaN, or random where the case accumulates.
struct BackwardOutputs : GuardedGradients {
  explicit BackwardOutputs(const BackwardCase& test);
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

/// Which gradients are checked.
enum class Gradients : std::uint8_t { All, Queries };
/// What checks the gradients of a case, which outlives it, by the error rule.
std::function<void(const BackwardOutputs& seen, Gradients which)> make_judge(
    const BackwardCase& test, const BackwardInputs& inputs);

/// Runs the case on poisoned outputs and a poisoned workspace and checks the gradients, the guards
/// and that a second run on the used workspace gives the same bits (of dq only where the case is
/// deterministic). Failures are gtest failures.
void check_backward(const BackwardCase& test);

}  // namespace magi::test
