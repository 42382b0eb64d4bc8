// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "runtime/step_call.hpp"

namespace magi {

/// A call's own tensors [rows, heads, ...] as those of per-share rows, [shares * rows per share,
/// heads of a share, ...], for plans whose heads are in several shares. Sinks and max_logits stay
/// as they are: attends know their share.
class FlatTensors {
 public:
  /// Gives the own tensors of `call`, which are set, the shapes of per-share rows. Until `fill`
  /// only their shapes mean something.
  explicit FlatTensors(StepCall& call);
  /// Lends the memory of the call, which has begun, and copies what the pass reads.
  void fill();
  /// Copies what the pass has written to where the caller wants it.
  void give() const;

 private:
  StepCall& call_;
  std::array<TensorGroup, kNumRoles> given_, flat_;  ///< by role; empty where it takes no part
};

}  // namespace magi
