// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/step_call.hpp"

namespace magi {

/// The gradients of one backward call: what attends write and add to, whichever executor runs them.
/// Owners add partial gradients after their own part, exchange by exchange in the order of the
/// steps, and in each in the order of the ranks.
class BackwardSums {
 public:
  /// Puts in place of the caller's gradients what parts are added to.
  explicit BackwardSums(StepCall& call);

  /// The tensors of an attention call. The first attention call of some queries or keys writes
  /// their gradients, later ones add to them. The first of the own queries gives the sink's
  /// gradient, which needs no key.
  BackwardArgs args_of(const AttendCall& attend);
  /// Before key gradients go back: clears those that no attention call has written, at both ends.
  void complete(const Exchange& exchange);
  /// After an exchange has brought keys: sums of own keys that it copied begin in its segment.
  void note_keys(const Exchange& exchange);
  /// Rounds the sums into the caller's tensors. Whether an exchange does it for dk and dv.
  bool store();

 private:
  /// Whether an attention call adds to gradients of its keys; else it writes them. Of the own keys
  /// of several shares each attention call has some rows, so all are cleared before.
  bool adds_to_keys(const AttendCall& attend);
  /// Clears key gradients of `heads` that no attention call has written; `exchange` fills their
  /// segment.
  void clear_rest(std::int32_t exchange, Range heads);
  std::vector<bool>& written(std::int32_t exchange) { return written_heads_[segment_of(exchange)]; }

  StepCall& call_;
  TensorView dq_;                                 ///< the caller's
  TensorGroup dk_and_dv_;                         ///< likewise
  std::vector<std::vector<bool>> written_heads_;  ///< of key gradients: own, then by exchange
  bool is_dsink_written_ = false;
};

}  // namespace magi
