// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/listed_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_case.hpp"
#include "support/random_streams.hpp"

namespace magi::testing {
namespace {

using reference::DenseGradients;
using reference::DenseInput;
using reference::DenseOutput;

/// An attention case whose mask is a list for each query and kv head.
struct ListedCase {
  AttentionCase attention;
  std::vector<std::int32_t> indices;  ///< [rows_q, heads_kv, entries]
  std::int32_t entries = 0;
  std::int32_t block_keys = 1;

  KeyLists lists() const {
    const DenseInput& in = attention.dense;
    return {.indices = contiguous_view(const_cast<std::int32_t*>(indices.data()), DType::Int32,
                                       {in.rows_q, in.heads_kv, entries}),
            .block_keys = block_keys,
            .report = {}};
  }
  /// How often the heads of one kv head see each key, from the definition.
  reference::RowCounts counts_of(std::int32_t kv_head) const {
    return [this, kv_head](std::int32_t i, std::span<std::int32_t> counts) {
      std::fill(counts.begin(), counts.end(), 0);
      const auto first = (i * attention.dense.heads_kv + kv_head) * entries;
      for (std::int32_t at = first; at < first + entries; ++at) {
        const std::int64_t entry = indices[static_cast<std::size_t>(at)];
        for (std::int64_t key = 0; key < attention.dense.rows_k && entry >= 0; ++key) {
          if (key / block_keys == entry) ++counts[static_cast<std::size_t>(key)];
        }
      }
    };
  }
};

/// Keys come twice, in any order; there are empty lists, gaps and blocks that do not exist.
ListedCase random_listed_case(RandomStream& random, DType dtype) {
  const RandomMaskOptions options{.max_rows_q = 40, .max_rows_k = 300, .max_slices = 1};
  ListedCase test{.attention = random_case(random, dtype, options)};
  test.attention.mask.slices.clear();
  const DenseInput& in = test.attention.dense;
  test.entries = random.chance(10) ? 0 : random.between(1, random.chance(30) ? 200 : 12);
  test.block_keys = random.chance(50) ? 1 : random.between(2, 40);
  const std::int32_t num_blocks = (in.rows_k + test.block_keys - 1) / test.block_keys;
  for (std::int32_t list = 0; list < in.rows_q * in.heads_kv; ++list) {
    const bool is_empty = random.chance(10);
    for (std::int32_t at = 0; at < test.entries; ++at) {
      test.indices.push_back(is_empty || random.chance(20) ? -1
                                                           : random.between(-3, num_blocks + 2));
    }
  }
  return test;
}

/// The part of an array [rows, heads, dim] that belongs to heads [begin, begin + count).
std::vector<double> heads_of(const std::vector<double>& whole, std::int32_t heads,
                             std::int32_t begin, std::int32_t count, std::int32_t dim) {
  std::vector<double> part;
  for (std::size_t row = 0; row < whole.size(); row += static_cast<std::size_t>(heads * dim)) {
    const auto from = whole.begin() + static_cast<std::ptrdiff_t>(row) + begin * dim;
    part.insert(part.end(), from, from + count * dim);
  }
  return part;
}

/// The case of one kv head, as the reference takes it.
AttentionCase case_of_head(const AttentionCase& test, std::int32_t kv_head) {
  AttentionCase part = test;
  const DenseInput& in = test.dense;
  const std::int32_t group = in.heads_q / in.heads_kv, first = kv_head * group;
  part.dense.heads_q = group;
  part.dense.heads_kv = 1;
  part.dense.q = heads_of(in.q, in.heads_q, first, group, in.dim_qk);
  part.dense.k = heads_of(in.k, in.heads_kv, kv_head, 1, in.dim_qk);
  part.dense.v = heads_of(in.v, in.heads_kv, kv_head, 1, in.dim_v);
  part.dense.sink = heads_of(in.sink, in.heads_q, first, group, 1);
  part.dout = heads_of(test.dout, in.heads_q, first, group, in.dim_v);
  part.dlse = heads_of(test.dlse, in.heads_q, first, group, 1);
  return part;
}

struct Results {
  HostArray out, lse, max_logits, dq, dk, dv, dsink;
};

Results make_results(const AttentionCase& test, const std::vector<std::int64_t>& sinks) {
  const DenseInput& in = test.dense;
  Results r{.out = {test.result_dtype, {in.rows_q, in.heads_q, in.dim_v}, test.layout},
            .lse = {test.real(), {in.rows_q, in.heads_q}, test.layout},
            .max_logits = {test.real(), {in.heads_q}, test.layout},
            .dq = {test.result_dtype, {in.rows_q, in.heads_q, in.dim_qk}, test.layout},
            .dk = {test.result_dtype, {in.rows_k, in.heads_kv, in.dim_qk}, test.layout},
            .dv = {test.result_dtype, {in.rows_k, in.heads_kv, in.dim_v}, test.layout},
            .dsink = {}};
  if (in.num_sinks > 0) r.dsink = HostArray(test.real(), sinks, test.layout);
  return r;
}

Results run(const ListedCase& listed, cpu::Isa isa = cpu::Isa::Best) {
  const AttentionCase& test = listed.attention;
  const DenseInput& in = test.dense;
  const bool has_sink = in.num_sinks > 0;
  HostArray q(test.dtype, {in.rows_q, in.heads_q, in.dim_qk}, test.layout, in.q);
  HostArray k(test.dtype, {in.rows_k, in.heads_kv, in.dim_qk}, test.layout, in.k);
  HostArray v(test.dtype, {in.rows_k, in.heads_kv, in.dim_v}, test.layout, in.v);
  HostArray dout(test.dtype, {in.rows_q, in.heads_q, in.dim_v}, test.layout, test.dout);
  HostArray dlse, sink;
  std::vector<std::int64_t> sinks{in.num_sinks, in.heads_q};
  if (in.params.sink_layout == SinkLayout::RowSinkHead) sinks.insert(sinks.begin(), in.rows_q);
  if (has_sink) sink = HostArray(test.real(), sinks, test.layout, in.sink);
  const bool has_dlse = !test.dlse.empty();
  if (has_dlse) dlse = HostArray(test.real(), {in.rows_q, in.heads_q}, test.layout, test.dlse);
  Results r = make_results(test, sinks);
  const TensorView none;
  const TensorView sink_view = has_sink ? sink.view() : none;
  cpu::attention_forward({.q = q.view(),
                          .k = k.view(),
                          .v = v.view(),
                          .slices = {},
                          .sink = sink_view,
                          .out = r.out.view(),
                          .lse = r.lse.view(),
                          .max_logits = r.max_logits.view(),
                          .params = in.params},
                         listed.lists(), isa);
  cpu::attention_backward({.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .slices = {},
                           .out = r.out.view(),
                           .lse = r.lse.view(),
                           .dout = dout.view(),
                           .dlse = has_dlse ? dlse.view() : none,
                           .sink = sink_view,
                           .dq = r.dq.view(),
                           .dk = r.dk.view(),
                           .dv = r.dv.view(),
                           .dsink = has_sink ? r.dsink.view() : none,
                           .params = in.params},
                          listed.lists(), isa);
  for (const HostArray* array : {&r.out, &r.lse, &r.max_logits, &r.dq, &r.dk, &r.dv}) {
    EXPECT_EQ(array->num_spoiled_gaps(), 0);
  }
  return r;
}

void expect_close(const ListedCase& listed, const Results& results) {
  const DenseInput& in = listed.attention.dense;
  const std::int32_t group = in.heads_q / in.heads_kv;
  for (std::int32_t head = 0; head < in.heads_kv; ++head) {
    SCOPED_TRACE("kv head " + std::to_string(head));
    AttentionCase part = case_of_head(listed.attention, head);
    part.row_counts = listed.counts_of(head);
    const auto of_q = [&](const HostArray& array, std::int32_t dim) {
      return heads_of(array.values(), in.heads_q, head * group, group, dim);
    };
    const auto of_k = [&](const HostArray& array, std::int32_t dim) {
      return heads_of(array.values(), in.heads_kv, head, 1, dim);
    };
    expect_forward_close(
        part, {of_q(results.out, in.dim_v), of_q(results.lse, 1), of_q(results.max_logits, 1)});
    expect_backward_close(
        part, dense_forward(part.dense, part.counts()),
        {of_q(results.dq, in.dim_qk), of_k(results.dk, in.dim_qk), of_k(results.dv, in.dim_v),
         in.num_sinks > 0 ? of_q(results.dsink, 1) : std::vector<double>{}});
  }
}

/// A case of these sizes, as many entries a list, and any of the keys in each entry.
ListedCase drawn_case(RandomStream& random, DType type, const reference::DenseInput& sizes,
                      std::int32_t entries, Range keys) {
  ListedCase test;
  test.attention.dtype = test.attention.result_dtype = type;
  test.attention.dense = sizes;
  test.attention.mask = {sizes.rows_q, sizes.rows_k, {}};
  draw_values(random, test.attention);
  test.entries = entries;
  for (std::int32_t i = 0; i < sizes.rows_q * sizes.heads_kv * entries; ++i) {
    test.indices.push_back(random.between(keys.begin, keys.end - 1));
  }
  return test;
}

TEST(CpuListedKeys, RandomListsMatchTheReference) {
  for (RandomStream& random : RandomStreams(120)) {
    const ListedCase test = random_listed_case(random, any_float_type(random));
    SCOPED_TRACE(test.attention.describe());
    expect_close(test, run(test, random.chance(33) ? cpu::Isa::Portable : cpu::Isa::Best));
  }
}

/// More heads per kv head than a block of columns holds, and more keys than an item owns.
TEST(CpuListedKeys, ManyHeadsAndKeysMatchTheReference) {
  RandomStream random(7);
  const ListedCase test = drawn_case(
      random, DType::Float64,
      {.rows_q = 3, .rows_k = 2500, .heads_q = 200, .heads_kv = 1, .dim_qk = 12, .dim_v = 5}, 300,
      {0, 2500});
  expect_close(test, run(test));
}

TEST(CpuListedKeys, ResultsDoNotDependOnThreads) {
  RandomStream random(11);
  const ListedCase test = drawn_case(
      random, DType::Float32,
      {.rows_q = 300, .rows_k = 3000, .heads_q = 8, .heads_kv = 2, .dim_qk = 32, .dim_v = 32}, 64,
      {0, 3000});
  const Results several = run(test);
  const std::int32_t before = cpu::set_num_threads(1);
  const Results one = run(test);
  cpu::set_num_threads(before);
  for (const auto array :
       {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
    EXPECT_EQ((several.*array).values(), (one.*array).values());
  }
}

/// NaN in keys that no list names reaches no result.
TEST(CpuListedKeys, WhatIsNotListedIsNotRead) {
  RandomStream random(13);
  ListedCase test =
      drawn_case(random, DType::Float64,
                 {.rows_q = 10, .rows_k = 50, .heads_q = 4, .heads_kv = 2, .dim_qk = 8, .dim_v = 8},
                 6, {10, 31});
  const Results clean = run(test);
  for (const std::size_t key : {0, 9, 31, 49}) {
    for (std::size_t i = key * 16; i < (key + 1) * 16; ++i) {
      test.attention.dense.k[i] = std::numeric_limits<double>::quiet_NaN();
      test.attention.dense.v[i] = std::numeric_limits<double>::infinity();
    }
  }
  const Results dirty = run(test);
  for (const auto array :
       {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv}) {
    EXPECT_EQ((clean.*array).values(), (dirty.*array).values());
  }
}

TEST(CpuListedKeys, BadEntriesAreCountedAndTheFirstIsNamed) {
  std::vector<std::int32_t> indices{0, 1, -1, 2, 3, -2, 2147483647, 1};
  const KeyLists lists{.indices = contiguous_view(indices.data(), DType::Int32, {2, 1, 4}),
                       .block_keys = 4,
                       .report = {}};
  const cpu::ListTotals totals = cpu::count_lists(lists, 10);
  EXPECT_EQ(totals.pairs, 4 + 4 + 2 + 4);
  EXPECT_EQ(totals.num_bad, 3);
  EXPECT_EQ(totals.first_bad, 4);
}

}  // namespace
}  // namespace magi::testing
