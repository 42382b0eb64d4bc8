// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/attention/backend.hpp"

// The library's own backends: the rows of the table in backend_table.cpp.
namespace magi {

const std::shared_ptr<const AttentionBackend>& cpu_backend();
/// Null where the library is built without CUDA.
const std::shared_ptr<const AttentionBackend>& sm90_backend();
/// Likewise. It serves those that ask for it by name.
const std::shared_ptr<const AttentionBackend>& mma_backend();

/// Throws InvalidArgument saying why none of them serves `device`.
[[noreturn]] void refuse_device(std::int32_t device);

}  // namespace magi
