// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "base/half.hpp"
#include "comm/nvlink/peer_kernels.hpp"
#include "comm/nvlink/peer_rounding.hpp"
#include "comm/rows/row_layout.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "support/gpu/gpu_test.hpp"

// Waits of passes that fail, kernel by kernel: two ranks, of which the test enqueues what it likes.
namespace magi::test {
namespace {

using comm::PeerControl;
using comm::PeerMailbox;
using comm::PeerView;
using comm::PeerWait;

constexpr std::int64_t kAreaBytes = 4096;
/// Where other programs use the GPU, each has it for a while: two ranks may be 50 ms apart.
constexpr std::uint64_t kDeadlineNs = 500'000'000;

struct HostMailbox {
  HostMailbox() {
    void* data = nullptr;
    cuda_check(cudaHostAlloc(&data, sizeof(PeerMailbox), cudaHostAllocPortable), "cudaHostAlloc");
    box = static_cast<PeerMailbox*>(data);
    std::memset(static_cast<void*>(box), 0, sizeof(PeerMailbox));
  }
  ~HostMailbox() { static_cast<void>(cudaFreeHost(box)); }
  HostMailbox(const HostMailbox&) = delete;
  HostMailbox& operator=(const HostMailbox&) = delete;
  PeerMailbox* box = nullptr;
};

DeviceBuffer zeroed(std::size_t size_bytes) {
  DeviceBuffer buffer(size_bytes);
  cuda_check(cudaMemset(buffer.data(), 0, size_bytes), "cudaMemset");
  return buffer;
}

/// Two ranks on one GPU, each with a stream, an area for the pass, and words.
class PeerPair {
 public:
  PeerView view(std::size_t rank) const {
    PeerView view{.control = {},
                  .state = static_cast<comm::PassState*>(state_[rank].data()),
                  .mailbox = mailbox_[rank].box,
                  .rank = static_cast<std::int32_t>(rank),
                  .num_ranks = 2,
                  .deadline_ns = kDeadlineNs};
    for (std::size_t r = 0; r < 2; ++r) {
      view.control[r] = static_cast<PeerControl*>(control_[r].data());
    }
    return view;
  }
  cudaStream_t stream(std::size_t rank) const { return stream_[rank].handle(); }
  std::byte* area(std::size_t rank) const { return static_cast<std::byte*>(area_[rank].data()); }

  void push(std::size_t rank, const comm::RowPush& push,
            const std::optional<comm::PassBegin>& begin = {}) const {
    comm::launch_push(view(rank), push, {.own = 64}, begin, nullptr, stream(rank));
  }
  /// A push that awaits what `arrival` says as well.
  void push_and_await(std::size_t rank, const comm::RowPush& push, const comm::RowArrival& arrival,
                      const std::optional<comm::PassBegin>& begin = {}) const {
    comm::launch_push(view(rank), push, {.own = 64}, begin, &arrival, stream(rank));
  }
  void begin(std::size_t rank, comm::PassBegin begin) const {
    comm::launch_begin_pass(view(rank), begin, stream(rank));
  }
  /// A wait for rows of the other rank, or for none.
  comm::RowArrival arrival(std::size_t rank, bool is_awaited) const {
    comm::RowArrival arrival{.sources = is_awaited ? std::uint64_t{2} >> rank : 0,
                             .data = area(rank),
                             .size_bytes = kAreaBytes,
                             .area_bytes = kAreaBytes};
    for (std::size_t r = 0; r < 2; ++r) arrival.areas[r] = area(r);
    return arrival;
  }
  void wait_sync() const {
    for (const Stream& stream : stream_) stream.wait_sync();
  }
  const PeerMailbox& mailbox(std::size_t rank) const { return *mailbox_[rank].box; }
  std::vector<std::uint16_t> rows(std::size_t rank) const {
    return to_host_sync<std::uint16_t>(area(rank), kAreaBytes / 2);
  }

 private:
  std::array<DeviceBuffer, 2> control_{zeroed(sizeof(PeerControl)), zeroed(sizeof(PeerControl))};
  std::array<DeviceBuffer, 2> state_{zeroed(sizeof(comm::PassState)),
                                     zeroed(sizeof(comm::PassState))};
  std::array<DeviceBuffer, 2> area_{zeroed(kAreaBytes), zeroed(kAreaBytes)};
  std::array<HostMailbox, 2> mailbox_;
  std::array<Stream, 2> stream_;
};

/// A row that goes to the first place of another rank's area.
struct Row {
  static constexpr int kElements = 64;
  static constexpr std::uint16_t kValue = 5;

  comm::RowPush push_to(const PeerPair& pair, std::int32_t peer) const {
    constexpr std::int32_t kBytes = 2 * kElements;
    comm::RowPush push{.tasks = static_cast<const comm::PushTask*>(tasks.data()) + peer,
                       .num_remote = 1,
                       .num_tensors = 1};
    push.to[0] = {.row_stride = kBytes, .row_units = kBytes, .head_units = kBytes};
    push.from[0] = push.to[0];
    push.from[0].data = static_cast<std::byte*>(values.data());
    for (std::size_t r = 0; r < 2; ++r) push.region[r] = pair.area(r);
    return push;
  }

  /// The same from one rank to itself, so often that many blocks do it.
  comm::RowPush push_home(const PeerPair& pair) const {
    comm::RowPush push = push_to(pair, 1);
    push.tasks = static_cast<const comm::PushTask*>(home.data());
    push.num_own = kManyTasks;
    return push;
  }
  /// An area that the row lies in.
  static std::vector<std::uint16_t> alone() {
    std::vector<std::uint16_t> area(kAreaBytes / 2, 0);
    std::fill_n(area.begin(), kElements, kValue);
    return area;
  }

  static constexpr int kManyTasks = 1024;
  DeviceBuffer values =
      to_device_sync<std::uint16_t>(std::vector<std::uint16_t>(kElements, kValue));
  DeviceBuffer tasks = to_device_sync<comm::PushTask>(
      std::vector<comm::PushTask>{{.num_rows = 1, .peer = 0}, {.num_rows = 1, .peer = 1}});
  DeviceBuffer home = to_device_sync<comm::PushTask>(many_tasks());

 private:
  /// To rank 1, then all to rank 0.
  static std::vector<comm::PushTask> many_tasks() {
    std::vector<comm::PushTask> tasks(1 + kManyTasks, {.num_rows = 1, .peer = 0});
    tasks.front().peer = 1;
    return tasks;
  }
};

using PeerKernels = GpuTest;

TEST_F(PeerKernels, FirstPassOfAPlanComparesDigests) {
  for (const std::uint64_t other : {7, 8}) {
    const PeerPair pair;
    pair.begin(0, {.digest = 7, .is_compared = true});
    pair.begin(1, {.digest = other, .is_compared = true});
    pair.wait_sync();
    for (const std::size_t rank : {0, 1}) {
      const PeerMailbox& box = pair.mailbox(rank);
      EXPECT_EQ(box.failed, other == 7 ? PeerWait::None : PeerWait::OtherPlan);
      if (other == 7) continue;
      EXPECT_EQ(box.peer, rank == 0 ? 1 : 0);
      EXPECT_EQ(box.digest, rank == 0 ? 7u : other);
      EXPECT_EQ(box.peer_digest, rank == 0 ? other : 7u);
    }
  }
}

TEST_F(PeerKernels, RowsOfNoOneAreNotAwaitedButDigestsOfAllAreCompared) {
  const PeerPair pair;
  pair.begin(1, {.digest = 8});
  pair.wait_sync();
  pair.begin(0, {.digest = 7});
  comm::RowArrival arrival = pair.arrival(0, false);
  arrival.sources = 1;  // rows of its own, which are there
  const std::uint64_t there = 1;
  cuda_check(cudaMemcpy(&pair.view(0).control[0]->arrived[0][0][0], &there, sizeof(there),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
  comm::launch_await(pair.view(0), arrival, pair.stream(0));
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::OtherPlan);
  EXPECT_EQ(pair.rows(0), std::vector<std::uint16_t>(kAreaBytes / 2, 0xffff));
}

TEST_F(PeerKernels, OrderOfPassesIsComparedWithTheCredit) {
  const PeerPair pair;
  // Rank 1 replays the second call first. Nobody sends anything.
  for (const std::uint64_t digest : {11, 12}) {
    pair.begin(0, {.area = static_cast<std::int32_t>(digest % 2), .digest = digest});
  }
  for (const std::uint64_t digest : {12, 11}) {
    pair.begin(1, {.area = static_cast<std::int32_t>(digest % 2), .digest = digest});
  }
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::None);
  pair.begin(0, {.area = 1, .digest = 13});
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::OtherPlan);
  EXPECT_EQ(pair.mailbox(0).digest, 11u);
  EXPECT_EQ(pair.mailbox(0).peer_digest, 12u);
}

/// As tables that tell a kernel where to store rows.
struct Record {
  std::int64_t row = 0;
  std::byte* first = nullptr;
  std::byte* second = nullptr;
};

TEST_F(PeerKernels, WithoutCreditNothingIsStoredAtPeers) {
  const PeerPair pair;
  // Rank 1 begins one pass and no more, so that its area may be in use still.
  pair.begin(1, {.digest = 7});
  pair.begin(0, {.digest = 7});
  pair.begin(0, {.digest = 7});  // to the same area
  const std::vector<Record> records{{0, pair.area(1), pair.area(1) + 256},
                                    {1, pair.area(0) + 512, nullptr}};
  const DeviceBuffer table = to_device_sync<Record>(records);
  const Row row;
  pair.push(0, row.push_to(pair, 1));
  comm::RowArrival arrival = pair.arrival(0, true);
  arrival.addresses = {.records = static_cast<std::byte*>(table.data()),
                       .num_records = 2,
                       .record_bytes = sizeof(Record),
                       .offsets = {offsetof(Record, first), offsetof(Record, second)}};
  comm::launch_await(pair.view(0), arrival, pair.stream(0));
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::Credit);
  EXPECT_EQ(pair.mailbox(0).peer, 1);
  EXPECT_EQ(pair.rows(0), std::vector<std::uint16_t>(kAreaBytes / 2, 0xffff));
  EXPECT_EQ(pair.rows(1), std::vector<std::uint16_t>(kAreaBytes / 2, 0));
  const auto places = to_host_sync<Record>(table.data(), 2);
  EXPECT_EQ(places[0].first, pair.area(0));
  EXPECT_EQ(places[0].second, pair.area(0) + 256);
  EXPECT_EQ(places[1].first, pair.area(0) + 512);
  EXPECT_EQ(places[1].second, nullptr);
}

TEST_F(PeerKernels, OfWaitsThatFailTogetherOneIsReported) {
  const PeerPair pair;
  pair.begin(0, {.digest = 7});
  pair.wait_sync();
  for (const std::size_t stream : {0, 1}) {
    comm::RowArrival arrival = pair.arrival(0, true);
    arrival.move = 3 + static_cast<std::int32_t>(stream);
    comm::launch_await(pair.view(0), arrival, pair.stream(stream));
  }
  pair.wait_sync();
  const PeerMailbox& box = pair.mailbox(0);
  EXPECT_EQ(box.failed, PeerWait::Rows);
  EXPECT_EQ(box.peer, 1);
  EXPECT_THAT(box.move, ::testing::AnyOf(3, 4));
  EXPECT_EQ(box.expected, 1u);
  EXPECT_EQ(box.is_closed, 1);
  const auto state = to_host_sync<comm::PassState>(pair.view(0).state, 1).front();
  EXPECT_EQ(state.is_reported, 1u);
  EXPECT_EQ(state.is_noted != 0, box.stopped != PeerWait::None);
}

TEST_F(PeerKernels, RowsThatComeLeaveAddressesAsTheyAre) {
  const PeerPair pair;
  for (const std::size_t rank : {0, 1}) pair.begin(rank, {.digest = 7, .is_compared = true});
  const Row row;
  pair.push(1, row.push_to(pair, 0));
  const std::vector<Record> records{{0, pair.area(1), pair.area(1) + 256}};
  const DeviceBuffer table = to_device_sync<Record>(records);
  comm::RowArrival arrival = pair.arrival(0, true);
  arrival.addresses = {.records = static_cast<std::byte*>(table.data()),
                       .num_records = 1,
                       .record_bytes = sizeof(Record),
                       .offsets = {offsetof(Record, first), offsetof(Record, second)}};
  comm::launch_await(pair.view(0), arrival, pair.stream(0));
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::None);
  EXPECT_EQ(to_host_sync<Record>(table.data(), 1)[0].first, pair.area(1));
  EXPECT_EQ(pair.rows(0), Row::alone());
}

TEST_F(PeerKernels, PushesBeginTheirPasses) {
  for (const bool is_compared : {false, true}) {
    for (const bool has_many_blocks : {false, true}) {
      const PeerPair pair;
      const Row row;
      for (std::uint64_t pass = 1; pass <= 6; ++pass) {
        const comm::PassBegin begin{.area = static_cast<std::int32_t>(pass % 2),
                                    .digest = 7 + pass,
                                    .is_compared = is_compared};
        pair.push(0, has_many_blocks ? row.push_home(pair) : row.push_to(pair, 1), begin);
        pair.push(1, row.push_to(pair, 0), begin);
        for (const std::size_t rank : {0, 1}) {
          comm::launch_await(pair.view(rank), pair.arrival(rank, true), pair.stream(rank));
        }
      }
      pair.wait_sync();
      for (const std::size_t rank : {0, 1}) {
        EXPECT_EQ(pair.mailbox(rank).failed, PeerWait::None);
        EXPECT_EQ(pair.rows(rank), Row::alone());
        const auto state = to_host_sync<comm::PassState>(pair.view(rank).state, 1).front();
        EXPECT_EQ(state.pass, 6u);
        EXPECT_EQ(state.last_use[0], 6u);
        EXPECT_EQ(state.last_use[1], 5u);
        EXPECT_EQ(state.begun_blocks, 0u);
      }
    }
  }
}

TEST_F(PeerKernels, APushThatBeginsItsPassWaitsForCredit) {
  const PeerPair pair;
  const Row row;
  pair.begin(1, {.digest = 7});
  pair.begin(0, {.digest = 7});
  pair.push(0, row.push_to(pair, 1), comm::PassBegin{.digest = 7});  // to the same area
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::Credit);
  EXPECT_EQ(pair.mailbox(0).expected, 2u);
  EXPECT_EQ(pair.rows(1), std::vector<std::uint16_t>(kAreaBytes / 2, 0));
  const auto words = to_host_sync<PeerControl>(pair.view(0).control[1], 1).front();
  EXPECT_EQ(words.begun[0], 2u);
  EXPECT_EQ(words.arrived[0][0][0], 0u);
}

TEST_F(PeerKernels, APushThatBeginsItsPassComparesCallsWithTheCredit) {
  const PeerPair pair;
  const Row row;
  for (const std::uint64_t digest : {11, 12}) {
    pair.begin(0, {.area = static_cast<std::int32_t>(digest % 2), .digest = digest});
  }
  for (const std::uint64_t digest : {12, 11}) {
    pair.begin(1, {.area = static_cast<std::int32_t>(digest % 2), .digest = digest});
  }
  pair.wait_sync();
  pair.push(0, row.push_to(pair, 1), comm::PassBegin{.area = 1, .digest = 13});
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::OtherPlan);
  EXPECT_EQ(pair.rows(1), std::vector<std::uint16_t>(kAreaBytes / 2, 0));
}

TEST_F(PeerKernels, WhoAwaitsTellsOfPartialsThatAreWritten) {
  const PeerPair pair;
  for (const std::size_t rank : {0, 1}) pair.begin(rank, {.digest = 7});
  comm::RowArrival none = pair.arrival(1, false);  // rank 0 has no partials for rank 1
  none.is_publishing = true;
  comm::launch_await(pair.view(1), none, pair.stream(1));
  comm::RowArrival arrival = pair.arrival(0, true);
  arrival.is_publishing = true;
  comm::launch_await(pair.view(0), arrival, pair.stream(0));
  pair.wait_sync();
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(pair.mailbox(rank).failed, PeerWait::None);
    const auto words = to_host_sync<PeerControl>(pair.view(0).control[rank], 1).front();
    EXPECT_EQ(words.arrived[0][0][1 - rank], 1u);
  }
  EXPECT_EQ(pair.rows(0), std::vector<std::uint16_t>(kAreaBytes / 2, 0));
}

TEST_F(PeerKernels, WhoHasFailedTellsOfNoPartials) {
  const PeerPair pair;
  pair.begin(0, {.digest = 7});
  comm::launch_await(pair.view(0), pair.arrival(0, true), pair.stream(0));  // nothing comes
  comm::RowArrival arrival = pair.arrival(0, true);
  arrival.move = 1;
  arrival.is_publishing = true;
  comm::launch_await(pair.view(0), arrival, pair.stream(0));
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::Rows);
  const auto words = to_host_sync<PeerControl>(pair.view(0).control[1], 1).front();
  EXPECT_EQ(words.arrived[1][0][0], 0u);
}

TEST_F(PeerKernels, PushesAwaitEachOther) {
  for (const bool is_compared : {false, true}) {
    const PeerPair pair;
    const Row row;
    for (std::uint64_t pass = 1; pass <= 6; ++pass) {
      const comm::PassBegin begin{.area = static_cast<std::int32_t>(pass % 2),
                                  .digest = 7 + pass,
                                  .is_compared = is_compared};
      for (const std::size_t rank : {0, 1}) {
        const auto peer = static_cast<std::int32_t>(1 - rank);
        pair.push_and_await(rank, row.push_to(pair, peer), pair.arrival(rank, true), begin);
      }
    }
    pair.wait_sync();
    for (const std::size_t rank : {0, 1}) {
      EXPECT_EQ(pair.mailbox(rank).failed, PeerWait::None);
      EXPECT_EQ(pair.rows(rank), Row::alone());
      const auto state = to_host_sync<comm::PassState>(pair.view(rank).state, 1).front();
      EXPECT_EQ(state.pass, 6u);
      EXPECT_EQ(state.begun_blocks, 0u);
    }
  }
}

TEST_F(PeerKernels, APushThatAwaitsInVainLeavesNaNAndAddressesOfItsOwn) {
  for (const bool has_credit : {true, false}) {
    const PeerPair pair;
    const Row row;
    pair.begin(1, {.digest = 7});
    if (!has_credit) pair.begin(0, {.digest = 7});
    const std::vector<Record> records{{0, pair.area(1), pair.area(1) + 256}};
    const DeviceBuffer table = to_device_sync<Record>(records);
    comm::RowArrival arrival = pair.arrival(0, true);
    arrival.addresses = {.records = static_cast<std::byte*>(table.data()),
                         .num_records = 1,
                         .record_bytes = sizeof(Record),
                         .offsets = {offsetof(Record, first), offsetof(Record, second)}};
    pair.push_and_await(0, row.push_to(pair, 1), arrival, comm::PassBegin{.digest = 7});
    pair.wait_sync();
    EXPECT_EQ(pair.mailbox(0).failed, has_credit ? PeerWait::Rows : PeerWait::Credit);
    EXPECT_EQ(pair.rows(0), std::vector<std::uint16_t>(kAreaBytes / 2, 0xffff));
    EXPECT_EQ(pair.rows(1),
              has_credit ? Row::alone() : std::vector<std::uint16_t>(kAreaBytes / 2, 0));
    EXPECT_EQ(to_host_sync<Record>(table.data(), 1)[0].first, pair.area(0));
  }
}

TEST_F(PeerKernels, APushThatAwaitsComparesTheCall) {
  const PeerPair pair;
  const Row row;
  pair.push(1, row.push_to(pair, 0), comm::PassBegin{.digest = 8});
  pair.wait_sync();
  pair.push_and_await(0, row.push_to(pair, 1), pair.arrival(0, true), comm::PassBegin{.digest = 7});
  pair.wait_sync();
  EXPECT_EQ(pair.mailbox(0).failed, PeerWait::OtherPlan);
  EXPECT_EQ(pair.rows(0), std::vector<std::uint16_t>(kAreaBytes / 2, 0xffff));
}

/// Sums of two rows, of which the first has a partial that comes from the peer.
struct TwoSums {
  static constexpr int kElements = 8;

  comm::Partials partials(const PeerPair& pair) {
    return {.to = {&to, 1},
            .wire_types = comm::wire_types_of({&to, 1}, {&to, 1}),
            .wire = pair.area(0),
            .tasks = {.sums = {static_cast<const comm::SumTask*>(tasks.data()), 1},
                      .parts = {static_cast<const std::int32_t*>(parts.data()), 1}},
            .rounded = {&rounded, 1}};
  }
  /// The elements of a row of the results, which are all the same.
  float result(int row) const {
    const auto halves = to_host_sync<std::uint16_t>(results.data(), 2 * kElements);
    const auto first = halves.begin() + row * kElements;
    EXPECT_TRUE(std::all_of(first, first + kElements, [&](auto half) { return half == *first; }));
    return bfloat16_to_float(*first);
  }

  DeviceBuffer own = to_device_sync<float>(std::vector<float>(2 * kElements, 3.0f));
  DeviceBuffer results = zeroed(2 * kElements * sizeof(std::uint16_t));
  DeviceBuffer tasks = to_device_sync<comm::SumTask>(
      std::vector<comm::SumTask>{{.row = 0, .num_rows = 1, .first_part = 0, .num_parts = 1}});
  DeviceBuffer parts = to_device_sync<std::int32_t>(std::vector<std::int32_t>{0});
  TensorView to = contiguous_view(own.data(), DType::Float32, {2, 1, kElements});
  TensorView rounded = contiguous_view(results.data(), DType::BFloat16, {2, 1, kElements});
};

TEST_F(PeerKernels, SumsAreRoundedAsTheirPartsCome) {
  for (const bool is_in_flight : {true, false}) {
    const PeerPair pair;
    for (const std::size_t rank : {0, 1}) pair.begin(rank, {.digest = 7});
    TwoSums sums;
    const std::vector<float> part(TwoSums::kElements, 0.5f);
    cuda_check(
        cudaMemcpy(pair.area(0), part.data(), part.size() * sizeof(float), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    pair.wait_sync();
    comm::RowArrival arrival = pair.arrival(0, true);
    arrival.is_publishing = true;
    EXPECT_TRUE(
        comm::launch_round_arriving(sums.partials(pair), pair.view(0), arrival, pair.stream(0)));
    if (is_in_flight) {
      comm::RowArrival told = pair.arrival(1, false);
      told.is_publishing = true;
      comm::launch_await(pair.view(1), told, pair.stream(1));
    }
    pair.wait_sync();
    EXPECT_EQ(pair.mailbox(0).failed, is_in_flight ? PeerWait::None : PeerWait::Rows);
    EXPECT_EQ(sums.result(1), 3.0f);
    const float sum = sums.result(0);
    EXPECT_TRUE(is_in_flight ? sum == 3.5f : std::isnan(sum)) << sum;
    const auto words = to_host_sync<PeerControl>(pair.view(0).control[1], 1).front();
    EXPECT_EQ(words.arrived[0][0][0], 1u);
  }
}

TEST_F(PeerKernels, SumsOfManyRowsAreRoundedBehindTheWait) {
  const PeerPair pair;
  TwoSums sums;
  sums.to.shape[0] = sums.rounded.shape[0] = 1024;
  EXPECT_FALSE(comm::launch_round_arriving(sums.partials(pair), pair.view(0), pair.arrival(0, true),
                                           pair.stream(0)));
}

}  // namespace
}  // namespace magi::test
