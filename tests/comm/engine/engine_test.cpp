// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "comm/engine/ring_group.hpp"
#include "comm/ranks.hpp"

// Packets that a rank does not expect are reported, and none gives wrong bytes in silence. Rank 0
// of two is a group; the test itself writes the packets of rank 1.
namespace magi::comm {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBytes = 3000;     // two packets of the first ring
constexpr std::uint32_t kPayload = 1984;  // of its slots
constexpr std::uint32_t kLast = kBytes - kPayload;

class Packets : public ::testing::Test {
 protected:
  /// Writes the packet that begins with byte `offset` of the first exchange, after a change.
  void send(std::uint64_t offset, const std::function<void(PacketHeader&)>& change = {}) {
    PacketHeader header{.sequence = 1,
                        .plan_digest = 7,
                        .total_bytes = kBytes,
                        .offset = offset,
                        .stage = 3,
                        .payload_bytes = offset == 0 ? kPayload : kLast};
    if (change) change(header);
    std::memset(outbox_.payload(), 5, header.payload_bytes);
    outbox_.publish(header);
  }
  /// Rank 0 receives the bytes of rank 1.
  void receive_sync() {
    const std::int64_t none[] = {0, 0}, sizes[] = {0, kBytes};
    group_
        ->start_bytes({.receive = received_.data(),
                       .send_bytes = none,
                       .receive_bytes = sizes,
                       .tag = {.plan_digest = 7, .stage = 3}})
        ->wait_sync();
  }
  void expect_failure(CommFailure failure, const std::string& text) {
    const CommError error = testing::catch_comm_error([&] { receive_sync(); });
    EXPECT_EQ(error.failure(), failure) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
  }

  std::shared_ptr<SharedRegion> region_ = make_group_region(2, 0);
  ControlLayout layout_{2};
  Outbox outbox_{region_, region_->map(0, layout_.num_bytes()), layout_, 1, 0};
  std::unique_ptr<Communicator> group_ = make_ring_group(
      std::make_shared<Engine>(0, 2, region_, EngineOptions{}, HasEnded{}), "threads");
  std::vector<char> received_ = std::vector<char>(kBytes, 0);
};

TEST_F(Packets, ThoseOfTheExchangeAreItsBytes) {
  send(0);
  send(kPayload);
  receive_sync();
  EXPECT_EQ(received_, std::vector<char>(kBytes, 5));
}

TEST_F(Packets, ALostOneIsReported) {
  send(kPayload);
  expect_failure(CommFailure::System,
                 "broken data from rank 1; expected byte 0 of 3000, seen bytes 1984 to 3000");
}

TEST_F(Packets, ATruncatedOneIsReported) {
  send(0, [](auto& header) { header.payload_bytes /= 2; });
  expect_failure(CommFailure::System, "broken data from rank 1");
}

TEST_F(Packets, ALostTransferIsReported) {
  send(0, [](auto& header) { header.sequence = 2; });
  expect_failure(CommFailure::System, "but has from it stage 3 of another exchange 2");
}

TEST_F(Packets, AnotherCallUnderTheSameNumberIsAMismatch) {
  send(0, [](auto& header) { header.plan_digest = 8; });
  expect_failure(CommFailure::PlanMismatch, "plan 0x0000000000000008");
}

TEST_F(Packets, OtherSizesAreAMismatch) {
  send(0, [](auto& header) { header.total_bytes = 2000; });
  expect_failure(CommFailure::PlanMismatch, "rank 1 sends 2000 bytes; expected 3000");
}

/// Bytes of a caller's mean what they mean: their content need not be types.
TEST_F(Packets, OtherContentIsToldAsTypesOrAsANumber) {
  send(0, [](auto& header) { header.content = 0x2; });
  expect_failure(CommFailure::PlanMismatch,
                 "sends rows of data types float32; expected 0x0000000000000000");
}

TEST_F(Packets, ARingOutsideTheMemoryIsRefused) {
  const RingPlace place{.offset = std::uint64_t{1} << 40, .slot_bytes = 4096, .num_slots = 4};
  std::memcpy(outbox_.payload(), &place, sizeof(place));
  outbox_.publish({.payload_bytes = sizeof(place), .moves_ring = 1});
  expect_failure(CommFailure::System, "a peer's ring lies outside the shared memory");
}

}  // namespace
}  // namespace magi::comm
