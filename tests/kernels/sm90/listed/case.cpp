// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "cuda/check.hpp"

namespace magi::test {
namespace {

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

/// All blocks in any order.
std::vector<std::int32_t> shuffled_blocks(const ListedCase& test, RandomStream& random) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_blocks(test)));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (std::int32_t i = num_blocks(test) - 1; i > 0; --i) {
    std::swap(blocks[static_cast<std::size_t>(i)],
              blocks[static_cast<std::size_t>(random.between(0, i))]);
  }
  return blocks;
}

/// Makes values of the first columns of keys, for the reference: calls get a view of k.
void join_values(GuardedInputs& inputs) {
  for (std::int64_t row = 0; row < inputs.v.rows(); ++row) {
    for (std::int64_t head = 0; head < inputs.v.heads(); ++head) {
      for (std::int64_t d = 0; d < inputs.v.dim(); ++d) {
        inputs.v.set(row, head, d, inputs.k.get(row, head, d));
      }
    }
  }
}

template <typename Args>
void put_inputs(const ListedCase& test, const GuardedInputs& inputs, Args& args) {
  inputs.put_into(args);
  if (!test.is_latent()) return;
  args.v = args.k;
  args.v.shape[2] = test.dim_v;
}

/// Inputs, of which all rows may have the sinks of the first.
GuardedInputs inputs_of(const ListedCase& test) {
  GuardedInputs inputs(test.shape(), test.seed, test.magnitude);
  if (test.is_latent()) join_values(inputs);
  if (!test.repeats_sinks) return inputs;
  std::vector<double> sinks;
  const std::vector<double> first = values_of(*inputs.sink);
  const auto row = static_cast<std::size_t>(test.num_sinks * test.heads_q);
  for (std::size_t i = 0; i < first.size(); ++i) sinks.push_back(first[i % row]);
  set_heads(*inputs.sink, 0, test.num_sinks, sinks);
  inputs.sink->upload_sync();
  return inputs;
}

ForwardArgs args_of(const ListedCase& test, const GuardedInputs& inputs,
                    const GuardedOutputs& outputs) {
  ForwardArgs args;
  put_inputs(test, inputs, args);
  outputs.put_into(args, test.has_max_logits);
  if (test.repeats_sinks) args.sink.stride[0] = 0;
  return args;
}

void run_sync(const ListedCase& test, const GuardedInputs& inputs, const ListedIndices& lists,
              GuardedOutputs& outputs) {
  attention_forward_cuda(args_of(test, inputs, outputs), lists.view(), test.sm_margin, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.download_sync();
}

/// A forward and the backward of its out and lse.
struct ListedBackward {
  explicit ListedBackward(const ListedCase& of)
      : test(of),
        outputs(of.shape(), of.type),
        dout(of.type, of.rows_q, of.heads_q, of.dim_v, of.layout),
        dlse(DType::Float32, of.rows_q, of.heads_q, 1, of.layout),
        gradients(of.shape(), of.written_type()) {
    RandomStream random(of.seed + 2000);
    fill_random(dout, random, 1.0);
    fill_random(dlse, random, 1.0);
  }

  void run_sync(const GuardedInputs& inputs, const ListedIndices& lists) {
    magi::test::run_sync(test, inputs, lists, outputs);
    BackwardArgs args;
    put_inputs(test, inputs, args);
    gradients.put_into(args);
    if (test.is_latent()) args.dv = {};
    args.sink = args_of(test, inputs, outputs).sink;
    args.out = outputs.out.view();
    args.lse = outputs.lse.view(2);
    args.dout = dout.view();
    if (test.has_dlse) args.dlse = dlse.view(2);
    attention_backward_cuda(args, lists.view(),
                            {.sm_margin = test.sm_margin, .is_fast = test.is_fast}, nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    gradients.download_sync();
  }

  void check_head(const GuardedInputs& inputs, const ListedIndices& lists,
                  std::int32_t kv_head) const {
    const std::int32_t group = test.shape().group(), first = kv_head * group;
    GradientRule::Given given{.dout = heads_of(dout, first, group),
                              .has_joined_rows = test.is_latent()};
    if (test.has_dlse) given.dlse = heads_of(dlse, first, group);
    given.stored = heads_of(outputs.out, first, group);
    const GradientRule rule(inputs.dense(kv_head), lists.counts_of(kv_head), test.type,
                            std::move(given));
    rule.check_head(gradients, kv_head);
  }

  ListedCase test;
  GuardedOutputs outputs;
  GuardedTensor dout, dlse;
  GuardedGradients gradients;
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ListedCase& test) {
  return stream << test.shape() << ", " << test.entries << " entries of " << test.block_keys
                << " keys, float out " << test.has_float_out << ", max_logits "
                << test.has_max_logits << ", distinct " << test.is_distinct
                << (test.repeats_sinks ? ", sinks of one row" : "") << ", fast " << test.is_fast
                << ", seed " << test.seed;
}

ListedIndices::ListedIndices(const ListedCase& test)
    : test_(test), report_(2 * sizeof(std::int64_t)) {
  RandomStream random(test.seed + 1000);
  for (std::int32_t i = 0; i < test.rows_q * test.heads_kv; ++i) {
    std::int32_t length = test.entries;
    if (!test.has_full_lists && random.chance(40)) length = random.between(0, test.entries);
    std::vector<std::int32_t> blocks;
    if (test.is_distinct) blocks = shuffled_blocks(test, random);
    for (std::int32_t at = 0; at < test.entries; ++at) {
      values_.push_back(at < length ? random_entry(test, random) : -1);
      if (!test.is_distinct || !is_block(test, values_.back())) continue;
      values_.back() = blocks.empty() ? -1 : blocks.back();
      if (!blocks.empty()) blocks.pop_back();
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

void ListedIndices::poison_unseen_keys(GuardedInputs& inputs) const {
  for (GuardedTensor* tensor : {&inputs.k, &inputs.v}) {
    for (std::int32_t key = 0; key < tensor->rows(); ++key) {
      if (std::ranges::find(values_, key / test_.block_keys) != values_.end()) continue;
      for (std::int64_t head = 0; head < tensor->heads(); ++head) {
        for (std::int64_t d = 0; d < tensor->dim(); ++d) tensor->set(key, head, d, NAN);
      }
    }
    tensor->upload_sync();
  }
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
  GuardedInputs inputs = inputs_of(test);
  const ListedIndices lists(test);
  GuardedOutputs outputs(test.shape(), test.written_type());
  ASSERT_NO_THROW(run_sync(test, inputs, lists, outputs));
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    outputs.check_head(inputs.dense(head), lists.counts_of(head), head, test.has_max_logits);
  }
  lists.check_report_sync();
  lists.poison_unseen_keys(inputs);
  GuardedOutputs again(test.shape(), test.written_type());
  ASSERT_NO_THROW(run_sync(test, inputs, lists, again));
  expect_same_outputs(outputs, again);
}

void check_listed_backward(const ListedCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  GuardedInputs inputs = inputs_of(test);
  const ListedIndices lists(test);
  ListedBackward first(test);
  ASSERT_NO_THROW(first.run_sync(inputs, lists));
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    first.check_head(inputs, lists, head);
  }
  EXPECT_TRUE(first.gradients.has_whole_guards()) << "a gradient was written outside its elements";
  lists.poison_unseen_keys(inputs);
  ListedBackward again(test);
  ASSERT_NO_THROW(again.run_sync(inputs, lists));
  if (!test.is_fast) return expect_same_gradients(first.gradients, again.gradients);
  expect_same_bits(first.gradients.dq, again.gradients.dq);
  for (const GuardedTensor* sums : {&again.gradients.dk, &again.gradients.dv}) {
    if (test.is_latent() && sums == &again.gradients.dv) continue;  // which dk holds
    const std::vector<double> values = values_of(*sums);
    EXPECT_TRUE(std::ranges::none_of(values, [](double x) { return std::isnan(x); }))
        << "a key that no list names reached a gradient";
  }
  if (test.num_sinks > 0) expect_same_bits(*first.gradients.dsink, *again.gradients.dsink);
}

}  // namespace magi::test
