// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/masks.hpp"

// What queries that see no key and keys that no query sees may hold: anything at all.
namespace magi::test {
namespace {

enum class Slices : std::uint8_t { Fast, Deterministic, OnDevice };

/// Where the rows are that nobody sees.
struct Gaps {
  const char* name;
  std::int32_t rows;
  TypedRanges ranges;
};

constexpr std::int32_t kFull = static_cast<std::int32_t>(MaskType::Full);
constexpr std::int32_t kCausal = static_cast<std::int32_t>(MaskType::Causal);

/// Documents one after the other, of `rows` rows in all.
Gaps documents(const char* name, std::int32_t rows, const std::vector<Range>& ranges) {
  Gaps gaps{.name = name, .rows = rows, .ranges = {}};
  for (const Range& range : ranges) gaps.ranges.append(range, range, kCausal);
  return gaps;
}

std::vector<Gaps> all_gaps() {
  std::vector<Gaps> all{
      documents("tail", 600, {{0, 170}, {170, 511}}),
      documents("tail of whole tiles", 640, {{0, 512}}),
      documents("head", 300, {{37, 170}, {170, 300}}),
      documents("between", 600, {{0, 170}, {200, 423}, {430, 600}}),
      documents("short", 300, {{1, 4}, {5, 9}, {12, 40}, {41, 42}, {60, 61}, {63, 66}, {130, 190}}),
  };
  Gaps more{.name = "keys beside queries", .rows = 500, .ranges = {}};
  more.ranges.append({0, 150}, {300, 447}, kFull);
  more.ranges.append({0, 150}, {20, 25}, kFull);
  more.ranges.append({170, 400}, {100, 180}, kCausal);  // the first rows see nothing
  all.push_back(std::move(more));
  return all;
}

void poison(GuardedTensor& tensor, const std::vector<bool>& seen) {
  constexpr std::array kValues{std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()};
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    if (seen[static_cast<std::size_t>(row)]) continue;
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        tensor.set(row, head, d, kValues[static_cast<std::size_t>(row + head + d) % 2]);
      }
    }
  }
  tensor.upload_sync();
}

void run_sync(const BackwardCase& test, Slices slices, const TypedRanges& ranges,
              const BackwardInputs& inputs, BackwardOutputs& outputs) {
  if (slices != Slices::OnDevice) return run_backward_sync(test, inputs, outputs);
  BackwardArgs args = inputs.args(test);
  outputs.put_into(args);
  args.slices = {};
  const DeviceBackwardTuning tuning{.packed_heads = test.tuning.packed_heads,
                                    .backend = test.backend};
  const GuardedWorkspace workspace(backward_workspace_bytes(args, ranges.count(), tuning));
  const DeviceRanges device(ranges);
  attention_backward_cuda(args, device.view(), workspace.view(), tuning, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.download_sync();
}

/// Finite, and 0 in rows that are not seen.
void expect_clean(const GuardedTensor& gradient, const std::vector<bool>& seen, const char* name) {
  for (std::int64_t row = 0; row < gradient.rows(); ++row) {
    for (std::int64_t head = 0; head < gradient.heads(); ++head) {
      for (std::int64_t d = 0; d < gradient.dim(); ++d) {
        const double value = gradient.get(row, head, d);
        ASSERT_TRUE(seen[static_cast<std::size_t>(row)] ? std::isfinite(value) : value == 0.0)
            << name << " row " << row << " head " << head << " dim " << d << " is " << value;
      }
    }
  }
}

class BackwardUnseenTest : public GpuTest,
                           public ::testing::WithParamInterface<
                               std::tuple<std::int32_t, Slices, std::int32_t, const char*>> {};

TEST_P(BackwardUnseenTest, RowsThatNobodySeesMayBeAnything) {
  const auto [dim, slices, packed_heads, backend] = GetParam();
  for (const Gaps& gaps : all_gaps()) {
    BackwardCase test;
    test.backend = backend;
    test.heads_q = 8;
    test.num_sinks = packed_heads == 1 ? 1 : 0;
    set_instance_dims(test, dim);
    test.mask = {gaps.rows, gaps.rows, gaps.ranges.bands(gaps.rows, gaps.rows)};
    test.tuning.packed_heads = packed_heads;
    test.tuning.is_deterministic = slices == Slices::Deterministic;
    BackwardInputs inputs(test);
    BackwardOutputs expected(test);
    run_sync(test, slices, gaps.ranges, inputs, expected);
    const testing::Seen seen(test.mask);
    const auto judge = make_judge(test, inputs);
    if (packed_heads == 1) judge(expected, Gradients::All);
    const std::array<std::pair<const char*, GuardedTensor*>, 4> tensors{
        {{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}, {"dout", &inputs.dout}}};
    for (const auto& [name, tensor] : tensors) {
      SCOPED_TRACE(::testing::Message() << test << ", " << gaps.name << ", " << name);
      const std::vector<double> before = values_of(*tensor);
      poison(*tensor, tensor == &inputs.q || tensor == &inputs.dout ? seen.queries : seen.keys);
      BackwardOutputs outputs(test);
      run_sync(test, slices, gaps.ranges, inputs, outputs);
      expect_clean(outputs.dq, seen.queries, "dq");
      expect_clean(outputs.dk, seen.keys, "dk");
      expect_clean(outputs.dv, seen.keys, "dv");
      expect_same_but_dq(outputs, expected);
      if (slices != Slices::Fast) expect_same_bits(outputs.dq, expected.dq);
      set_heads(*tensor, 0, tensor->heads(), before);
      tensor->upload_sync();
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dims, BackwardUnseenTest,
    ::testing::Combine(::testing::Values(64, 128, 192, 256),
                       ::testing::Values(Slices::Fast, Slices::Deterministic, Slices::OnDevice),
                       ::testing::Values(1, 4, 8), ::testing::Values("", "mma")));

}  // namespace
}  // namespace magi::test
