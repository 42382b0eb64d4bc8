// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/rows/row_memory.hpp"
#include "magi/comm.hpp"
#include "ranks/rank_device.hpp"

namespace magi::cli {

/// Rows under way, or nothing where the link is muted.
class Transfer {
 public:
  Transfer(std::unique_ptr<comm::PendingRows> rows, void* stream)
      : rows_(std::move(rows)), stream_(stream) {}
  /// Orders what the stream is given later behind it.
  void await() {
    if (rows_ != nullptr) rows_->await(stream_);
    rows_.reset();
  }

 private:
  std::unique_ptr<comm::PendingRows> rows_;
  void* stream_;
};

/// How the baselines move rows between the ranks of a group, over its own transport. A muted link
/// moves nothing, which times what is left without communication; all ranks mute theirs together.
class Link {
 public:
  /// `group` and `device` outlive it.
  Link(Communicator& group, RankDevice& device);

  std::int32_t rank() const { return group_.rank(); }
  std::int32_t num_ranks() const { return group_.num_ranks(); }
  /// That left this rank so far.
  std::int64_t bytes_sent() const;
  void mute(bool is_muted) { is_muted_ = is_muted; }

  /// Cast: owned rows of `from` go to needed rows of `to`. Sum: needed rows of `from` are added to
  /// owned rows of `to`, when they are awaited. Tensors live until then.
  Transfer move(const comm::RowTable& table, ExchangeKind kind, std::span<const TensorView> from,
                std::span<const TensorView> to);
  /// Equal parts of `sent`, one for each of `members` (ascending, this rank among them), go to
  /// these; `received` has theirs in the same order.
  void all_to_all(const std::vector<std::int32_t>& members, const TensorView& sent,
                  const TensorView& received);
  /// Copies rows between tensors and what they make on the wire, one after the other.
  void pack(const comm::RowTable& table, std::span<const TensorView> tensors, std::byte* wire);
  void unpack(const comm::RowTable& table, std::byte* wire, std::span<const TensorView> tensors);

 private:
  Communicator& group_;
  RankDevice& device_;
  std::unique_ptr<comm::RowExchanger> rows_;
  std::shared_ptr<comm::RowMemory> memory_;
  bool is_muted_ = false;
};

}  // namespace magi::cli
