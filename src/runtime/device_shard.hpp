// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "magi/comm.hpp"
#include "runtime/shard_map.hpp"

// Shards in device memory, enqueued on a stream (a cudaStream_t). Tensors have been checked but for
// what check_device_shards looks at.
namespace magi {

/// Throws InvalidArgument unless both tensors are row-major without gaps on one GPU of this machine
/// and `communicator`, where there is one, moves device memory.
void check_device_shards(const char* first_name, const TensorView& first, const char* second_name,
                         const TensorView& second, const Communicator* communicator);

/// Rows of `source` to rows of `target`: those that stay on this rank, and where there is a
/// communicator those of the exchange (owned rows of source, needed rows of target).
struct DeviceShardMove {
  const TensorView& source;
  const TensorView& target;
  std::span<const LocalMove> moves;
  const RowExchange* exchange = nullptr;
  Communicator* communicator = nullptr;
};
void move_device_rows(const DeviceShardMove& move, void* stream);

/// `local` = sum over ranks of their parts of `global`: own rows first (target_row counts in
/// local), then partials in rank order; sums in float32 (float64).
struct DeviceShardSum {
  const TensorView& global;
  const TensorView& local;
  std::span<const LocalMove> own;
  const RowExchange& exchange;
  Communicator& communicator;
};
void sum_device_rows(const DeviceShardSum& sum, void* stream);

/// Every element = value, rounded to the element type.
void fill_device_elements(const TensorView& target, double value, void* stream);

}  // namespace magi
