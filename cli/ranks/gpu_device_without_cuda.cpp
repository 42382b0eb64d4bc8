// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "ranks/rank_device.hpp"

namespace magi::cli {

std::unique_ptr<RankDevice> make_gpu_device(std::int32_t ordinal) {
  throw invalid("device", ordinal, "the CPU alone, as this magi is built without CUDA");
}

}  // namespace magi::cli
