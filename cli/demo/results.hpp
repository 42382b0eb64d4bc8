// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/shared_memory.hpp"
#include "demo/scenes.hpp"
#include "magi/tensor.hpp"

namespace magi::cli {

inline constexpr std::int32_t kMostDemoRanks = 64;

/// The measurements of one rank on one mask.
struct RankFigures {
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  std::array<std::int64_t, kMostDemoRanks> forward_bytes{};  ///< sent to each peer
  std::array<std::int64_t, kMostDemoRanks> backward_bytes{};
};

/// The results of one mask in global row order, and every rank's figures.
struct SceneResults {
  TensorView out, lse, dq, dk, dv;  ///< as the embedding's tensors; lse [tokens, heads]
  RankFigures* figures = nullptr;   ///< [num_ranks]
};

/// Results of all masks in memory that rank processes share with the process that started them.
class SharedResults {
 public:
  SharedResults(const std::vector<Scene>& scenes, std::int32_t num_ranks);

  const SceneResults& scene(std::size_t index) const { return scenes_[index]; }
  /// Names the devices and the transport of the ranks; called on rank 0.
  void set_place(const std::string& device, const std::string& transport);
  std::string device() const { return place_->device.data(); }
  std::string transport() const { return place_->transport.data(); }

 private:
  struct Place {
    std::array<char, 128> device{};
    std::array<char, 32> transport{};
  };
  SharedMemory memory_;
  std::vector<SceneResults> scenes_;
  Place* place_ = nullptr;
};

}  // namespace magi::cli
