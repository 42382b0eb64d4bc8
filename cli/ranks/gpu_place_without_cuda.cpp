// SPDX-License-Identifier: Apache-2.0
#include "magi/error.hpp"
#include "ranks/rank_place.hpp"

namespace magi::cli {

void on_gpu(std::int32_t /*device*/, const std::function<void(const RankPlace&)>& /*body*/) {
  throw InvalidArgument("this magi is built without CUDA, so there is no GPU to work on");
}

}  // namespace magi::cli
