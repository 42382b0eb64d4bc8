// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

// What shards in device memory need besides the exchange of their rows.
namespace magi {

struct ShardPair {
  const char* first_name;
  const TensorView& first;
  const char* second_name;
  const TensorView& second;
};
/// Throws InvalidArgument unless both tensors are row-major without gaps on one GPU of this
/// machine, `communicator`, where there is one, moves device memory and `stream` is not being
/// captured.
void check_device_shards(const ShardPair& pair, const Communicator* communicator, void* stream);

/// Every element = value, rounded to the element type; enqueued on `stream` (a cudaStream_t).
void fill_device_elements(const TensorView& target, double value, void* stream);

}  // namespace magi
