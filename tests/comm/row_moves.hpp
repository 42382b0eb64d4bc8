// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/exchange_case.hpp"
#include "comm/rows/row_exchanger.hpp"

// Moves of rows over a group, in the memory under test, against what they must give.
namespace magi::testing {

/// The memory that tensors of a move lie in; without functions: host memory.
struct TestMemory {
  std::int32_t device = kCpuDevice;
  void* stream = nullptr;
  /// A copy of the bytes there.
  std::function<std::shared_ptr<void>(const std::vector<std::byte>&)> place = {};
  /// The bytes that are there once `stream` is done.
  std::function<void(const void*, std::vector<std::byte>&)> fetch_sync = {};
};

/// A tensor of the memory, and its bytes in host memory.
class Twin {
 public:
  Twin(const TestMemory& memory, HostTensor given);
  /// In the memory under test.
  const TensorView& view() const { return view_; }
  /// In host memory, as it is now there.
  const TensorView& fetched();

 private:
  const TestMemory& memory_;
  HostTensor host_;
  std::shared_ptr<void> placed_;
  TensorView view_;
};

/// A check of moves: one rank's part, which all ranks of a group run.
struct RowCheck {
  const char* name;
  void (*run)(Communicator& group, const TestMemory& memory);
  std::vector<std::int32_t> group_sizes = {4};  ///< that it is made for
};
/// All checks.
std::vector<RowCheck> row_checks();

void check_cast(Communicator& group, const TestMemory& memory);
/// Casts and sums under way together, awaited in another order; sums apply in start order.
void check_order(Communicator& group, const TestMemory& memory);
/// Tensors whose rows are the wire's rows: received and sent where they lie.
void check_shared_rows(Communicator& group, const TestMemory& memory);

}  // namespace magi::testing
