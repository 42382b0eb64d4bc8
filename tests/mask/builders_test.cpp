// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "magi/mask_builders.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

using Ints = std::vector<std::int32_t>;

/// The mask holds exactly the pairs (i, j) of the predicate, each once.
void expect_pairs(const Mask& mask, const std::function<bool(int, int)>& is_visible) {
  SCOPED_TRACE(describe(mask));
  validate(mask);
  const std::vector<int> counts = dense_counts(mask);
  for (int i = 0; i < mask.rows_q; ++i) {
    for (int j = 0; j < mask.rows_k; ++j) {
      const int count = counts[static_cast<std::size_t>(i * mask.rows_k + j)];
      ASSERT_EQ(count, is_visible(i, j) ? 1 : 0) << "query " << i << " key " << j;
    }
  }
}

/// Prefix sums of random document lengths, empty and one-token documents among them.
Ints random_documents(RandomStream& random, int num_documents, std::int32_t longest) {
  Ints sums = {0};
  for (int d = 0; d < num_documents; ++d) {
    sums.push_back(sums.back() + (random.chance(15) ? 0 : random.between(1, longest)));
  }
  return sums;
}

/// The document that row i of packed documents belongs to.
std::size_t document_of(const Ints& sums, int i) {
  return static_cast<std::size_t>(std::upper_bound(sums.begin(), sums.end(), i) - sums.begin()) - 1;
}

TEST(MaskFromRanges, KeepsTheTriplesInOrder) {
  const std::vector<Range> q = {{0, 4}, {4, 8}};
  const std::vector<Range> k = {{0, 4}, {0, 8}};
  const std::vector<MaskType> types = {MaskType::Causal, MaskType::Full};
  const Mask mask = mask_from_ranges(q, k, types, 8, 9);
  EXPECT_EQ(mask,
            (Mask{8, 9, {band_slice(q[0], k[0], types[0]), band_slice(q[1], k[1], types[1])}}));
  const std::vector<MaskType> one = {MaskType::InverseCausal};
  EXPECT_EQ(mask_from_ranges(q, k, one, 8, 8).slices[1], band_slice(q[1], k[1], one[0]));
  EXPECT_EQ(mask_from_ranges({}, {}, {}, 3, 4), (Mask{3, 4, {}}));
}

TEST(MaskFromRanges, BadInputIsNamed) {
  const std::vector<Range> q = {{0, 4}, {4, 8}};
  const std::vector<Range> k = {{0, 4}, {2, 8}};
  const std::vector<MaskType> full = {MaskType::Full};
  const auto build = [&](const std::vector<Range>& a, const std::vector<Range>& b,
                         const std::vector<MaskType>& types) {
    return refusal_of([&] { mask_from_ranges(a, b, types, 8, 8); });
  };
  EXPECT_EQ(build(q, {{0, 4}}, full),
            "number of k_ranges is 1; allowed: 2, the number of q_ranges");
  EXPECT_EQ(build(q, k, {}), "number of types is 0; allowed: 1 or 2, the number of q_ranges");
  EXPECT_EQ(build(q, {{0, 4}, {5, 3}}, full),
            "k_ranges[1] is 5:3; allowed: 0 <= begin <= end <= 8, the rows of k");
  EXPECT_EQ(build({{-1, 4}, {4, 8}}, k, full),
            "q_ranges[0] is -1:4; allowed: 0 <= begin <= end <= 8, the rows of q");
  EXPECT_EQ(build(q, {{0, 4}, {2, 9}}, full),
            "k_ranges[1] is 2:9; allowed: 0 <= begin <= end <= 8, the rows of k");
  EXPECT_EQ(build(q, k, {MaskType::Full, static_cast<MaskType>(9)}),
            "types[1] is 9; allowed: 0, 1, 2, 3");
  EXPECT_EQ(refusal_of([&] { mask_from_ranges(q, k, full, kBandInfinity, 8); }),
            "rows_q is 1073741824; allowed: 0 to 1073741823");
}

TEST(MaskFromWindow, TheExampleOfTheReferenceIsOneSlice) {
  const Mask mask = mask_from_window({5, 15}, {5, 15}, {2, 3}, 20, 20);
  EXPECT_EQ(mask.slices, (std::vector<BandSlice>{{5, 15, 5, 15, -2, 3}}));
}

TEST(MaskFromWindow, EveryWindowOnEveryShapeIsOneSlice) {
  for (int sq = 0; sq <= 7; ++sq) {
    for (int sk = 0; sk <= 7; ++sk) {
      for (int left = -1; left <= 8; ++left) {
        for (int right = -1; right <= 8; ++right) {
          const Range q{2, 2 + sq};
          const Range k{3, 3 + sk};
          const Mask mask = mask_from_window(q, k, {left, right}, 11, 12);
          EXPECT_EQ(mask.slices.size(), sq == 0 || sk == 0 ? 0u : 1u);
          SCOPED_TRACE(std::to_string(left) + " " + std::to_string(right));
          expect_pairs(mask, [&](int i, int j) {
            if (i < q.begin || i >= q.end || j < k.begin || j >= k.end) return false;
            if (i < q.end - sk) return false;  // of more queries than keys only the last sk
            const int ahead = (j - k.end) - (i - q.end);
            return (left < 0 || ahead >= -left) && (right < 0 || ahead <= right);
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(MaskFromWindow, HugeWindowsDoNotOverflow) {
  const std::int32_t n = kMaxRows;
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const Mask all = mask_from_window({0, n}, {0, n}, {most, most}, n, n);
  EXPECT_EQ(all.slices, (std::vector<BandSlice>{{0, n, 0, n}}));
  const Mask late = mask_from_window({0, 3}, {0, n}, {n - 3, n - 3}, n, n);
  ASSERT_EQ(late.slices.size(), 1u);
  EXPECT_EQ(area(late), 3LL * n - 3);  // rows 0, 1, 2 miss as many keys
  const Mask early = mask_from_window({0, n}, {0, 3}, {1, 0}, n, n);
  EXPECT_EQ(early.slices, (std::vector<BandSlice>{{n - 3, n, 0, 3, 2 - n, 3 - n}}));
}

TEST(MaskFromWindow, BadInputIsNamed) {
  EXPECT_EQ(refusal_of([] {
              mask_from_window({0, 4}, {0, 4}, {-2, 0}, 4, 4);
            }),
            "window.left is -2; allowed: -1 or more");
  EXPECT_EQ(refusal_of([] {
              mask_from_window({0, 4}, {0, 4}, {0, -7}, 4, 4);
            }),
            "window.right is -7; allowed: -1 or more");
  EXPECT_EQ(refusal_of([] {
              mask_from_window({0, 5}, {0, 4}, {0, 0}, 4, 4);
            }),
            "q range is 0:5; allowed: 0 <= begin <= end <= 4, the rows of q");
}

TEST(MaskFromCuSeqlens, FullAndCausalAreOneSlicePerDocument) {
  for (RandomStream& random : RandomStreams(200)) {
    const Ints q = random_documents(random, 4, 8);
    const Ints k = random_documents(random, 4, 8);
    const bool is_causal = random.chance(50);
    const Mask mask = mask_from_cu_seqlens(q, k, {.is_causal = is_causal});
    EXPECT_LE(mask.slices.size(), 4u);
    expect_pairs(mask, [&](int i, int j) {
      const std::size_t d = document_of(q, i);
      if (d != document_of(k, j)) return false;
      return !is_causal || j - k[d + 1] <= i - q[d + 1];
    });
  }
}

TEST(MaskFromCuSeqlens, WindowsAreOneSlicePerDocument) {
  for (RandomStream& random : RandomStreams(400)) {
    const Ints q = random_documents(random, 3, 12);
    const Ints k = random.chance(50) ? q : random_documents(random, 3, 12);
    const Window window{random.between(-1, 13), random.between(0, 13)};
    const Mask mask = mask_from_cu_seqlens(q, k, {.window = window});
    EXPECT_LE(mask.slices.size(), 3u);
    Mask each{q.back(), k.back(), {}};
    for (std::size_t d = 0; d < 3; ++d) {
      const Mask one =
          mask_from_window({q[d], q[d + 1]}, {k[d], k[d + 1]}, window, q.back(), k.back());
      each.slices.insert(each.slices.end(), one.slices.begin(), one.slices.end());
    }
    EXPECT_EQ(mask, each);
  }
}

TEST(MaskFromCuSeqlens, GlobalKeysEscapeTheLeftBoundOnly) {
  for (RandomStream& random : RandomStreams(800)) {
    const Ints q = random_documents(random, 3, 14);
    const Ints k = random.chance(50) ? q : random_documents(random, 3, 14);
    const Window window{random.between(-1, 15), random.between(-1, 15)};
    const std::int32_t num_global = random.between(0, 16);
    const Mask mask = mask_from_cu_seqlens(q, k, {.window = window, .num_global = num_global});
    EXPECT_LE(mask.slices.size(), 6u);
    expect_pairs(mask, [&](int i, int j) {
      const std::size_t d = document_of(q, i);
      if (d != document_of(k, j)) return false;
      if (window == Window{}) return true;
      const int ahead = (j - k[d + 1]) - (i - q[d + 1]);
      if (j - k[d] < num_global) {
        const int from_first = (j - k[d]) - (i - q[d]);
        return window.right < 0 || std::min(ahead, from_first) <= window.right;
      }
      if (i < q[d + 1] - (k[d + 1] - k[d])) return false;
      if (window.right >= 0 && ahead > window.right) return false;
      return window.left < 0 || ahead >= -window.left;
    });
  }
}

TEST(MaskFromCuSeqlens, QueriesAboveTheDiagonalSeeKeysOfTheWindowWhereAsked) {
  for (RandomStream& random : RandomStreams(800)) {
    const Ints q = random_documents(random, 3, 14);
    const Ints k = random_documents(random, 3, 14);
    const Window window{random.between(-1, 15), random.between(-1, 15)};
    const std::int32_t num_global = random.chance(50) ? 0 : random.between(1, 16);
    const Mask mask = mask_from_cu_seqlens(
        q, k, {.window = window, .num_global = num_global, .has_rows_above = true});
    expect_pairs(mask, [&](int i, int j) {
      const std::size_t d = document_of(q, i);
      if (d != document_of(k, j)) return false;
      const int ahead = (j - k[d + 1]) - (i - q[d + 1]);
      if (window.right >= 0 && ahead > window.right) return false;
      return window.left < 0 || ahead >= -window.left || j - k[d] < num_global;
    });
  }
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const Mask all = mask_from_cu_seqlens(Ints{0, kMaxRows}, Ints{0, 3},
                                        {.window = {most, most}, .has_rows_above = true});
  EXPECT_EQ(all.slices, (std::vector<BandSlice>{{0, kMaxRows, 0, 3}}));
}

TEST(MaskFromCuSeqlens, BadInputIsNamed) {
  const auto build = [](const Ints& q, const Ints& k, const DocumentRule& rule) {
    return refusal_of([&] { mask_from_cu_seqlens(q, k, rule); });
  };
  const Ints good = {0, 4, 8};
  EXPECT_EQ(build({}, good, {}), "cu_seqlens_q is empty; allowed: prefix sums that start with 0");
  EXPECT_EQ(build({1, 4, 8}, good, {}), "cu_seqlens_q[0] is 1; allowed: 0");
  EXPECT_EQ(build(good, {0, 5, 4}, {}), "cu_seqlens_k[2] is 4; allowed: 5 to 1073741823");
  EXPECT_EQ(build(good, {0, 5, kBandInfinity}, {}),
            "cu_seqlens_k[2] is 1073741824; allowed: 5 to 1073741823");
  EXPECT_EQ(build(good, {0, 8}, {}),
            "length of cu_seqlens_k is 2; allowed: 3, the length of cu_seqlens_q");
  EXPECT_EQ(build(good, good, {.num_global = -1}), "num_global is -1; allowed: 0 or more");
  EXPECT_EQ(build(good, good, {.is_causal = true, .window = {4, 0}}),
            "window with is_causal is 4:0; allowed: -1:-1 (a causal window is left:0 without "
            "is_causal)");
  EXPECT_EQ(build(good, good, {.window = {-3, 0}}), "window.left is -3; allowed: -1 or more");
}

TEST(MaskBlockCausal, BlocksSeeUpToTheirOwnEnd) {
  for (RandomStream& random : RandomStreams(200)) {
    const Ints sums = random_documents(random, 3, 12);
    const std::int32_t block = random.between(1, 13);
    expect_pairs(mask_block_causal(sums, block), [&](int i, int j) {
      const std::size_t d = document_of(sums, i);
      return d == document_of(sums, j) && (j - sums[d]) / block <= (i - sums[d]) / block;
    });
  }
  EXPECT_EQ(refusal_of([] { mask_block_causal(Ints{0, 4}, 0); }), "block is 0; allowed: 1 or more");
  EXPECT_EQ(refusal_of([] {
              mask_block_causal(Ints{0, kMaxRows}, 2);
            }),
            "number of slices is 536870912; allowed: at most 16777216");
}

TEST(MaskPrefixLm, PrefixesAreVisibleToAllTheirDocument) {
  for (RandomStream& random : RandomStreams(200)) {
    const Ints sums = random_documents(random, 3, 10);
    const Ints prefixes = {random.between(0, 12), random.between(0, 12), random.between(0, 12)};
    const Mask mask = mask_prefix_lm(sums, prefixes);
    EXPECT_LE(mask.slices.size(), 6u);
    expect_pairs(mask, [&](int i, int j) {
      const std::size_t d = document_of(sums, i);
      return d == document_of(sums, j) && (j <= i || j - sums[d] < prefixes[d]);
    });
  }
  EXPECT_EQ(refusal_of([] {
              mask_prefix_lm(Ints{0, 4, 8}, Ints{1});
            }),
            "number of prefix_lengths is 1; allowed: 2, the number of documents");
  EXPECT_EQ(refusal_of([] {
              mask_prefix_lm(Ints{0, 4}, Ints{-1});
            }),
            "prefix_lengths[0] is -1; allowed: 0 or more");
}

TEST(MaskPrefixTree, NodesSeeTheirAncestorsAndThemselvesCausally) {
  for (RandomStream& random : RandomStreams(400)) {
    const int num_nodes = random.between(0, 9);
    std::vector<PrefixTreeNode> nodes;
    std::vector<int> owner;
    for (int i = 0; i < num_nodes; ++i) {
      nodes.push_back({random.between(-1, i - 1), random.between(0, 5)});
      owner.insert(owner.end(), static_cast<std::size_t>(nodes.back().rows), i);
    }
    const auto is_ancestor = [&](int node, int of) {
      while (of >= 0 && of != node) of = nodes[static_cast<std::size_t>(of)].parent;
      return of == node;
    };
    const Mask mask = mask_prefix_tree(nodes);
    ASSERT_EQ(static_cast<std::size_t>(mask.rows_q), owner.size());
    expect_pairs(mask, [&](int i, int j) {
      const int of = owner[static_cast<std::size_t>(i)];
      const int node = owner[static_cast<std::size_t>(j)];
      return node == of ? j <= i : is_ancestor(node, of);
    });
  }
}

TEST(MaskPrefixTree, AChainIsOneSlicePerNode) {
  const std::vector<PrefixTreeNode> chain = {{-1, 4}, {0, 3}, {1, 5}};
  EXPECT_EQ(mask_prefix_tree(chain).slices.size(), 3u);
  // Two answers to one question: the second answer needs the question apart from itself.
  const std::vector<PrefixTreeNode> fork = {{-1, 4}, {0, 3}, {0, 5}};
  EXPECT_EQ(mask_prefix_tree(fork).slices.size(), 4u);
}

TEST(MaskPrefixTree, NodesWithoutRowsKeepNothing) {
  // A path of 1,000 runs: between two nodes of it stands one of another tree.
  std::vector<PrefixTreeNode> nodes;
  for (std::int32_t i = 0; i < 1000; ++i) {
    nodes.push_back({i == 0 ? -1 : 2 * i - 2, 1});
    nodes.push_back({-1, 1});
  }
  const Mask mask = mask_prefix_tree(nodes);
  // A copy of the path for each of these would take 16 GB.
  nodes.insert(nodes.end(), 2'000'000, {1998, 0});
  EXPECT_EQ(mask_prefix_tree(nodes), mask);
  nodes.push_back({static_cast<std::int32_t>(nodes.size()) - 1, 1});
  EXPECT_EQ(mask_prefix_tree(nodes).slices.size(), mask.slices.size() + 1001);
}

TEST(MaskPrefixTree, BadInputIsNamed) {
  const auto build = [](const std::vector<PrefixTreeNode>& nodes) {
    return refusal_of([&] { mask_prefix_tree(nodes); });
  };
  EXPECT_EQ(build({{0, 4}}), "nodes[0].parent is 0; allowed: -1 to -1");
  EXPECT_EQ(build({{-1, 4}, {-2, 1}}), "nodes[1].parent is -2; allowed: -1 to 0");
  EXPECT_EQ(build({{-1, 4}, {0, -1}}), "nodes[1].rows is -1; allowed: 0 to 1073741819");
  EXPECT_EQ(build({{-1, kMaxRows}, {0, 1}}), "nodes[1].rows is 1; allowed: 0 to 0");
}

TEST(MaskChunkCausal, OwnChunkCausallyAndSomeBefore) {
  for (RandomStream& random : RandomStreams(400)) {
    const Ints sums = random_documents(random, 3, 14);
    const std::int32_t chunk = random.between(1, 15);
    const std::int32_t num_previous = random.between(-1, 3);
    expect_pairs(mask_chunk_causal(sums, chunk, num_previous), [&](int i, int j) {
      const std::size_t d = document_of(sums, i);
      if (d != document_of(sums, j) || j > i) return false;
      return num_previous < 0 || (i - sums[d]) / chunk - (j - sums[d]) / chunk <= num_previous;
    });
  }
  const Ints one = {0, 100};
  EXPECT_EQ(mask_chunk_causal(one, 10, 0).slices.size(), 10u);
  EXPECT_EQ(mask_chunk_causal(one, 10, 3).slices.size(), 7u);
  EXPECT_EQ(mask_chunk_causal(one, 10, -1).slices.size(), 1u);
  EXPECT_EQ(mask_chunk_causal(Ints{0, kMaxRows}, kMaxRows, kMaxRows).slices.size(), 1u);
  EXPECT_EQ(refusal_of([] {
              mask_chunk_causal(Ints{0, kMaxRows}, 4, 1);
            }),
            "number of slices is 268435454; allowed: at most 16777216");
  EXPECT_EQ(refusal_of([&] { mask_chunk_causal(one, 0, 0); }), "chunk is 0; allowed: 1 or more");
  EXPECT_EQ(refusal_of([&] { mask_chunk_causal(one, 4, -2); }),
            "num_previous is -2; allowed: -1 or more");
}

}  // namespace
}  // namespace magi::testing
