// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// What builders of masks and readers of forms say of arguments.
namespace magi {

/// Keeps a mistaken step of one row on a million, or what a short text asks for, from filling the
/// memory: these slices take 400 MB.
inline constexpr std::int64_t kMaxSlices = std::int64_t{1} << 24;

/// An element of an array, in messages: name[index].
inline std::string at(std::string_view name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

}  // namespace magi
