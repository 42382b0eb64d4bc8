// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "magi/magi.h"
#include "magi/mask.hpp"

// Owners for handles, so that tests leak nothing when they fail.
namespace magi::capi_test {

struct Destroy {
  void operator()(magi_buffer* handle) const { magi_buffer_destroy(handle); }
  void operator()(magi_mask* handle) const { magi_mask_destroy(handle); }
  void operator()(magi_batch* handle) const { magi_batch_destroy(handle); }
  void operator()(magi_placement* handle) const { magi_placement_destroy(handle); }
  void operator()(magi_plan* handle) const { magi_plan_destroy(handle); }
  void operator()(magi_communicator* handle) const { magi_communicator_destroy(handle); }
  void operator()(magi_exchange* handle) const { magi_exchange_destroy(handle); }
  void operator()(magi_attention* handle) const { magi_attention_destroy(handle); }
};
template <typename Handle>
using Owned = std::unique_ptr<Handle, Destroy>;

/// Calls make(&handle), which must succeed.
template <typename Handle, typename Make>
Owned<Handle> made(const Make& make) {
  Handle* handle = nullptr;
  EXPECT_EQ(make(&handle), MAGI_OK) << magi_last_error_message();
  EXPECT_NE(handle, nullptr);
  return Owned<Handle>(handle);
}

template <typename Value>
std::vector<Value> array_of(const magi_buffer* buffer) {
  std::vector<Value> values(magi_buffer_size_bytes(buffer) / sizeof(Value));
  if (!values.empty()) {
    std::memcpy(values.data(), magi_buffer_data(buffer), values.size() * sizeof(Value));
  }
  return values;
}

inline std::string text_of(const magi_buffer* buffer) {
  return static_cast<const char*>(magi_buffer_data(buffer));
}

/// The C++ mask with the same slices.
inline Mask mask_of(const magi_mask* handle) {
  Mask mask;
  EXPECT_EQ(magi_mask_rows(handle, &mask.rows_q, &mask.rows_k), MAGI_OK);
  const auto table = made<magi_buffer>([&](auto** b) { return magi_mask_slices(handle, b); });
  const auto values = array_of<std::int32_t>(table.get());
  for (std::size_t i = 0; i + 5 < values.size(); i += 6) {
    mask.slices.push_back(
        {values[i], values[i + 1], values[i + 2], values[i + 3], values[i + 4], values[i + 5]});
  }
  return mask;
}

inline Owned<magi_mask> mask_from(const Mask& mask) {
  std::vector<std::int32_t> table;
  for (const BandSlice& s : mask.slices) {
    for (const std::int32_t value : {s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max}) {
      table.push_back(value);
    }
  }
  return made<magi_mask>([&](auto** m) {
    return magi_mask_from_slices(table.data(), static_cast<std::int64_t>(mask.slices.size()),
                                 mask.rows_q, mask.rows_k, m);
  });
}

}  // namespace magi::capi_test
