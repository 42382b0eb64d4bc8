// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cuda/check.hpp"
#include "kernels/sm90/listed/tensors.hpp"

namespace magi::test {
namespace {

constexpr double kLseTolerance = 2e-4;  ///< relative to max(1, |lse|)

std::int32_t num_blocks(const ListedCase& test) {
  return (test.rows_k + test.block_keys - 1) / test.block_keys;
}

bool is_block(const ListedCase& test, std::int32_t entry) {
  return entry >= 0 && entry < num_blocks(test);
}

std::int32_t random_entry(const ListedCase& test, RandomStream& random) {
  if (test.rows_k == 0) return random.between(-2, 1);
  if (test.has_full_lists) return random.between(0, num_blocks(test) - 1);
  if (random.chance(10)) return -1;
  if (!random.chance(2)) return random.between(0, num_blocks(test) - 1);
  const std::array<std::int32_t, 4> bad = {-2, num_blocks(test),
                                           std::numeric_limits<std::int32_t>::max(),
                                           std::numeric_limits<std::int32_t>::min()};
  return bad[static_cast<std::size_t>(random.between(0, 3))];
}

/// Outputs, poisoned with NaN from the start.
struct Outputs {
  explicit Outputs(const ListedCase& test)
      : out(test.has_float_out ? DType::Float32 : test.type, test.rows_q, test.heads_q, test.dim_v,
            test.layout),
        lse(DType::Float32, test.rows_q, test.heads_q, 1, test.layout),
        max_logits(DType::Float32, test.heads_q, 1, 1) {
    for (auto* tensor : {&out, &lse, &max_logits}) tensor->upload_sync();
  }

  GuardedTensor out, lse, max_logits;
};

void run_sync(const ListedCase& test, const ListedTensors& tensors, const ListedIndices& lists,
              Outputs& outputs) {
  ForwardArgs args;
  args.q = tensors.q.view();
  args.k = tensors.k.view();
  args.v = tensors.v.view();
  args.out = outputs.out.view();
  args.lse = outputs.lse.view(2);
  if (test.has_max_logits) args.max_logits = outputs.max_logits.view(1);
  if (tensors.sink) args.sink = sink_view(*tensors.sink, test.params.sink_layout);
  args.params = test.params;
  attention_forward_cuda(args, lists.view(), test.sm_margin, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (auto* tensor : {&outputs.out, &outputs.lse, &outputs.max_logits}) tensor->download_sync();
}

double unit_in_last_place(double value, DType type) {
  if (value == 0.0) return 0.0;
  return std::ldexp(1.0, std::ilogb(value) - (type == DType::BFloat16 ? 7 : 10));
}

void check_value(double seen, double expected, const char* what, std::size_t place) {
  if (std::isinf(expected)) {
    ASSERT_EQ(seen, expected) << what << " " << place;
  } else {
    ASSERT_LE(std::abs(seen - expected), kLseTolerance * std::max(1.0, std::abs(expected)))
        << what << " " << place << " is " << seen << ", expected " << expected;
  }
}

/// By the rule of results in 16 bits: twice what a plain computation is off, and a unit more.
void check_out(const ListedCase& test, const std::vector<double>& seen,
               const reference::DenseOutput& truth, const reference::DenseOutput& plain) {
  double largest = 0.0, plain_error = 0.0;
  for (std::size_t i = 0; i < truth.out.size(); ++i) {
    largest = std::max(largest, std::abs(truth.out[i]));
    plain_error = std::max(plain_error, std::abs(plain.out[i] - truth.out[i]));
  }
  const double bound = 2.0 * plain_error + unit_in_last_place(largest, test.type);
  for (std::size_t i = 0; i < truth.out.size(); ++i) {
    ASSERT_LE(std::abs(seen[i] - truth.out[i]), bound)
        << "out " << i << " is " << seen[i] << ", expected " << truth.out[i];
  }
}

void check_head(const ListedCase& test, const ListedTensors& tensors, const ListedIndices& lists,
                const Outputs& outputs, std::int32_t kv_head) {
  SCOPED_TRACE("kv head " + std::to_string(kv_head));
  const std::int32_t group = test.heads_q / test.heads_kv;
  reference::DenseInput in = input_of(test, tensors, kv_head);
  const reference::RowCounts counts = lists.counts_of(kv_head);
  const reference::DenseOutput truth = dense_forward(in, counts);
  in.rounding = reference::rounding_of(test.type);
  in.is_rounding_scores = true;
  check_out(test, heads_of(outputs.out, kv_head * group, group), truth, dense_forward(in, counts));
  const std::vector<double> lse = heads_of(outputs.lse, kv_head * group, group);
  for (std::size_t i = 0; i < lse.size(); ++i) check_value(lse[i], truth.lse[i], "lse", i);
  if (!test.has_max_logits) return;
  for (std::int32_t i = 0; i < group; ++i) {
    check_value(outputs.max_logits.get(kv_head * group + i, 0, 0),
                truth.max_logits[static_cast<std::size_t>(i)], "max_logits of head",
                static_cast<std::size_t>(i));
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ListedCase& test) {
  return stream << dtype_name(test.type) << ", " << test.rows_q << " x " << test.rows_k
                << " rows, heads " << test.heads_q << ":" << test.heads_kv << ", dims "
                << test.dim_qk << "/" << test.dim_v << ", " << test.entries << " entries of "
                << test.block_keys << " keys, layout " << static_cast<int>(test.layout)
                << ", float out " << test.has_float_out << ", max_logits " << test.has_max_logits
                << ", sinks " << test.num_sinks << (test.repeats_sinks ? " of one row" : "")
                << ", softcap " << test.params.softcap << ", fast " << test.is_fast << ", seed "
                << test.seed;
}

ListedIndices::ListedIndices(const ListedCase& test)
    : test_(test), report_(2 * sizeof(std::int64_t)) {
  RandomStream random(test.seed + 1000);
  for (std::int32_t i = 0; i < test.rows_q * test.heads_kv; ++i) {
    std::int32_t length = test.entries;
    if (!test.has_full_lists && random.chance(40)) length = random.between(0, test.entries);
    for (std::int32_t at = 0; at < test.entries; ++at) {
      values_.push_back(at < length ? random_entry(test, random) : -1);
    }
  }
  device_ = to_device_sync(std::span<const std::int32_t>(values_));
}

KeyLists ListedIndices::view() const {
  const std::int64_t entries = test_.entries;
  KeyLists lists{.block_keys = test_.block_keys};
  lists.indices = {device_.data(),
                   DType::Int32,
                   0,
                   3,
                   {test_.rows_q, test_.heads_kv, entries},
                   {test_.heads_kv * entries, entries, 1}};
  lists.report = {report_.data(), DType::Int64, 0, 1, {2}, {1}};
  return lists;
}

std::span<const std::int32_t> ListedIndices::list(std::int32_t row, std::int32_t kv_head) const {
  const auto entries = static_cast<std::size_t>(test_.entries);
  return std::span(values_).subspan(
      static_cast<std::size_t>(row * test_.heads_kv + kv_head) * entries, entries);
}

reference::RowCounts ListedIndices::counts_of(std::int32_t kv_head) const {
  return [this, kv_head](std::int32_t row, std::span<std::int32_t> counts) {
    std::ranges::fill(counts, 0);
    for (const std::int32_t entry : list(row, kv_head)) {
      if (!is_block(test_, entry)) continue;
      const std::int32_t begin = entry * test_.block_keys;
      const std::int32_t end = std::min(begin + test_.block_keys, test_.rows_k);
      for (std::int32_t key = begin; key < end; ++key) ++counts[static_cast<std::size_t>(key)];
    }
  };
}

bool ListedIndices::is_seen(std::int32_t key) const {
  return std::ranges::find(values_, key / test_.block_keys) != values_.end();
}

void ListedIndices::check_report_sync() const {
  std::array<std::int64_t, 2> wanted = {0, -1};
  for (std::size_t i = values_.size(); i > 0; --i) {
    const std::int32_t entry = values_[i - 1];
    if (entry == -1 || is_block(test_, entry)) continue;
    ++wanted[0];
    wanted[1] = static_cast<std::int64_t>(i - 1);
  }
  std::array<std::int64_t, 2> seen{};
  cuda_check(cudaMemcpy(seen.data(), report_.data(), sizeof seen, cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  EXPECT_EQ(seen, wanted) << "report";
}

void check_listed_forward(const ListedCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  ListedTensors tensors(test);
  const ListedIndices lists(test);
  Outputs outputs(test);
  ASSERT_NO_THROW(run_sync(test, tensors, lists, outputs));
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    check_head(test, tensors, lists, outputs, head);
  }
  lists.check_report_sync();
  EXPECT_TRUE(outputs.out.has_whole_guards()) << "out was written outside its elements";
  EXPECT_TRUE(outputs.lse.has_whole_guards()) << "lse was written outside its elements";
  tensors.poison_unseen_keys(lists);
  Outputs again(test);
  ASSERT_NO_THROW(run_sync(test, tensors, lists, again));
  expect_same_bits(outputs.out, again.out);
  expect_same_bits(outputs.lse, again.lse);
  if (test.has_max_logits) expect_same_bits(outputs.max_logits, again.max_logits);
}

}  // namespace magi::test
