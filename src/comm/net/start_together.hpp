// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "magi/comm.hpp"

namespace magi::comm {

/// One step of a group's start that every rank does: all give bytes to all. A rank whose `give`
/// throws takes part all the same, with the reason, which then the other ranks throw as a CommError
/// naming it. [num_ranks] in rank order.
std::vector<std::vector<std::byte>> start_together(
    const Bootstrap& bootstrap, std::int32_t num_ranks,
    const std::function<std::vector<std::byte>()>& give);

/// A plain value as bytes that a rank gives.
template <typename Value>
std::vector<std::byte> bytes_of(const Value& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}
/// The value that `rank` gave. Throws CommError for bytes of another size.
template <typename Value>
Value value_of(const std::vector<std::byte>& bytes, std::size_t rank) {
  if (bytes.size() != sizeof(Value)) {
    throw CommError("the bootstrap gave " + std::to_string(bytes.size()) + " bytes for rank " +
                        std::to_string(rank) + "; expected " + std::to_string(sizeof(Value)),
                    CommFailure::System);
  }
  Value value;
  std::memcpy(&value, bytes.data(), sizeof(Value));
  return value;
}

}  // namespace magi::comm
