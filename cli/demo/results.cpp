// SPDX-License-Identifier: Apache-2.0
#include "demo/results.hpp"

#include <cstring>

#include "base/math.hpp"
#include "demo/embedding.hpp"

namespace magi::cli {
namespace {

/// Hands out parts of one block; with no block it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename Element>
  Element* take(std::size_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += align_up(count * sizeof(Element), std::size_t{64});
    return reinterpret_cast<Element*>(at);
  }
  TensorView tensor(std::initializer_list<std::int64_t> shape) {
    TensorView view = contiguous_view(nullptr, DType::Float32, shape);
    view.data = take<float>(static_cast<std::size_t>(view.num_elements()));
    return view;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

std::vector<SceneResults> carve_scenes(const std::vector<Scene>& scenes, std::int32_t num_ranks,
                                       Carver& carver) {
  std::vector<SceneResults> results;
  for (const Scene& scene : scenes) {
    const std::int64_t rows = scene.plan->mask.rows_q;
    results.push_back({.out = carver.tensor({rows, kDemoHeadsQ, kDemoHeadDim}),
                       .lse = carver.tensor({rows, kDemoHeadsQ}),
                       .dq = carver.tensor({rows, kDemoHeadsQ, kDemoHeadDim}),
                       .dk = carver.tensor({rows, kDemoHeadsKv, kDemoHeadDim}),
                       .dv = carver.tensor({rows, kDemoHeadsKv, kDemoHeadDim}),
                       .figures = carver.take<RankFigures>(static_cast<std::size_t>(num_ranks))});
  }
  return results;
}

std::size_t size_of(const std::vector<Scene>& scenes, std::int32_t num_ranks,
                    std::size_t place_bytes) {
  Carver measure(nullptr);
  carve_scenes(scenes, num_ranks, measure);
  return measure.used() + place_bytes;
}

}  // namespace

// The memory is zero: figures start as their default values.
SharedResults::SharedResults(const std::vector<Scene>& scenes, std::int32_t num_ranks)
    : memory_(size_of(scenes, num_ranks, sizeof(Place))) {
  Carver carver(memory_.data());
  scenes_ = carve_scenes(scenes, num_ranks, carver);
  place_ = carver.take<Place>(1);
}

void SharedResults::set_place(const std::string& device, const std::string& transport) {
  std::strncpy(place_->device.data(), device.c_str(), place_->device.size() - 1);
  std::strncpy(place_->transport.data(), transport.c_str(), place_->transport.size() - 1);
}

}  // namespace magi::cli
