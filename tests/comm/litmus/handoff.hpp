// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Rows that one GPU hands to another over and over, and counts of those that came out stale.
namespace magi::test {

/// How the rows are read: by bulk copies, which go through a proxy of their own, as those of
/// attention, or by ordinary loads.
enum class HandoffReader : std::int32_t { Bulk, Plain };

inline constexpr std::int32_t kHandoffBytes = 4096;
/// Words that different GPUs write lie in different lines.
inline constexpr std::int32_t kHandoffStride = 16;

/// Pairs of a writing and a reading block, each with rows of its own. Every round the writer
/// stores the round's number all over the rows, and the reader looks for others.
struct Handoff {
  std::uint32_t* rows = nullptr;      ///< [pairs, kHandoffBytes / 4], at the reader
  std::uint64_t* flags = nullptr;     ///< [pairs, kHandoffStride], at the reader
  std::uint64_t* credits = nullptr;   ///< likewise, at the writer: rounds that have been read
  std::uint64_t* stale = nullptr;     ///< [pairs], at the reader: rounds with another number
  std::uint32_t* are_late = nullptr;  ///< at the reader: a wait took longer than 20 s
  std::uint32_t rounds = 0;
  HandoffReader reader = HandoffReader::Bulk;
  bool is_flag_first = false;  ///< a fault: the writer raises the flag before it stores the rows
};

void launch_handoff_writer(const Handoff& handoff, int num_pairs, cudaStream_t stream);
void launch_handoff_reader(const Handoff& handoff, int num_pairs, cudaStream_t stream);

}  // namespace magi::test
