// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "cuda/shared_memory.hpp"
#include "kernels/sm90/listed/joined_lists.hpp"
#include "kernels/sm90/listed/list_reader.cuh"

namespace magi::sm90 {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kWordsPerThread = 8;  // words of key bits, at a time
constexpr std::uint32_t kFullWarp = 0xffffffffu;
constexpr std::int64_t kMostSharedBytes = std::int64_t{200} << 10;

/// Arguments of the kernel.
struct JoinRun {
  ListedIndices lists;
  JoinedLists joined;
  std::int32_t first_row = 0;
  std::int32_t end_row = 0;
  std::int32_t heads_kv = 1;
  std::int32_t num_words = 0;  ///< words of bits for all keys
};

/// Bits of 32 keys: a word for each query.
template <int kQueries>
struct alignas(4 * kQueries) QueryBits {
  std::uint32_t of[kQueries];
};

/// The place of the bits of keys [32 * word, ...), free of bank conflicts for neighbouring words.
__host__ __device__ constexpr std::uint32_t bits_place(std::uint32_t word) {
  return word + word / kWordsPerThread;
}

/// The work of a CTA: the lists of one tile of queries and one kv head.
template <int kQueries>
class ListJoiner {
 public:
  using Bits = QueryBits<kQueries>;

  __device__ __forceinline__ ListJoiner(const JoinRun& run, Bits* bits, std::int32_t* counts)
      : run_(run),
        bits_(bits),
        counts_(counts),
        thread_(static_cast<int>(threadIdx.x)),
        first_row_(run.first_row + static_cast<std::int32_t>(blockIdx.x) * kQueries) {
    const std::int64_t list = std::int64_t{blockIdx.x} * run.heads_kv + blockIdx.y;
    keys_ = run.joined.keys + list * run.joined.max_keys;
    seen_ = run.joined.seen + list * run.joined.seen_words();
    num_tiles_ = run.joined.num_tiles + list;
  }

  __device__ __forceinline__ void run() {
    const std::uint32_t num_places = bits_place(static_cast<std::uint32_t>(run_.num_words));
    for (auto i = static_cast<std::uint32_t>(thread_); i < num_places; i += kThreads) {
      bits_[i] = {};
    }
    __syncthreads();
    const bool has_twice = __syncthreads_or(mark() ? 1 : 0) != 0;
    const std::int32_t num_keys = has_twice ? kQueries * run_.lists.num_positions : write_union();
    const std::int32_t num_tiles = (num_keys + kJoinedTile - 1) / kJoinedTile;
    if (thread_ == 0) *num_tiles_ = num_tiles;
    __syncthreads();
    const std::int32_t end = num_tiles * kJoinedTile;
    const int lane = thread_ % 32;
    std::int32_t* keys = keys_ + thread_;
    std::uint32_t* seen = seen_ + thread_ / kJoinedTile * kSeenWords + 2 * lane + thread_ / 32 % 2;
#pragma unroll 1
    for (std::int32_t i = thread_; i < end; i += kThreads) {
      const Bits bits = has_twice ? append(i, keys) : bits_of(i < num_keys, keys);
      std::uint32_t own = 0;
#pragma unroll
      for (int query = 0; query < kQueries; ++query) {
        const std::uint32_t word = __ballot_sync(kFullWarp, (bits.of[query] & 1) != 0);
        if (lane == query) own = word;
      }
      if (lane < kMostJoined) *seen = own;
      keys += kThreads;
      seen += kThreads / kJoinedTile * kSeenWords;
    }
  }

 private:
  __device__ __forceinline__ ListReader reader_of(int query, bool is_counting) const {
    ListReader reader(run_.lists);
    reader.open(first_row_ + query, static_cast<std::int32_t>(blockIdx.y), run_.heads_kv,
                is_counting);
    return reader;
  }

  /// Sets the bits of all keys, by a few warps per query. Returns whether a list has a key twice.
  __device__ __forceinline__ bool mark() const {
    constexpr int kThreadsPerQuery = kThreads / kQueries;
    const int query = thread_ / kThreadsPerQuery;
    if (first_row_ + query >= run_.end_row) return false;
    ListReader reader = reader_of(query, true);
    std::uint32_t* bits = &bits_->of[query];
    std::uint32_t twice = 0;
    const auto set = [&](std::uint32_t key) {
      const std::uint32_t bit = 1u << key % 32;
      twice |= atomicOr(bits + bits_place(key / 32) * kQueries, bit) & bit;
    };
    const std::int32_t end = run_.lists.num_positions;
    const std::int32_t first = thread_ % kThreadsPerQuery;
    bool has_bad = false;
    if (run_.lists.block_keys == 1) {
      constexpr int kAhead = 8;  // entries that are loaded together
#pragma unroll 1
      for (std::int32_t i = first; i < end; i += kAhead * kThreadsPerQuery) {
        std::int32_t keys[kAhead];
        if (run_.lists.entry_stride == 1 && i + (kAhead - 1) * kThreadsPerQuery < end) {
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            keys[j] = __ldg(reader.entries() + i + j * kThreadsPerQuery);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kAhead; ++j) keys[j] = reader.entry_at(i + j * kThreadsPerQuery);
        }
#pragma unroll
        for (const std::int32_t entry : keys) {
          const auto key = static_cast<std::uint32_t>(entry);
          if (key < static_cast<std::uint32_t>(run_.lists.rows_k)) {
            set(key);
          } else {
            has_bad |= entry != kNoKey;
          }
        }
      }
    } else {
#pragma unroll 1
      for (std::int32_t i = first; i < end; i += kThreadsPerQuery) {
        const std::int32_t entry = reader.entry_at(i);
        const std::int32_t key = reader.key_of(entry, i);
        if (key != kNoKey) set(static_cast<std::uint32_t>(key));
        has_bad |= key == kNoKey && entry != kNoKey;
      }
    }
    if (has_bad) {
#pragma unroll 1
      for (std::int32_t i = first; i < end; i += kThreadsPerQuery) {
        reader.note(reader.entry_at(i), i);
      }
      reader.add_to_report();
    }
    return twice != 0;
  }

  /// Writes the keys that are seen, in ascending order; returns their number.
  __device__ __forceinline__ std::int32_t write_union() const {
    std::int32_t total = 0;
    for (std::int32_t base = 0; base < run_.num_words; base += kThreads * kWordsPerThread) {
      const std::int32_t first = base + thread_ * kWordsPerThread;
      std::uint32_t words[kWordsPerThread];
      std::int32_t own = 0;
#pragma unroll
      for (int i = 0; i < kWordsPerThread; ++i) {
        // Reversed, because one instruction finds the highest bit.
        words[i] = first + i < run_.num_words ? __brev(union_of(first + i)) : 0;
        own += __popc(words[i]);
      }
      auto place = static_cast<std::uint32_t>(total);
      place += static_cast<std::uint32_t>(place_of(own, total));
#pragma unroll
      for (int i = 0; i < kWordsPerThread; ++i) {
        const std::int32_t key = (first + i) * 32 + 31;
#pragma unroll 1
        for (std::uint32_t left = words[i]; left != 0; ++place) {
          const int bit = 31 - __clz(static_cast<int>(left));
          keys_[place] = key - bit;
          left ^= 1u << bit;
        }
      }
    }
    return total;
  }

  __device__ __forceinline__ std::uint32_t union_of(std::int32_t word) const {
    const Bits bits = bits_[bits_place(static_cast<std::uint32_t>(word))];
    std::uint32_t all = 0;
#pragma unroll
    for (int query = 0; query < kQueries; ++query) all |= bits.of[query];
    return all;
  }

  /// Returns the keys of lower threads, and adds those of all to `total`. Called by the whole CTA.
  __device__ __forceinline__ std::int32_t place_of(std::int32_t own, std::int32_t& total) const {
    std::int32_t up_to = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const std::int32_t before = __shfl_up_sync(kFullWarp, up_to, lanes);
      if (thread_ % 32 >= lanes) up_to += before;
    }
    __syncthreads();
    if (thread_ % 32 == 31) counts_[thread_ / 32] = up_to;
    __syncthreads();
    std::int32_t place = up_to - own;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp < thread_ / 32) place += counts_[warp];
      total += counts_[warp];
    }
    return place;
  }

  /// Returns which queries see the key at `place`, in the lowest bits, or sets kNoKey there.
  __device__ __forceinline__ Bits bits_of(bool is_key, std::int32_t* place) const {
    if (!is_key) {
      *place = kNoKey;
      return {};
    }
    const auto key = static_cast<std::uint32_t>(*place);
    Bits bits = bits_[bits_place(key / 32)];
#pragma unroll
    for (std::uint32_t& word : bits.of) word >>= key % 32;
    return bits;
  }

  /// Does the same for lists that follow each other, and writes the key with number `index`.
  __device__ __forceinline__ Bits append(std::int32_t index, std::int32_t* place) const {
    const std::int32_t own = index / run_.lists.num_positions;
    const std::int32_t position = index - own * run_.lists.num_positions;
    std::int32_t key = kNoKey;
    if (own < kQueries && first_row_ + own < run_.end_row) {
      const ListReader reader = reader_of(own, false);
      key = reader.key_of(reader.entry_at(position), position);
    }
    *place = key;
    Bits bits = {};
#pragma unroll
    for (int query = 0; query < kQueries; ++query) bits.of[query] = key != kNoKey && query == own;
    return bits;
  }

  const JoinRun& run_;
  Bits* bits_;
  std::int32_t* counts_;  ///< counts of warps
  const int thread_;
  const std::int32_t first_row_;
  std::int32_t* keys_;
  std::uint32_t* seen_;
  std::int32_t* num_tiles_;
};

template <int kQueries>
__global__ void __launch_bounds__(kThreads) join_lists_kernel(const __grid_constant__ JoinRun run) {
  extern __shared__ __align__(32) std::uint8_t bits[];
  __shared__ std::int32_t counts[kWarps];
  ListJoiner<kQueries>(run, reinterpret_cast<QueryBits<kQueries>*>(bits), counts).run();
}

std::int64_t bits_bytes(std::int64_t num_words, std::int64_t queries) {
  return bits_place(static_cast<std::uint32_t>(num_words)) * queries * 4;
}

template <int kQueries>
void launch_join(const JoinRun& run, dim3 grid, cudaStream_t stream) {
  static SharedMemoryGrant grant;
  grant.ensure(join_lists_kernel<kQueries>, static_cast<int>(kMostSharedBytes));
  const auto bytes = static_cast<std::size_t>(bits_bytes(run.num_words, kQueries));
  join_lists_kernel<kQueries><<<grid, kThreads, bytes, stream>>>(run);
  cuda_check(cudaGetLastError(), "join_lists_kernel");
}

/// Returns the number of queries of a tile, a power of two, or 1 if lists are not joined.
std::int32_t joined_queries(const TensorView& q, const TensorView& k, const ListedIndices& lists,
                            std::int32_t tile_rows) {
  constexpr std::int64_t kMostPositions = std::int64_t{1} << 20;
  constexpr std::int32_t kWordsPerPosition = 8;  // with more, joining takes longer than it saves
  constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // the reach of 32-bit places
  constexpr std::int64_t kMostHeads = 65'535;                    // a grid's second dimension
  const std::int64_t heads = q.shape[1] / k.shape[1];
  if (lists.rows_k == 0 || lists.num_positions == 0 || 2 * heads > 64) return 1;
  const auto queries = static_cast<std::int32_t>(std::bit_floor(
      static_cast<std::uint64_t>(std::min<std::int64_t>(tile_rows / heads, kMostJoined))));
  const std::int64_t words = (std::int64_t{lists.rows_k} + 31) / 32;
  const bool fits = bits_bytes(words, queries) <= kMostSharedBytes &&
                    std::int64_t{lists.num_positions} * queries <= kMostPositions &&
                    q.stride[0] * queries <= kMostElements && k.shape[1] <= kMostHeads;
  return fits && words <= std::int64_t{lists.num_positions} * kWordsPerPosition ? queries : 1;
}

}  // namespace

JoinedLayout joined_layout(const TensorView& q, const TensorView& k, const ListedIndices& lists,
                           std::int32_t tile_rows) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  JoinedLayout layout{.queries = joined_queries(q, k, lists, tile_rows)};
  if (layout.queries == 1) return layout;
  const std::int64_t heads_kv = k.shape[1];
  const std::int64_t query_tiles = (q.shape[0] + layout.queries - 1) / layout.queries;
  const std::int32_t num_keys = layout.queries * lists.num_positions;
  layout.max_keys = (num_keys + kJoinedTile - 1) / kJoinedTile * kJoinedTile;
  const std::int64_t tile_bytes = heads_kv * (std::int64_t{5} * layout.max_keys + 4);
  const std::int64_t tiles = std::clamp<std::int64_t>(kMostBytes / tile_bytes, 1, query_tiles);
  layout.rows = static_cast<std::int32_t>(tiles) * layout.queries;
  const std::int64_t num_lists = tiles * heads_kv;
  Arena arena;
  layout.keys = arena.add<std::int32_t>(num_lists * layout.max_keys);
  layout.seen = arena.add<std::uint32_t>(num_lists * layout.max_keys / kJoinedTile * kSeenWords);
  layout.num_tiles = arena.add<std::int32_t>(num_lists);
  layout.size_bytes = arena.size_bytes();
  return layout;
}

JoinedLists joined_lists(const JoinedLayout& layout, void* memory) {
  return {.keys = part_at<std::int32_t>(memory, layout.keys),
          .seen = part_at<std::uint32_t>(memory, layout.seen),
          .num_tiles = part_at<std::int32_t>(memory, layout.num_tiles),
          .max_keys = layout.max_keys};
}

void enqueue_joined_lists(const ListedShape& shape, const ListedIndices& lists,
                          std::int32_t first_row, std::int32_t end_row, const JoinedLists& joined,
                          cudaStream_t stream) {
  const JoinRun run{.lists = lists,
                    .joined = joined,
                    .first_row = first_row,
                    .end_row = end_row,
                    .heads_kv = shape.heads_kv,
                    .num_words = (lists.rows_k + 31) / 32};
  const std::int32_t tiles = (end_row - first_row + shape.queries - 1) / shape.queries;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(shape.heads_kv));
  const auto launch = shape.queries == 2   ? launch_join<2>
                      : shape.queries == 4 ? launch_join<4>
                                           : launch_join<8>;
  launch(run, grid, stream);
}

}  // namespace magi::sm90
