// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "comm/nvlink/peer_exchanger.hpp"
#include "comm/rows/row_memory.hpp"
#include "magi/runtime.hpp"
#include "runtime/prepared_attends.hpp"

namespace magi {

inline constexpr std::int64_t kLentAlignment = 256;  ///< of what a call is lent

/// The state that a rank keeps between calls for tensors in the host's memory or in that of one
/// GPU: who attends and what was prepared for that, who exchanges rows, and what a call needs for
/// itself. On a GPU everything is enqueued after the work of the call's stream, and nothing waits.
class StepMemory {
 public:
  /// All arguments outlive it. Throws InvalidArgument where there is no such GPU, the group moves
  /// no device memory, or the options or the plan's head dims do not suit.
  StepMemory(const RankSteps& steps, const AttentionOptions& options, Communicator& communicator,
             std::int32_t device);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// Begins a call, after the one before; end takes back what it was lent, also after an error.
  void begin(Pass pass, void* stream);
  void end() noexcept;
  /// A row-major tensor that lives until `end`; its contents are undefined.
  /// `casts`: of rows that casts of this table bring, which lie where peers write them, if they do.
  TensorView lend(DType dtype, std::initializer_list<std::int64_t> shape,
                  const comm::RowTable* casts = nullptr);

  /// Lets what is lent up to `end_turn` lie in memory that stages take in turn: from the start of
  /// place `turn`, which holds `size_bytes()` from its first use in a call on.
  void begin_turn(std::size_t turn, const std::function<std::size_t()>& size_bytes);
  void end_turn() { turn_ = nullptr; }

  comm::RowExchanger& exchanger() { return *exchanger_; }
  /// The exchanger of ranks that write each other's memory; null where they do not.
  comm::PeerExchanger* peers() const { return peers_; }
  /// Whether no pass of the plan has begun here yet.
  bool is_first_pass() const { return is_first_pass_; }
  void set_passed() { is_first_pass_ = false; }
  bool are_partials_rounded() const { return are_partials_rounded_; }
  AttendCache& attends() { return attends_; }
  /// The bytes that the largest call was lent, and what is held for attends.
  std::size_t size_bytes() const {
    return std::max(largest_bytes_[0], largest_bytes_[1]) + attends_.size_bytes();
  }

 private:
  struct Piece {
    std::shared_ptr<std::byte> data;
    std::size_t size_bytes = 0;
  };
  std::byte* lend_bytes(std::size_t size_bytes);

  std::int32_t device_;
  DeviceAllocator lender_;  ///< gives the exchanger memory of the call
  std::unique_ptr<comm::RowExchanger> exchanger_;
  comm::PeerExchanger* peers_;  ///< exchanger_, or null
  AttendCache attends_;
  std::shared_ptr<comm::RowMemory> row_memory_;
  bool is_first_pass_ = true;
  bool are_partials_rounded_;  ///< see AttentionOptions
  void* stream_ = nullptr;
  /// One as large as the pass's largest call before, and more where that is not enough.
  std::vector<Piece> pieces_;
  std::size_t used_bytes_ = 0;     ///< of the last piece
  std::vector<std::byte*> turns_;  ///< memory of this call, by turn; null: not lent yet
  std::byte* turn_ = nullptr;      ///< what is lent next, in a turn
  std::size_t lent_bytes_ = 0;     ///< since begin
  std::size_t pass_ = 0;
  std::array<std::size_t, 2> largest_bytes_{};  ///< by pass
};

}  // namespace magi
