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

/// One rank's part of each check; all ranks of the group call it with the same case.
void check_cast(Communicator& group, const ExchangeCase& test, const TestMemory& memory);
/// Partials of `wire` added to tensors of `sum`, bit for bit in rank order.
void check_sum(Communicator& group, const ExchangeCase& test, const TestMemory& memory, DType wire,
               DType sum);
/// Own rows that a last sum is given: all, or those that something is added to.
enum class OwnRows : std::uint8_t { All, Summed };
/// Sums whose last exchange rounds them into other tensors, in device memory.
void check_rounded_sum(Communicator& group, const ExchangeCase& test, const TestMemory& memory,
                       DType rounded_type, OwnRows own_rows);
/// (out, lse) partials merged as float64 does it, rows without keys among them.
void check_merge(Communicator& group, const ExchangeCase& test, const TestMemory& memory,
                 DType wire, DType out);
/// Casts and sums under way together, awaited in another order; sums apply in start order.
void check_order(Communicator& group, const TestMemory& memory);
/// Tensors whose rows are the wire's rows: received and sent where they lie.
void check_shared_rows(Communicator& group, const TestMemory& memory);
void check_maximum(Communicator& group, const TestMemory& memory, DType dtype);

}  // namespace magi::testing
