// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

// What calls on device memory may be given. Streams are cudaStream_t.
namespace magi {

/// Throws InvalidArgument unless `device`, that of the tensor `name`, is a GPU of this machine.
void check_device(const char* name, std::int32_t device);
/// Throws InvalidArgument unless as many of a GPU's multiprocessors can be left to exchanges.
void check_exchange_sms(std::int32_t device, std::int32_t exchange_sms);
/// Throws InvalidArgument where `stream` is being captured; `calls` names what cannot be.
void check_not_captured(void* stream, const char* calls);

struct ShardPair {
  const char* first_name;
  const TensorView& first;
  const char* second_name;
  const TensorView& second;
};
/// Throws InvalidArgument for tensors on a GPU unless both are row-major without gaps on one of
/// this machine, `communicator`, where there is one, moves device memory and `stream` is not being
/// captured.
void check_device_shards(const ShardPair& pair, const Communicator* communicator, void* stream);

}  // namespace magi
