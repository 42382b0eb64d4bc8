// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <type_traits>
#include <unordered_map>

#include "base/check.hpp"
#include "magi/runtime.hpp"

namespace magi {
namespace {

/// 64-bit hash of integers for look-ups inside one process. Four lanes hide the latency of the
/// multiplications, so that a mask of 1,000 slices (24 kB) takes about two microseconds.
class Hasher {
 public:
  void add(std::uint64_t word) { lanes_[0] = mix(lanes_[0], word); }

  template <typename Value>
  void add_all(std::span<const Value> values) {
    static_assert(std::has_unique_object_representations_v<Value>);
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    std::size_t rest = values.size_bytes();
    for (; rest >= kBlockBytes; rest -= kBlockBytes, data += kBlockBytes) {
      std::uint64_t words[kNumLanes];
      std::memcpy(words, data, kBlockBytes);
      for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
        lanes_[lane] = mix(lanes_[lane], words[lane]);
      }
    }
    while (rest > 0) {
      std::uint64_t word = 0;
      const std::size_t part = rest < sizeof(word) ? rest : sizeof(word);
      std::memcpy(&word, data, part);
      add(word);
      data += part;
      rest -= part;
    }
    add(values.size());
  }

  std::uint64_t digest() const {
    std::uint64_t result = 0;
    for (const std::uint64_t lane : lanes_) result = mix(result, lane);
    return result ^ (result >> 32);
  }

 private:
  static constexpr std::size_t kNumLanes = 4;
  static constexpr std::size_t kBlockBytes = kNumLanes * sizeof(std::uint64_t);

  static std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
    // Odd constants from the fractions of pi and e: every bit of the word reaches the high half,
    // which the rotation brings down for the next word.
    return std::rotl((state ^ (word * 0x243f6a8885a308d3ULL)) * 0xb7e151628aed2a6bULL, 29);
  }

  std::uint64_t lanes_[kNumLanes] = {1, 2, 3, 4};
};

void add(Hasher& hasher, std::int64_t value) { hasher.add(static_cast<std::uint64_t>(value)); }
void add(Hasher& hasher, double value) {
  hasher.add(std::bit_cast<std::uint64_t>(value + 0.0));  // -0.0 equals 0.0
}

void add(Hasher& hasher, const PlacementConfig& config) {
  add(hasher, static_cast<std::int64_t>(config.algorithm));
  add(hasher, std::int64_t{config.chunk_size.value_or(-1)});
  add(hasher, std::int64_t{config.min_chunks_per_rank});
  add(hasher, std::int64_t{config.uneven_shard});
  add(hasher, config.token_tolerance);
  hasher.add(config.seed);
}

void add(Hasher& hasher, const PlanConfig& config) {
  for (const std::int32_t value :
       {config.num_ranks, config.num_heads_q, config.num_heads_kv, config.head_dim_qk,
        config.head_dim_v, config.element_bytes, config.overlap_degree.value_or(-1),
        static_cast<std::int32_t>(config.stage_mode), config.min_stage_rows,
        config.devices_per_node, static_cast<std::int32_t>(config.work),
        config.head_shares}) {
    add(hasher, std::int64_t{value});
  }
  add(hasher, config.placement);
  add(hasher, std::int64_t{config.placement_k.has_value()});
  if (config.placement_k) add(hasher, *config.placement_k);
  for (const double value :
       {config.cost.flops_per_second, config.cost.backward_flops_per_second,
        config.cost.bytes_per_second, config.cost.memory_bytes_per_second,
        config.cost.seconds_per_transfer, config.cost.seconds_per_launch,
        config.cost.network_bytes_per_second, config.cost.network_seconds_per_transfer}) {
    add(hasher, value);
  }
}

void add(Hasher& hasher, const Placement& placement) {
  add(hasher, std::int64_t{placement.num_rows});
  add(hasher, std::int64_t{placement.chunk_size});
  add(hasher, std::int64_t{placement.num_ranks});
  hasher.add_all(std::span(placement.chunk_rank));
}

/// What a caller asks for, borrowed.
struct Query {
  const Mask& mask;
  const PlanConfig& config;
  const Placement* placement_q = nullptr;  ///< both or none
  const Placement* placement_k = nullptr;
};

std::uint64_t hash_of(const Query& query) {
  Hasher hasher;
  add(hasher, std::int64_t{query.mask.rows_q});
  add(hasher, std::int64_t{query.mask.rows_k});
  hasher.add_all(std::span(query.mask.slices));
  add(hasher, query.config);
  if (query.placement_q != nullptr) {
    add(hasher, *query.placement_q);
    add(hasher, *query.placement_k);
  }
  return hasher.digest();
}

using SharedPlan = std::shared_ptr<const Plan>;

/// A plan that one caller makes and others may wait for; read and written under the cache's lock,
/// but for what its maker writes before `is_done`. NOTE: a promise would take memory to be dropped.
struct Making {
  bool is_done = false;
  SharedPlan plan;
  std::exception_ptr error;
};

struct Entry {
  Mask mask;
  PlanConfig config;
  std::optional<std::pair<Placement, Placement>> placements;
  std::uint64_t hash = 0;
  std::shared_ptr<Making> making;

  bool equals(const Query& query) const {
    static_assert(std::has_unique_object_representations_v<BandSlice>);
    if (mask.rows_q != query.mask.rows_q || mask.rows_k != query.mask.rows_k) return false;
    if (mask.slices.size() != query.mask.slices.size()) return false;
    // NOTE: one memcmp instead of 1,000 comparisons of six fields; slices have no padding bytes.
    if (!mask.slices.empty() && std::memcmp(mask.slices.data(), query.mask.slices.data(),
                                            mask.slices.size() * sizeof(BandSlice)) != 0) {
      return false;
    }
    if (!(config == query.config) || placements.has_value() != (query.placement_q != nullptr)) {
      return false;
    }
    return !placements ||
           (placements->first == *query.placement_q && placements->second == *query.placement_k);
  }
};

}  // namespace

struct PlanCache::State {
  using Entries = std::list<Entry>;

  std::size_t capacity = 0;
  mutable std::mutex mutex;
  std::condition_variable made;
  Entries entries;  ///< most recently used first
  std::unordered_multimap<std::uint64_t, Entries::iterator> index;

  /// The equal entry, moved to the front, or entries.end(). Call with the lock held.
  Entries::iterator find(const Query& query, std::uint64_t hash) {
    const auto [first, last] = index.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (!it->second->equals(query)) continue;
      entries.splice(entries.begin(), entries, it->second);
      return entries.begin();
    }
    return entries.end();
  }

  void erase(Entries::iterator entry) {
    const auto [first, last] = index.equal_range(entry->hash);
    for (auto it = first; it != last; ++it) {
      if (it->second != entry) continue;
      index.erase(it);
      break;
    }
    entries.erase(entry);
  }

  void insert(const Query& query, std::uint64_t hash, std::shared_ptr<Making> making) {
    Entry entry{
        .mask = query.mask, .config = query.config, .hash = hash, .making = std::move(making)};
    if (query.placement_q != nullptr) {
      entry.placements.emplace(*query.placement_q, *query.placement_k);
    }
    entries.push_front(std::move(entry));
    try {
      index.emplace(hash, entries.begin());
    } catch (...) {
      entries.pop_front();
      throw;
    }
    if (entries.size() > capacity) erase(std::prev(entries.end()));
  }

  /// Tells those who wait. The entry of a plan that could not be made leaves, so that a later call
  /// tries again. NOTE: it is not found by value: NaN, which is refused, does not equal itself.
  void end(Making& making, std::uint64_t hash) {
    const std::lock_guard lock(mutex);
    making.is_done = true;
    made.notify_all();
    if (!making.error) return;
    const auto [first, last] = index.equal_range(hash);
    const auto is_its = [&](const auto& known) { return known.second->making.get() == &making; };
    const auto its = std::find_if(first, last, is_its);
    if (its != last) erase(its->second);
  }

  template <typename Make>
  SharedPlan find_or_make(const Query& query, const Make& make) {
    const std::uint64_t hash = hash_of(query);
    const auto making = std::make_shared<Making>();
    {
      std::unique_lock lock(mutex);
      const auto entry = find(query, hash);
      if (entry != entries.end()) {
        const std::shared_ptr<Making> others = entry->making;
        made.wait(lock, [&] { return others->is_done; });
        if (others->error) std::rethrow_exception(others->error);
        return others->plan;
      }
      insert(query, hash, making);
    }
    try {
      making->plan = std::make_shared<const Plan>(make());
    } catch (...) {
      making->error = std::current_exception();
    }
    end(*making, hash);
    if (making->error) std::rethrow_exception(making->error);
    return making->plan;
  }
};

PlanCache::PlanCache(std::size_t capacity) : state_(std::make_unique<State>()) {
  if (capacity == 0) throw invalid("capacity", capacity, "1 or more");
  state_->capacity = capacity;
}

PlanCache::~PlanCache() = default;

std::shared_ptr<const Plan> PlanCache::find_or_make(const Mask& mask, const PlanConfig& config) {
  return state_->find_or_make({.mask = mask, .config = config},
                              [&] { return make_plan(mask, config); });
}

std::shared_ptr<const Plan> PlanCache::find_or_make_on(const Mask& mask, const PlanConfig& config,
                                                       const Placement& placement_q,
                                                       const Placement& placement_k) {
  return state_->find_or_make(
      {.mask = mask, .config = config, .placement_q = &placement_q, .placement_k = &placement_k},
      [&] { return make_plan_on(mask, config, placement_q, placement_k); });
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(state_->mutex);
  return state_->entries.size();
}

void PlanCache::clear() {
  const std::lock_guard lock(state_->mutex);
  state_->index.clear();
  state_->entries.clear();
}

}  // namespace magi
