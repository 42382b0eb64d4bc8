// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capi/arguments.hpp"
#include "capi/status.hpp"
#include "capi/work_cache.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/magi.h"
#include "magi/runtime.hpp"

// src/capi is libmagi: the functions of magi/magi.h, in a file for each part of the library. A
// function reads its arguments (arguments.hpp, attention_arguments.hpp), checks that outputs lie
// apart (outputs.hpp), calls the C++ library and gives out what it made (giving); guarded
// (status.hpp) turns exceptions into status codes. shard.cpp is a short one to begin with.
// The library exports what the C headers declare, which a test compares.
//
// Here is what stands behind the opaque handles. Shared parts are reference counted, so that
// handles may be destroyed in any order.

struct magi_buffer {
  std::vector<std::byte> bytes;  ///< with a closing zero byte
};

struct magi_mask {
  magi::Mask mask;
  std::unique_ptr<magi::capi::WorkCache<magi::PreparedForward>> forwards =
      std::make_unique<magi::capi::WorkCache<magi::PreparedForward>>();
  std::unique_ptr<magi::capi::WorkCache<magi::PreparedBackward>> backwards =
      std::make_unique<magi::capi::WorkCache<magi::PreparedBackward>>();
};

struct magi_placement {
  std::shared_ptr<const magi::Placement> placement;
};

struct magi_plan {
  std::shared_ptr<const magi::Plan> plan;
};

struct magi_communicator {
  std::shared_ptr<magi::Communicator> communicator;
};

struct magi_exchange {
  std::shared_ptr<magi::Communicator> communicator;
  std::vector<magi::TensorView> inputs, outputs;
  magi::RowExchange rows;
  std::unique_ptr<magi::PendingExchange> pending;  ///< ends before what it refers to
};

struct magi_attention {
  std::shared_ptr<magi::Communicator> communicator;
  magi::DistributedAttention attention;
};

namespace magi::capi {

template <typename Value>
std::unique_ptr<magi_buffer> make_buffer(std::span<const Value> values) {
  auto buffer = std::make_unique<magi_buffer>();
  buffer->bytes.resize(values.size_bytes() + 1);
  if (!values.empty()) std::memcpy(buffer->bytes.data(), values.data(), values.size_bytes());
  return buffer;
}

/// The handle of what a call made.
inline std::unique_ptr<magi_buffer> handle_of(std::string_view text) {
  return make_buffer(std::span<const char>(text));
}
template <typename Value>
std::unique_ptr<magi_buffer> handle_of(const std::vector<Value>& values) {
  return make_buffer(std::span<const Value>(values));
}
inline std::unique_ptr<magi_mask> handle_of(Mask made) {
  return std::make_unique<magi_mask>(magi_mask{std::move(made)});
}
inline std::unique_ptr<magi_placement> handle_of(Placement made) {
  return std::make_unique<magi_placement>(
      magi_placement{std::make_shared<const Placement>(std::move(made))});
}
inline std::unique_ptr<magi_plan> handle_of(Plan made) {
  return std::make_unique<magi_plan>(magi_plan{std::make_shared<const Plan>(std::move(made))});
}
inline std::unique_ptr<magi_communicator> handle_of(std::unique_ptr<Communicator> made) {
  return std::make_unique<magi_communicator>(magi_communicator{std::move(made)});
}
template <typename Handle>
std::unique_ptr<Handle> handle_of(std::unique_ptr<Handle> made) {
  return made;
}

/// Runs the body of an ABI call that hands the caller a new handle: of what make() returns.
template <typename Handle, typename Make>
magi_status giving(Handle** result, const char* name, const Make& make) noexcept {
  return guarded([&] {
    require(result, name);
    *result = handle_of(make()).release();
  });
}

/// A line for each sentence.
inline std::string lines(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += sentence + '\n';
  return text;
}

inline Communicator& communicator_of(magi_communicator* handle) {
  return *require(handle, "communicator").communicator;
}
inline const Placement& placement_of(const magi_placement* handle) {
  return *require(handle, "placement").placement;
}
inline const Mask& mask_of(const magi_mask* handle) { return require(handle, "mask").mask; }
inline const Plan& plan_of(const magi_plan* handle) { return *require(handle, "plan").plan; }

PlacementConfig read_placement_config(const magi_placement_config* config, const char* name);
PlanConfig read_plan_config(const magi_plan_config* config);

}  // namespace magi::capi
