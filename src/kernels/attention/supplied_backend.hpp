// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/attention/backend.hpp"
#include "magi/attention_backend.h"

namespace magi {

/// A backend over a caller's table of C functions, which is copied. Throws InvalidArgument naming
/// an entry that is missing or out of range.
std::shared_ptr<const AttentionBackend> make_supplied_backend(const magi_attention_backend& table);

AttentionLimits to_limits(const magi_attention_limits& given);
magi_attention_limits to_c(const AttentionLimits& limits);

}  // namespace magi
