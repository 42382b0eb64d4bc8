// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "magi/comm.hpp"
#include "magi/comm_vtable.h"

// Between the structs of the C table and those of C++.
namespace magi::comm {

std::vector<magi_tensor> to_c(std::span<const TensorView> tensors);
std::vector<magi_peer_rows> to_c(std::span<const PeerRows> records);
std::vector<TensorView> from_c(const magi_tensor* tensors, std::int32_t count);
std::vector<PeerRows> from_c(const magi_peer_rows* records, std::int64_t count);
std::int32_t exchange_kind(ReduceOp op);

/// Throws the exception that stands for a status that is not OK.
[[noreturn]] void throw_status(std::int32_t status, std::int32_t failure, const std::string& text);

}  // namespace magi::comm
