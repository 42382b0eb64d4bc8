// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/sm90/backward/launch.hpp"
#include "kernels/sm90/forward/launch.hpp"
#include "magi/attention_limits.hpp"

namespace magi {

/// The kernels of one kind of GPU and what calls of them may have.
struct KernelFamily {
  std::span<const sm90::ForwardInstance> forward;
  std::span<const sm90::BackwardInstance> backward;
  AttentionLimits limits;
  AttentionLimits backward_limits;
  bool has_clusters = false;  ///< which make lists on the device, see DeviceListShape
};

/// Those for a GPU of the library's own backend of this name; empty: of the first that serves it.
/// Throws InvalidArgument naming the device or the backend.
const KernelFamily& kernels_on(const std::string& backend, std::int32_t device);

}  // namespace magi
