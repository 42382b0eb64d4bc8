// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

// What calls on device memory need besides the exchange of rows. Streams are cudaStream_t.
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
/// Throws InvalidArgument unless both tensors are row-major without gaps on one GPU of this
/// machine, `communicator`, where there is one, moves device memory and `stream` is not being
/// captured.
void check_device_shards(const ShardPair& pair, const Communicator* communicator, void* stream);

/// Every element of a tensor without gaps = value, rounded to the element type.
void fill_device_elements(const TensorView& target, double value, void* stream);
/// Every element of a tensor [rows], [rows, heads] or [rows, heads, dim] with a contiguous last
/// axis = 0.
void clear_device_elements(const TensorView& target, void* stream);
/// target = source, both of one type and of equal shape [a, b, c, d].
void copy_device_elements(const TensorView& source, const TensorView& target, void* stream);
/// target = source (float32 or float64), rounded where the target is narrower; both [rows, heads,
/// dim], dim contiguous. Fast where four elements can be moved at once.
void convert_device_elements(const TensorView& source, const TensorView& target, void* stream);

}  // namespace magi
