// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "magi/magi.h"
#include "magi/tensor.hpp"

// From C arguments to the library's own types. Each throws InvalidArgument naming the argument.
namespace magi::capi {

/// `*pointer`, which must be there.
template <typename Value>
Value& require(Value* pointer, const char* name) {
  if (pointer == nullptr) throw invalid(name, "null", "a valid address");
  return *pointer;
}

/// The bytes by which a later version may lengthen a struct that this one knows.
inline constexpr std::size_t kMostGrowth = 256;

/// Refuses a size that no version has had or will have, which nobody has set.
template <typename Struct>
std::size_t check_struct_size(std::size_t size, const char* name) {
  if (size < sizeof(Struct)) {
    throw invalid(std::string(name) + ".struct_size", size,
                  std::to_string(sizeof(Struct)) + " or more");
  }
  if (size > sizeof(Struct) + kMostGrowth || size % alignof(Struct) != 0) {
    throw invalid(std::string(name) + ".struct_size", size,
                  std::to_string(sizeof(Struct)) + " to " +
                      std::to_string(sizeof(Struct) + kMostGrowth) + " in steps of " +
                      std::to_string(alignof(Struct)));
  }
  return size;
}

/// A caller's struct: this library's fields of it. Fields that it does not know must be zero.
template <typename Struct>
Struct read_struct(const Struct* given, const char* name) {
  const std::size_t size = check_struct_size<Struct>(require(given, name).struct_size, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char b) { return b != 0; })) {
    throw invalid(std::string(name) + ".struct_size", size,
                  std::to_string(sizeof(Struct)) + ", or zero in the fields beyond");
  }
  return *given;
}

/// Fills a struct of the caller's as far as it reaches.
template <typename Struct>
void write_struct(Struct* target, Struct value, const char* name) {
  value.struct_size = check_struct_size<Struct>(require(target, name).struct_size, name);
  std::memcpy(target, &value, sizeof(Struct));
}

/// Sets the caller's struct to `defaults`; NULL stays what it is, as in the destroy functions.
template <typename Struct>
void init_struct(Struct* target, const Struct& defaults) {
  if (target != nullptr) *target = defaults;
}

template <typename Value>
std::span<const Value> read_array(const Value* data, std::int64_t count, const char* name) {
  if (count < 0) throw invalid(std::string("length of ") + name, count, "0 or more");
  if (count > 0) require(data, name);
  return {data, static_cast<std::size_t>(count)};
}

inline std::string_view read_text(const char* text, std::size_t size_bytes, const char* name) {
  if (size_bytes > 0) require(text, name);
  return {text, size_bytes};
}

/// Empty where the caller gives none.
inline std::string read_name(const char* name) { return name != nullptr ? name : ""; }

TensorView read_tensor(const magi_tensor* tensor, const char* name);
/// The view without data where `tensor` is NULL.
TensorView read_optional_tensor(const magi_tensor* tensor, const char* name);

}  // namespace magi::capi
