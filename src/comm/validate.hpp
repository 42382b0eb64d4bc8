// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "magi/comm.hpp"

namespace magi::comm {

inline constexpr std::int32_t kMaxRanks = 1024;
/// Clocks count in nanoseconds: from 292 years on a time from now would lie before it.
inline constexpr std::chrono::milliseconds kLongestDeadline{std::int64_t{1} << 40};

/// The arguments of a cast or reduce, as the caller gave them.
struct ExchangeArgs {
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  const RowExchange& rows;
  std::int32_t rank;
  std::int32_t num_ranks;
  std::int32_t device = kCpuDevice;  ///< where the tensors must lie
};

/// Throw InvalidArgument before anything is sent.
void check_cast(const ExchangeArgs& args);
void check_reduce(const ExchangeArgs& args, ExchangeKind kind);
/// Throws InvalidArgument naming a table of another length, a negative size, or a null buffer.
void check_bytes(const ByteExchange& exchange, std::int32_t rank, std::int32_t num_ranks);
void check_group_size(std::int32_t rank, std::int32_t num_ranks, const CommOptions& options);

}  // namespace magi::comm
