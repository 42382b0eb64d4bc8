// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

// What runs of supplied backends need of a GPU.
namespace magi {

/// Keeps `object` with the graph that `stream` is being captured into, if it is.
void keep_with_capture(std::shared_ptr<const void> object, void* stream);

/// Memory of the library's pool for work on `stream`, given back with its last owner.
std::shared_ptr<void> take_device_memory(std::int64_t size_bytes, std::int32_t device,
                                         void* stream);

}  // namespace magi
