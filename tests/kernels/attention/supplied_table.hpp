// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "magi/attention_backend.h"

namespace magi::test {

/// What a table was asked for.
struct TableLog {
  int num_plans = 0;
  int num_forwards = 0;
  int num_backwards = 0;
  int num_releases = 0;
  int num_destroys = 0;
  int num_optional = 0;  ///< sinks, max_logits, dlse and dsink of all calls
  std::string error;     ///< not empty: every call fails with it
};

/// A backend for host memory over the CPU kernels' plain calls: they neither merge nor add. Its
/// limits are float32 and bfloat16, dims up to 64; tests change them.
magi_attention_backend table_over_cpu(TableLog& log, const char* name);

}  // namespace magi::test
