// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "comm/rows/exchange_kind.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"

namespace magi::comm {
namespace {

class PackedRows;

/// The state that the moves of one exchanger share; they may outlive it.
struct MoveState {
  std::shared_ptr<RowMemory> memory;
  std::deque<PackedRows*> reduces;  ///< in start order, those that are not applied yet
  std::int64_t bytes = 0, largest_bytes = 0;
};

class PackedRows final : public PendingRows {
 public:
  PackedRows(std::shared_ptr<MoveState> state, Communicator& group, const RowTable& table,
             const RowMove& move, void* stream);
  ~PackedRows() override {
    std::erase(state_->reduces, this);
    state_->bytes -= buffer_bytes_;
  }

  bool round_into(std::span<const TensorView> targets) override {
    if (!state_->memory->can_round({kind_, to_, wire_types_, wire_, tasks_, targets})) return false;
    rounded_.assign(targets.begin(), targets.end());
    return true;
  }
  void await(void* stream) override {
    if (transfer_ == nullptr) return;
    while (is_reduce(kind_) && state_->reduces.front() != this) {
      state_->reduces.front()->finish(stream);
    }
    finish(stream);
  }

 private:
  void finish(void* stream);

  std::shared_ptr<MoveState> state_;
  ExchangeKind kind_;
  std::vector<TensorView> to_, rounded_;
  std::uint64_t wire_types_;
  RowTasks tasks_;
  std::int64_t buffer_bytes_ = 0;
  std::shared_ptr<std::byte> buffer_;      ///< what is packed, then what is received
  std::byte* wire_ = nullptr;              ///< received rows; of a reduce the own rank's after
  bool is_placed_ = false;                 ///< they are received where they belong
  std::unique_ptr<PendingRows> transfer_;  ///< null once the rows are in `to_`; ends before buffer_
};

PackedRows::PackedRows(std::shared_ptr<MoveState> state, Communicator& group, const RowTable& table,
                       const RowMove& move, void* stream)
    : state_(std::move(state)),
      kind_(move.kind),
      to_(move.to.begin(), move.to.end()),
      wire_types_(wire_types_of(move.from, move.to)),
      tasks_(state_->memory->tasks_of(table, stream)) {
  RowMemory& memory = *state_->memory;
  const bool is_reducing = is_reduce(kind_);
  const WireOrder& sent = is_reducing ? table.needed : table.owned;
  const WireOrder& received = is_reducing ? table.owned : table.needed;
  const auto sent_row = static_cast<std::int64_t>(wire_row_bytes(move.from, wire_types_));
  const auto received_row = static_cast<std::int64_t>(wire_row_bytes(to_, wire_types_));
  std::byte* packed = find_wire(move.from, sent);
  if (!is_reducing) wire_ = find_wire(to_, received);
  is_placed_ = wire_ != nullptr;

  constexpr std::int64_t kAlignment = 256;
  const std::int64_t packed_bytes =
      packed != nullptr ? 0 : align_up(sent.num_rows * sent_row, kAlignment);
  const std::int64_t staged_rows = received.num_rows + (is_reducing ? received.num_own_rows : 0);
  const std::int64_t size_bytes = packed_bytes + (is_placed_ ? 0 : staged_rows * received_row);
  buffer_ = memory.allocate(size_bytes, stream);
  if (packed == nullptr) {
    packed = buffer_.get();
    memory.copy({move.from}, {move.from, packed}, is_reducing ? tasks_.needed : tasks_.owned,
                stream);
  }
  if (!is_placed_) wire_ = buffer_.get() + packed_bytes;
  const auto send_bytes = sent.peer_bytes(sent_row);
  const auto receive_bytes = received.peer_bytes(received_row);
  const ByteExchange exchange{.send = packed,
                              .receive = wire_,
                              .send_bytes = send_bytes,
                              .receive_bytes = receive_bytes,
                              .kind = kind_,
                              .tag = move.tag,
                              .content = wire_types_};
  transfer_ = memory.start(group, exchange, stream);
  if (is_reducing) {
    memory.copy({move.from}, {move.from, wire_ + received.num_rows * received_row},
                tasks_.own_partials, stream);
    state_->reduces.push_back(this);
  } else {
    memory.copy({move.from}, {to_}, tasks_.own, stream);
  }
  state_->bytes += buffer_bytes_ = size_bytes;
  state_->largest_bytes = std::max(state_->largest_bytes, state_->bytes);
}

void PackedRows::finish(void* stream) {
  RowMemory& memory = *state_->memory;
  transfer_->await(stream);
  if (is_reduce(kind_)) {
    memory.combine({kind_, to_, wire_types_, wire_, tasks_, rounded_}, stream);
    std::erase(state_->reduces, this);
  } else if (!is_placed_) {
    memory.copy({to_, wire_}, {to_}, tasks_.needed, stream);
  }
  transfer_.reset();
  buffer_.reset();
  state_->bytes -= std::exchange(buffer_bytes_, 0);
}

class PackedExchanger final : public RowExchanger {
 public:
  PackedExchanger(Communicator& group, std::shared_ptr<RowMemory> memory)
      : group_(group), state_(std::make_shared<MoveState>()) {
    state_->memory = std::move(memory);
  }
  void prepare(const RowTable& table, const MoveUse& /*use*/,
               const EveryonesRows& /*everyone*/) override {
    state_->memory->tasks_of(table, nullptr);
  }
  std::unique_ptr<PendingRows> start(const RowTable& table, const RowMove& move,
                                     void* stream) override {
    MAGI_CHECK(move.from.size() == move.to.size() && move.from.size() <= kMaxTensors);
    return std::make_unique<PackedRows>(state_, group_, table, move, stream);
  }
  bool is_capturable() const override { return group_.is_capturable(); }
  std::int64_t largest_bytes() const override { return state_->largest_bytes; }

 private:
  Communicator& group_;
  std::shared_ptr<MoveState> state_;
};

}  // namespace

std::unique_ptr<RowExchanger> make_row_exchanger(Communicator& communicator, std::int32_t device,
                                                 const DeviceAllocator& allocator,
                                                 const ExchangerUse& use) {
  if (auto own = communicator.make_exchanger(device, allocator, use)) return own;
  if (device != kCpuDevice && communicator.num_ranks() > 1 && !communicator.has_device_exchange()) {
    throw invalid("communicator", std::string("a ") + communicator.backend() + " group",
                  "for tensors on a GPU a group that moves device memory");
  }
  auto packed = std::make_unique<PackedExchanger>(communicator, make_row_memory(device, allocator));
  if (use.has_ways_by_node) return make_hop_exchanger(communicator, std::move(packed));
  return packed;
}

}  // namespace magi::comm
