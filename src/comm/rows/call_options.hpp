// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "magi/tensor.hpp"

namespace magi::comm {

/// The options that all ranks give an attention call besides the plan.
struct CallOptions {
  bool is_backward = false;
  DType type = DType::Float32;  ///< of q
  std::int32_t sink_axes = 0;   ///< 0: no sink
  std::int64_t num_sinks = 0;
  bool has_max_logits = false;
  bool has_dlse = false;
  bool is_fast_backward = false;
  bool are_partials_rounded = false;
  double softmax_scale = 0.0;  ///< in use, not 0; finite, as is the cap
  double softcap = 0.0;
};

enum class RowFunction : std::int32_t { Undispatch = 1, SumOfRows = 2, Roll = 3 };

/// The options that all ranks give a call that moves rows of a placement without attention.
struct RowOptions {
  RowFunction function = RowFunction::Undispatch;
  std::int32_t num_rows = 0;    ///< of the sequence
  std::int64_t row_length = 0;  ///< elements
  std::int64_t shift = 0;
};

/// The options in 64 bits, for ranks to compare (ExchangeTag::options). Of numbers they hold a hash
/// of 25 bits each, so that who compares can tell which option differs.
std::uint64_t pack_options(const CallOptions& options);
std::uint64_t pack_options(const RowOptions& options);
/// "sink, softmax_scale": what differs between two results of pack_options.
std::string differing_options(std::uint64_t a, std::uint64_t b);
/// "rank 1 calls with other options than rank 0: sink", of ranks in one call.
std::string other_options_text(std::int32_t rank, std::uint64_t options, std::int32_t other,
                               std::uint64_t others_options);

}  // namespace magi::comm
