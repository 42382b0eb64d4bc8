// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "comm/row_moves.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace magi::testing {

/// The memory of the current device `device`; `stream` outlives it.
inline TestMemory device_memory(std::int32_t device, const Stream& stream) {
  return {.device = device,
          .stream = stream.handle(),
          .place =
              [](const std::vector<std::byte>& bytes) {
                const auto buffer = std::make_shared<DeviceBuffer>(
                    bytes_to_device_sync(bytes.data(), bytes.size()));
                return std::shared_ptr<void>(buffer, buffer->data());
              },
          .fetch_sync =
              [&stream](const void* data, std::vector<std::byte>& bytes) {
                stream.wait_sync();
                const auto seen = to_host_sync<std::byte>(data, bytes.size());
                std::ranges::copy(seen, bytes.begin());  // views keep pointing
              }};
}

}  // namespace magi::testing
