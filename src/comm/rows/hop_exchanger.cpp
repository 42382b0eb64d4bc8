// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "comm/rows/abort_group.hpp"
#include "comm/rows/row_exchanger.hpp"

namespace magi::comm {
namespace {

class HopRows;

/// The state that the moves of one exchanger share; they may outlive it.
struct HopState {
  HopState(Communicator& communicator, std::unique_ptr<RowExchanger> given)
      : group(communicator), straight(std::move(given)) {}

  Communicator& group;
  std::unique_ptr<RowExchanger> straight;
  HopRows* last = nullptr;  ///< the move whose second leg has not begun, if there is one
};

/// A move by node. A cast goes to the first readers, then on inside their nodes; a reduce comes
/// together inside the nodes, in the first readers' partials, then goes to the owners.
class HopRows final : public PendingRows {
 public:
  HopRows(std::shared_ptr<HopState> state, const NodeTables& tables, const RowMove& move,
          void* stream)
      : state_(std::move(state)),
        tables_(tables),
        move_(move),
        from_(move.from.begin(), move.from.end()),
        to_(move.to.begin(), move.to.end()),
        is_cast_(move.kind == ExchangeKind::Cast) {
    first_ = is_cast_ ? start(tables_.first, from_, to_, stream)
                      : start(tables_.onward, from_, from_, stream);
    state_->last = this;
  }
  ~HopRows() override {
    if (state_->last != this) return;
    state_->last = nullptr;
    // The others wait for a leg that this rank does not begin.
    abort_group(state_->group, "rows that go by node were given up on half their way");
  }

  void begin_second_leg(void* stream) {
    if (state_->last != this) return;
    first_->await(stream);
    state_->last = nullptr;
    second_ = is_cast_ ? start(tables_.onward, to_, to_, stream)
                       : start(tables_.first, from_, to_, stream);
  }
  void await(void* stream) override {
    begin_second_leg(stream);
    second_->await(stream);
  }

 private:
  std::unique_ptr<PendingRows> start(const RowTable& table, std::span<const TensorView> from,
                                     std::span<const TensorView> to, void* stream) {
    return state_->straight->start(
        table, {.kind = move_.kind, .from = from, .to = to, .tag = move_.tag}, stream);
  }

  std::shared_ptr<HopState> state_;
  const NodeTables& tables_;
  RowMove move_;
  std::vector<TensorView> from_, to_;
  bool is_cast_;
  std::unique_ptr<PendingRows> first_, second_;
};

class HopExchanger final : public RowExchanger {
 public:
  HopExchanger(Communicator& group, std::unique_ptr<RowExchanger> straight)
      : state_(std::make_shared<HopState>(group, std::move(straight))) {}

  void prepare(const RowTable& table, const MoveUse& use, const EveryonesRows& everyone) override {
    if (table.by_node == nullptr) return state_->straight->prepare(table, use, everyone);
    state_->straight->prepare(table.by_node->first, use, everyone);
    state_->straight->prepare(table.by_node->onward, use, everyone);
  }
  std::unique_ptr<PendingRows> start(const RowTable& table, const RowMove& move,
                                     void* stream) override {
    // All ranks start moves in one order, but await them when they like. So that legs have one
    // order too, the second one of a move begins in front of the next move, at the latest.
    if (state_->last != nullptr) state_->last->begin_second_leg(stream);
    if (table.by_node == nullptr) return state_->straight->start(table, move, stream);
    return std::make_unique<HopRows>(state_, *table.by_node, move, stream);
  }
  bool is_capturable() const override { return state_->straight->is_capturable(); }
  std::int64_t largest_bytes() const override { return state_->straight->largest_bytes(); }

 private:
  std::shared_ptr<HopState> state_;
};

}  // namespace

std::unique_ptr<RowExchanger> make_hop_exchanger(Communicator& communicator,
                                                 std::unique_ptr<RowExchanger> straight) {
  return std::make_unique<HopExchanger>(communicator, std::move(straight));
}

}  // namespace magi::comm
