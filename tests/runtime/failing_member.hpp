// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <string>

#include "comm/rows/row_exchanger.hpp"
#include "magi/comm.hpp"

namespace magi::testing {

/// A member of a group whose casts, reduces and exchangers for a GPU fail for want of memory.
class FailingMember final : public Communicator {
 public:
  explicit FailingMember(Communicator& member) : member_(member) {}
  std::int32_t rank() const override { return member_.rank(); }
  std::int32_t num_ranks() const override { return member_.num_ranks(); }
  const char* backend() const override { return "failing"; }
  bool compares_plans() const override { return true; }
  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    return member_.allgather_sync(bytes);
  }
  void abort(const std::string& reason) noexcept override { member_.abort(reason); }
  void close_sync() override { member_.close_sync(); }
  std::unique_ptr<comm::RowExchanger> make_exchanger(std::int32_t device, const DeviceAllocator&,
                                                     const comm::ExchangerUse&) override {
    if (device == kCpuDevice) return nullptr;
    throw std::bad_alloc();
  }

 protected:
  std::unique_ptr<PendingExchange> start_checked(const ByteExchange&, void*) override {
    throw std::bad_alloc();
  }

 private:
  Communicator& member_;
};

}  // namespace magi::testing
