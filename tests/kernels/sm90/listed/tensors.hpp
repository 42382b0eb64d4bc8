// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "kernels/sm90/listed/case.hpp"
#include "support/gpu/random_tensors.hpp"

namespace magi::test {

/// Inputs on host and device.
struct ListedTensors {
  explicit ListedTensors(const ListedCase& test);
  /// Makes NaN of all keys that no list names.
  void poison_unseen_keys(const ListedIndices& lists);

  GuardedTensor q, k, v;
  std::unique_ptr<GuardedTensor> sink;
};

/// Sinks, or their gradients, of a case held as [1 or rows, sinks, heads]; null where it has none.
std::unique_ptr<GuardedTensor> listed_sink(const ListedCase& test);

/// The elements of heads [begin, begin + count).
std::vector<double> heads_of(const GuardedTensor& tensor, std::int32_t begin, std::int32_t count);
/// Of sinks, whose heads are the last axis.
std::vector<double> sink_heads_of(const GuardedTensor& sink, std::int32_t begin,
                                  std::int32_t count);

/// The problem of one kv head.
reference::DenseInput input_of(const ListedCase& test, const ListedTensors& tensors,
                               std::int32_t kv_head);

}  // namespace magi::test
