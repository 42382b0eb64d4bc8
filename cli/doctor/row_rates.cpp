// SPDX-License-Identifier: Apache-2.0
#include "doctor/row_rates.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "comm/nvlink/peer_exchanger.hpp"
#include "comm/rows/row_exchanger.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"

namespace magi::cli {
namespace {

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kDim = 128;
constexpr std::int32_t kChunk = 512;               // rows that follow each other in both orders
constexpr std::int32_t kNumParts = 3;              // partial sums of each row
constexpr std::int32_t kRounds = 5;                // of which the median counts
constexpr std::int32_t kRepeats = 10;              // of a round
constexpr std::uint64_t kDigest = 0x646f63746f72;  // of moves that belong to no plan

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Rows in chunks whose order on the wire is the reverse of the tensor's.
std::vector<PeerRows> reversed(std::int32_t rows) {
  std::vector<PeerRows> records;
  for (std::int32_t row = rows - kChunk; row >= 0; row -= kChunk) {
    records.push_back({.peer = 0, .row = row, .num_rows = kChunk});
  }
  return records;
}

double median_seconds(const RankPlace& place, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (std::int32_t round = 0; round < kRounds; ++round) {
    seconds.push_back(place.time_sync([&] {
      for (std::int32_t i = 0; i < kRepeats; ++i) work();
    }));
  }
  return median(seconds) / kRepeats;
}

/// The rows that a rank gives to and takes from all others: its first rows, to where its own rank
/// stands.
RowExchange all_to_all(std::int32_t rank, std::int32_t num_ranks, std::int32_t rows) {
  RowExchange exchange;
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    if (peer == rank) continue;
    exchange.owned.push_back({.peer = peer, .row = 0, .num_rows = rows});
    exchange.needed.push_back({.peer = peer, .row = peer * rows, .num_rows = rows});
  }
  return exchange;
}

/// Passes that cast rows, one behind the other.
class Casts {
 public:
  Casts(Communicator& group, const RankPlace& place, std::int32_t rows)
      : place_(place),
        from_(place, DType::BFloat16, {rows, kHeads, kDim}),
        to_(place, DType::BFloat16, {std::int64_t{rows} * group.num_ranks(), kHeads, kDim}),
        exchanger_(comm::make_row_exchanger(group, place.device, pool_, {.has_passes = true})),
        table_(all_to_all(group.rank(), group.num_ranks(), rows), group.rank(), group.num_ranks()) {
    exchanger_->prepare(table_, {.kind = ExchangeKind::Cast}, [&group, rows] {
      std::vector<RowExchange> everyone;
      for (std::int32_t rank = 0; rank < group.num_ranks(); ++rank) {
        everyone.push_back(all_to_all(rank, group.num_ranks(), rows));
      }
      return everyone;
    });
  }

  void run() {
    TensorView to = to_.view;
    const std::int64_t size_bytes =
        to.num_elements() * static_cast<std::int64_t>(dtype_bytes(to.dtype));
    auto* peers = comm::as_peer_exchanger(*exchanger_);
    if (peers != nullptr) {
      peers->begin_pass({.most_bytes = size_bytes, .digest = kDigest}, place_.stream);
      to.data = peers->place(size_bytes);
    }
    exchanger_
        ->start(table_,
                {.kind = ExchangeKind::Cast,
                 .from = {&from_.view, 1},
                 .to = {&to, 1},
                 .tag = {.plan_digest = kDigest}},
                place_.stream)
        ->await(place_.stream);
    if (peers != nullptr) peers->end_pass(place_.stream);
  }

 private:
  const RankPlace& place_;
  DeviceAllocator pool_;  ///< the library's
  PlacedTensor from_, to_;
  std::unique_ptr<comm::RowExchanger> exchanger_;
  comm::RowTable table_;
};

/// The time of one exchange. Ranks begin a round together; whoever is early waits, so the least
/// counts.
double exchange_seconds(Communicator& group, const RankPlace& place, std::int32_t rows) {
  Casts casts(group, place, rows);
  std::vector<double> rounds;
  for (std::int32_t round = 0; round < kRounds; ++round) {
    static_cast<void>(least_of_ranks(group, 0.0));
    rounds.push_back(least_of_ranks(group, place.time_sync([&] {
      for (std::int32_t i = 0; i < kRepeats; ++i) casts.run();
    })));
  }
  return median(rounds) / kRepeats;
}

}  // namespace

double memory_rate(const RankPlace& place, std::int32_t rows) {
  const DeviceAllocator pool;
  const auto memory = comm::make_row_memory(place.device, pool);
  const PlacedTensor k(place, DType::BFloat16, {rows, kHeads, kDim});
  const PlacedTensor v(place, DType::BFloat16, {rows, kHeads, kDim});
  const TensorView pair[] = {k.view, v.view};
  const comm::RowTable order({.owned = reversed(rows), .needed = {}}, 1, 2);
  const auto copied = rows * static_cast<std::int64_t>(comm::RowLayout(pair).row_bytes());
  const auto wire = place.allocate(copied);
  const comm::RowTasks tasks = memory->tasks_of(order, place.stream);
  const double copying = median_seconds(place, [&] {
    memory->copy({.tensors = pair}, {.tensors = pair, .wire = static_cast<std::byte*>(wire.get())},
                 tasks.owned, place.stream);
  });

  const PlacedTensor sums(place, DType::Float32, {rows, kHeads, kDim});
  std::vector<PeerRows> parts;
  for (std::int32_t peer = 0; peer < kNumParts; ++peer) parts.push_back({peer, 0, rows});
  const comm::RowTable sources({.owned = parts, .needed = {}}, kNumParts, kNumParts + 1);
  const auto summed = sums.view.num_elements() * static_cast<std::int64_t>(sizeof(float));
  const auto partial = place.allocate(kNumParts * summed);
  const comm::Partials partials{.to = {&sums.view, 1},
                                .wire_types = comm::wire_types_of({&sums.view, 1}, {&sums.view, 1}),
                                .wire = static_cast<std::byte*>(partial.get()),
                                .tasks = memory->tasks_of(sources, place.stream)};
  const double adding = median_seconds(place, [&] { memory->combine(partials, place.stream); });
  // A copy reads and writes; a sum reads its parts and itself, and writes itself.
  const double bytes = 2.0 * static_cast<double>(copied) +
                       static_cast<double>(kNumParts + 2) * static_cast<double>(summed);
  return bytes / (copying + adding);
}

ExchangeRates exchange_rates(Communicator& group, const RankPlace& place, std::int32_t rows) {
  const double little = exchange_seconds(group, place, 1);
  const double much = exchange_seconds(group, place, rows);
  const std::int32_t peers = group.num_ranks() - 1;
  const double bytes = static_cast<double>(rows) * peers * kHeads * kDim * 2.0;
  return {.bytes_per_second = bytes / std::max(much - little, 1e-3 * much),
          .seconds_per_transfer = little / peers};
}

double least_of_ranks(Communicator& group, double value) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& bytes : group.allgather_sync(std::as_bytes(std::span(&value, 1)))) {
    double other = 0.0;
    std::memcpy(&other, bytes.data(), sizeof other);
    least = std::min(least, other);
  }
  return least;
}

}  // namespace magi::cli
