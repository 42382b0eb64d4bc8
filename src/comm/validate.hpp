// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "magi/comm.hpp"

namespace magi::comm {

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

}  // namespace magi::comm
