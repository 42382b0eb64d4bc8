// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What calls on device memory may be given. Streams are cudaStream_t.
namespace magi {

/// Throws InvalidArgument unless `device`, that of the tensor `name`, is a GPU of this machine.
void check_device(const char* name, std::int32_t device);
/// Throws InvalidArgument unless as many of a GPU's multiprocessors can be left to exchanges.
void check_exchange_sms(std::int32_t device, std::int32_t exchange_sms);
/// Throws InvalidArgument where `stream` is being captured; `calls` names what cannot be.
void check_not_captured(void* stream, const char* calls);

}  // namespace magi
