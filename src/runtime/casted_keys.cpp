// SPDX-License-Identifier: Apache-2.0
#include "runtime/attention_state.hpp"
#include "runtime/elements.hpp"

namespace magi {

CastedKeys::CastedKeys(AttentionState& state, const AttentionInputs& inputs)
    : schedule_(state.schedule), k_(inputs.k), v_(inputs.v) {
  const std::int64_t rows = schedule_.buffer_rows;
  received_k_ = state.received_k.view(k_.dtype, {rows, k_.shape[1], k_.shape[2]});
  received_v_ = state.received_v.view(v_.dtype, {rows, v_.shape[1], v_.shape[2]});
  pending_.resize(schedule_.waves.size());
  for (std::size_t w = 0; w < schedule_.waves.size(); ++w) {
    const WaveWork& wave = schedule_.waves[w];
    if (!wave.is_exchanged) continue;
    const TensorView sources[] = {heads_of(k_, wave.kv_heads), heads_of(v_, wave.kv_heads)};
    const TensorView targets[] = {k(wave), v(wave)};
    pending_[w] = state.communicator->group_cast(
        sources, targets, *wave.exchange,
        {.plan_digest = state.plan->digest, .stage = static_cast<std::int32_t>(w)});
  }
  if (schedule_.is_gathered) {
    const Range own{0, schedule_.rows_k};
    copy_elements(k_, rows_of(received_k_, own));
    copy_elements(v_, rows_of(received_v_, own));
  }
}

void CastedKeys::wait_sync(std::size_t wave) {
  if (pending_[wave] == nullptr) return;
  pending_[wave]->wait_sync();
  pending_[wave].reset();
}

TensorView CastedKeys::select(const WaveWork& wave, const TensorView& own,
                              const TensorView& received) {
  return heads_of(wave.is_own ? own : rows_of(received, wave.buffer_rows), wave.kv_heads);
}

}  // namespace magi
