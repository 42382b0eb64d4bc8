// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bench/distributed/dist_bench.hpp"
#include "bench/distributed/links.hpp"
#include "bench/distributed/stopwatch.hpp"

namespace magi::cli {

/// One rank of a run, for any number of cells.
class DistRank {
 public:
  /// Collective; `base` holds all ranks. `tell` is called on rank 0 alone.
  DistRank(const DistBenchOptions& options, std::shared_ptr<Communicator> base,
           const std::function<void(const std::string&)>& tell);
  ~DistRank();
  DistRank(const DistRank&) = delete;
  DistRank& operator=(const DistRank&) = delete;

  std::string device_name() const { return device_->name(); }
  /// Collective; equal on all ranks.
  DistCell run(std::int32_t mask, std::int32_t tokens);
  /// Collective, orderly end.
  void close_sync();

 private:
  const DistBenchOptions& options_;
  std::shared_ptr<Communicator> base_;
  std::function<void(const std::string&)> tell_;
  std::unique_ptr<RankDevice> device_;
  std::shared_ptr<Communicator> ours_;       ///< of the library's distributed attention
  std::shared_ptr<Communicator> baselines_;  ///< null: there are none
  std::unique_ptr<Link> link_;               ///< of the baselines
  std::unique_ptr<Link> meeting_;            ///< of the stopwatch
  std::unique_ptr<Stopwatch> watch_;
};

}  // namespace magi::cli
