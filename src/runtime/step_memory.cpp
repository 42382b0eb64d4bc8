// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_memory.hpp"

#include <utility>

#include "base/math.hpp"
#include "runtime/tensors/check_device.hpp"

namespace magi {
namespace {

/// The device of a call's tensors.
std::int32_t checked(std::int32_t device, const AttentionOptions& options) {
  if (device == kCpuDevice) return device;
  check_device("q", device);
  check_exchange_sms(device, options.exchange_sms);
  return device;
}

bool is_taking_turns(const RankSteps& steps) { return steps.plan.stages_in_flight > 0; }

}  // namespace

StepMemory::StepMemory(const RankSteps& steps, const AttentionOptions& options,
                       Communicator& communicator, std::int32_t device)
    : device_(checked(device, options)),
      lender_{.allocate = [this](std::size_t size_bytes, std::int32_t,
                                 void*) { return lend_bytes(size_bytes); },
              .release = [](void*, std::size_t, std::int32_t, void*) {}},
      // Buffers of stages that take turns go back when their rows have been taken, not at the end
      // of the call; and they are no passes, in whose areas each move has a place of its own.
      exchanger_(comm::make_row_exchanger(
          communicator, device, is_taking_turns(steps) ? options.allocator : lender_,
          {.has_ways_by_node = std::ranges::any_of(
               steps.plan.exchanges, [](const Exchange& exchange) { return exchange.hop != 0; }),
           .has_passes = !is_taking_turns(steps),
           .beside_sms = steps.has_work_beside_exchange() ? options.exchange_sms : 0})),
      peers_(is_taking_turns(steps) ? nullptr : comm::as_peer_exchanger(*exchanger_)),
      attends_(steps, options, device, peers_),
      row_memory_(comm::make_row_memory(device, options.allocator)),
      are_partials_rounded_(options.are_partials_rounded) {
  for (const Space space : {Space::Queries, Space::Keys}) {
    std::int32_t segment = 0;
    for (const SegmentRows& rows : space == Space::Queries ? steps.q_segments : steps.k_segments) {
      exchanger_->prepare(rows.filling, {.kind = ExchangeKind::Cast},
                          steps.everyones_rows(space, segment++, false));
      if (peers_ != nullptr && space == Space::Keys) peers_->bring_in_sections(rows.filling);
    }
  }
}

void StepMemory::begin(Pass pass, void* stream) {
  pass_ = static_cast<std::size_t>(pass);
  if (peers_ == nullptr) row_memory_->begin_call(stream);  // passes follow each other by themselves
  stream_ = stream;
  used_bytes_ = lent_bytes_ = 0;
  turns_.clear();
  turn_ = nullptr;
  // A piece that the other pass left is replaced where it is too small for this one.
  if (!pieces_.empty() && pieces_.front().size_bytes < largest_bytes_[pass_]) pieces_.clear();
}

void StepMemory::end() noexcept {
  if (peers_ != nullptr) peers_->end_pass(stream_);
  largest_bytes_[pass_] = std::max(largest_bytes_[pass_], lent_bytes_);
  // The host's one piece stays for the next call; on a GPU the allocator keeps it.
  if (device_ != kCpuDevice || pieces_.size() > 1) pieces_.clear();
  if (peers_ == nullptr) row_memory_->end_call(stream_);
}

TensorView StepMemory::lend(DType dtype, std::initializer_list<std::int64_t> shape,
                            const comm::RowTable* casts) {
  TensorView tensor = contiguous_view(nullptr, dtype, shape, device_);
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  tensor.data = casts != nullptr && peers_ != nullptr
                    ? peers_->place(peers_->most_rows(*casts, ExchangeKind::Cast) *
                                    tensor.stride[0] * element)
                    : lend_bytes(static_cast<std::size_t>(tensor.num_elements() * element));
  return tensor;
}

void StepMemory::begin_turn(std::size_t turn, const std::function<std::size_t()>& size_bytes) {
  if (turns_.size() <= turn) turns_.resize(turn + 1);
  if (turns_[turn] == nullptr) turns_[turn] = lend_bytes(size_bytes());
  turn_ = turns_[turn];
}

std::byte* StepMemory::lend_bytes(std::size_t size_bytes) {
  // Never null, so that a tensor of no rows still counts as given.
  const std::size_t size =
      align_up(std::max<std::size_t>(size_bytes, 1), std::size_t{kLentAlignment});
  if (turn_ != nullptr) return std::exchange(turn_, turn_ + size);
  if (pieces_.empty() || used_bytes_ + size > pieces_.back().size_bytes) {
    const std::size_t piece = std::max(size, pieces_.empty() ? largest_bytes_[pass_] : 0);
    pieces_.push_back({row_memory_->allocate(static_cast<std::int64_t>(piece), stream_), piece});
    used_bytes_ = 0;
  }
  std::byte* data = pieces_.back().data.get() + used_bytes_;
  used_bytes_ += size;
  lent_bytes_ += size;
  return data;
}

}  // namespace magi
