// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "magi/plan.hpp"

namespace magi {

/// One wave of a rank in the runtime's terms.
struct WaveWork {
  Range kv_heads;
  Range q_heads;
  bool is_own = false;        ///< reads the caller's k and v; others read the receive buffer
  Range buffer_rows;          ///< of the receive buffer, if not own
  bool is_exchanged = false;  ///< some rank receives rows for this wave: a collective call
  const RowExchange* exchange = nullptr;  ///< needed rows count from buffer_rows.begin
  std::span<const BandSlice> slices;      ///< key rows count from buffer_rows.begin, or own row 0
};

/// What one rank does for a plan: the plan's tables with the receive segments laid out in one
/// buffer. Borrows the plan's slices.
struct AttentionSchedule {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t buffer_rows = 0;
  /// Overlap degree 0: wave 0 reads a buffer that begins with a copy of the own rows.
  bool is_gathered = false;
  std::vector<RowExchange> exchanges;  ///< by k segment
  std::vector<WaveWork> waves;
  std::int32_t num_calls = 0;  ///< attention calls: wave 0 and every later wave with slices
};

AttentionSchedule make_attention_schedule(const Plan& plan, std::int32_t rank);

}  // namespace magi
