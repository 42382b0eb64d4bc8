// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bench/distributed/links.hpp"
#include "bench/distributed/side.hpp"

namespace magi::cli {

/// Times work that all ranks begin together. On a GPU attention of the kernel's own comes before
/// it: the host enqueues the work meanwhile, and clocks are those of a device at work, after a
/// short call as after a long one.
class Stopwatch {
 public:
  /// link: joins GPUs; null on the host and for one rank.
  Stopwatch(RankDevice& device, Communicator& base, Link* link, const AttentionShape& shape);

  /// This rank's seconds. Collective.
  double seconds_of_sync(const std::function<void()>& work);
  /// Of each of the numbers the largest over the ranks; what is no number is infinite. Collective.
  std::vector<double> largest_sync(std::vector<double> values) const;

 private:
  void line_up();

  RankDevice& device_;
  Communicator& base_;
  Link* link_;
  AttentionArrays lead_;
  std::unique_ptr<KernelAttention> lead_kernel_;  ///< null on the host
  Array own_word_, all_words_;
  comm::RowTable words_;
};

double median(std::vector<double> values);

}  // namespace magi::cli
