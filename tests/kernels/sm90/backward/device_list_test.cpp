// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"

// Whole calls of the backward whose slices are in device memory, and graphs of them.
namespace magi::test {
namespace {

/// Parameter: the backend; empty: the first that serves the GPU.
class BackwardDeviceListTest : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  BackwardCase base() const {
    BackwardCase test;
    test.backend = GetParam();
    return test;
  }
};

BackwardCase case_of(RandomStream& random, BackwardCase test) {
  test.heads_kv = random.between(1, 2);
  test.heads_q = test.heads_kv << random.between(0, 3);
  test.dim_qk = test.dim_v = 64 << random.between(0, 2);
  test.num_sinks = random.chance(30) ? 1 : 0;
  test.has_dlse = random.chance(30);
  test.has_float_gradients = random.chance(30);
  test.tuning.is_plain = true;
  test.tuning.packed_heads = random.chance(30) ? 1 : 0;
  test.seed = random();
  return test;
}

/// Random slices, or packed documents: causal ones, or with one key for each row.
TypedRanges ranges_of(RandomStream& random, std::int32_t rows_q, std::int32_t rows_k,
                      std::int32_t count) {
  if (random.chance(50)) return random_ranges(random, rows_q, rows_k, count);
  TypedRanges ranges;
  const std::int32_t rows = std::min(rows_q, rows_k);
  const std::int32_t type = random.chance(30) ? 3 : 1;
  for (std::int32_t begin = 0; ranges.count() < count;) {
    const std::int32_t end = std::min(begin + random.between(1, 2 * rows / count + 1), rows);
    ranges.append({begin, end}, {begin, end}, type);
    begin = end;
  }
  return ranges;
}

/// Masks of the kinds that lists are made for in different ways: even, uneven, narrow, narrow with
/// few keys that all queries see, and documents.
std::vector<TypedRanges> masks_of_all_kinds(std::int32_t rows) {
  constexpr std::int32_t kWindow = 40;
  const Range all{0, rows};
  std::vector<TypedRanges> masks(5);
  masks[0].append(all, all, 0);
  masks[1].append(all, all, 1);
  masks[2].append({0, kWindow}, {0, kWindow}, 1);
  masks[2].append({kWindow, rows}, all, 3);
  masks[3].append({0, 8}, all, 0);
  masks[3].append({8, rows}, {0, 8}, 0);
  masks[3].append({8, 8 + kWindow}, {8, 8 + kWindow}, 1);
  masks[3].append({8 + kWindow, rows}, {8, rows}, 3);
  for (std::int32_t begin = 0; begin < rows; begin += 90) {
    const Range document{begin, std::min(begin + 90, rows)};
    masks[4].append(document, document, 1);
  }
  return masks;
}

/// A call with a poisoned workspace of its own.
class DeviceCall {
 public:
  DeviceCall(const BackwardCase& test, const BackwardInputs& inputs, std::int64_t num_slices,
             std::int64_t capacity = 0)
      : outputs_(test),
        args_(inputs.args(test)),
        tuning_{.packed_heads = test.tuning.packed_heads,
                .is_deterministic = test.tuning.is_deterministic,
                .record_capacity = capacity,
                .backend = test.backend},
        workspace_(backward_workspace_bytes(args_, num_slices, tuning_)) {
    outputs_.put_into(args_);
    args_.slices = {};
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void enqueue(const DeviceRanges& ranges, cudaStream_t stream) const {
    attention_backward_cuda(args_, ranges.view(), workspace_.view(), tuning_, stream);
  }
  const BackwardOutputs& outputs_sync() {
    outputs_.download_sync();
    EXPECT_TRUE(workspace_.has_whole_guards());
    return outputs_;
  }
  DeviceListReport report() const {
    return read_backward_list_report_sync(workspace_.view(), nullptr);
  }

 private:
  BackwardOutputs outputs_;
  BackwardArgs args_;
  DeviceBackwardTuning tuning_;
  GuardedWorkspace workspace_;
};

TEST_P(BackwardDeviceListTest, GivesTheBitsOfTheHostsPlainList) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    BackwardCase test = case_of(random, base());
    const std::int32_t rows_q = random.between(1, 400), rows_k = random.between(1, 500);
    const TypedRanges ranges = ranges_of(random, rows_q, rows_k, random.between(1, 30));
    test.mask = {rows_q, rows_k, ranges.bands(rows_q, rows_k)};
    const BackwardInputs inputs(test);
    BackwardOutputs host(test);
    run_backward_sync(test, inputs, host);
    DeviceCall call(test, inputs, ranges.count());
    call.enqueue(DeviceRanges(ranges), nullptr);
    expect_same_gradients(call.outputs_sync(), host);
    ASSERT_FALSE(call.report().is_overflowing);
    ASSERT_FALSE(call.report().first_bad);
    if (seed % 4 == 0) make_judge(test, inputs)(call.outputs_sync(), Gradients::All);
  }
}

TEST_P(BackwardDeviceListTest, GivesTheGradientsOfAllKindsOfMasks) {
  constexpr std::int32_t kRows = 900;
  BackwardCase test = base();
  test.heads_q = 4;
  test.dim_qk = test.dim_v = 64;
  test.tuning.is_plain = true;
  int kind = 0;
  for (const TypedRanges& ranges : masks_of_all_kinds(kRows)) {
    test.mask = {kRows, kRows, ranges.bands(kRows, kRows)};
    const BackwardInputs inputs(test);
    const auto judge = make_judge(test, inputs);
    for (const std::int32_t packed_heads : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << "mask " << kind << ", packed heads " << packed_heads);
      test.tuning.packed_heads = packed_heads;
      test.tuning.is_deterministic = true;
      BackwardOutputs host(test);
      run_backward_sync(test, inputs, host);
      DeviceCall repeatable(test, inputs, ranges.count());
      repeatable.enqueue(DeviceRanges(ranges), nullptr);
      expect_same_gradients(repeatable.outputs_sync(), host);
      test.tuning.is_deterministic = false;
      DeviceCall fast(test, inputs, ranges.count());
      fast.enqueue(DeviceRanges(ranges), nullptr);
      judge(fast.outputs_sync(), Gradients::All);
    }
    ++kind;
  }
}

/// Whether two sums of the same values in another order are alike, up to their rounding.
void expect_close(const GuardedTensor& tensor, const GuardedTensor& other) {
  double largest = 0.0;
  double error = 0.0;
  for (std::int64_t row = 0; row < other.rows(); ++row) {
    for (std::int64_t head = 0; head < other.heads(); ++head) {
      for (std::int64_t d = 0; d < other.dim(); ++d) {
        const double value = other.get(row, head, d);
        largest = std::max(largest, std::abs(value));
        const double difference = std::abs(tensor.get(row, head, d) - value);
        error = std::isnan(difference) ? INFINITY : std::max(error, difference);
      }
    }
  }
  EXPECT_LE(error, largest / 64.0);
}

/// A graph whose masks have sums in order and without.
TEST_P(BackwardDeviceListTest, ReplaysAGraphWithOtherKindsOfMasks) {
  constexpr std::int32_t kRows = 900;
  constexpr std::int32_t kSlices = 10;
  BackwardCase test = base();
  test.heads_q = 4;
  test.dim_qk = test.dim_v = 64;
  test.tuning = {.packed_heads = 1, .is_deterministic = false};
  test.mask = {kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}};
  const BackwardInputs of_all(test);
  std::vector<TypedRanges> masks = masks_of_all_kinds(kRows);
  for (TypedRanges& ranges : masks) {
    while (ranges.count() < kSlices) ranges.append({0, 0}, {0, 0}, 0);
  }
  DeviceRanges device(masks.front());
  DeviceCall call(test, of_all, kSlices);
  const Stream stream;
  const Graph graph(stream.handle(), [&] { call.enqueue(device, stream.handle()); });
  for (int round = 0; round < 15; ++round) {
    const auto kind = static_cast<std::size_t>(4 * round) % masks.size();
    SCOPED_TRACE(::testing::Message() << "round " << round << ", mask " << kind);
    BackwardCase other = test;
    other.mask.slices = masks[kind].bands(kRows, kRows);
    other.tuning.is_plain = true;
    device.upload_sync(masks[kind]);
    graph.launch(nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    BackwardOutputs host(other);
    run_backward_sync(other, of_all, host);
    expect_same_but_dq(call.outputs_sync(), host);
    expect_close(call.outputs_sync().dq, host.dq);
  }
}

TEST_P(BackwardDeviceListTest, ReplaysAGraphWithOtherSlices) {
  RandomStream random(3);
  BackwardCase test = base();
  test.heads_q = 8;
  test.tuning.is_plain = true;
  constexpr std::int32_t kRows = 500;
  constexpr std::int32_t kSlices = 12;
  test.mask = {kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}};
  const BackwardInputs inputs(test);  // for all masks: one set of tensors, out and lse of all keys
  DeviceRanges device(ranges_of(random, kRows, kRows, kSlices));
  DeviceCall call(test, inputs, kSlices);
  const Stream stream;
  const Graph graph(stream.handle(), [&] { call.enqueue(device, stream.handle()); });
  for (int round = 0; round < 64; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const TypedRanges ranges = ranges_of(random, kRows, kRows, kSlices);
    BackwardCase other = test;
    other.mask.slices = ranges.bands(kRows, kRows);
    BackwardOutputs host(other);
    run_backward_sync(other, inputs, host);
    device.upload_sync(ranges);
    graph.launch(nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    expect_same_gradients(call.outputs_sync(), host);
  }
}

bool is_void(const GuardedTensor& tensor) {
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        if (!std::isnan(tensor.get(row, head, d))) return false;
      }
    }
  }
  return true;
}

TEST_P(BackwardDeviceListTest, GradientsAreVoidBeyondTheCapacity) {
  RandomStream random(4);
  BackwardCase test = base();
  test.tuning.is_plain = true;
  const TypedRanges ranges = random_ranges(random, 600, 600, 60);
  test.mask = {600, 600, ranges.bands(600, 600)};
  const BackwardInputs inputs(test);
  DeviceCall call(test, inputs, ranges.count(), 20);
  call.enqueue(DeviceRanges(ranges), nullptr);
  const BackwardOutputs& outputs = call.outputs_sync();
  EXPECT_TRUE(call.report().is_overflowing);
  EXPECT_GT(call.report().num_records, 20);
  for (const GuardedTensor* tensor : {&outputs.dq, &outputs.dk, &outputs.dv}) {
    EXPECT_TRUE(is_void(*tensor));
    EXPECT_TRUE(tensor->has_whole_guards());
  }
}

TEST_P(BackwardDeviceListTest, BadRangesAreClampedAndReported) {
  RandomStream random(5);
  BackwardCase test = base();
  test.tuning.is_plain = true;
  TypedRanges ranges = random_ranges(random, 500, 700, 50);
  ranges.q_ranges[2 * 20] = std::numeric_limits<std::int32_t>::min();
  ranges.q_ranges[2 * 20 + 1] = std::numeric_limits<std::int32_t>::max();
  ranges.k_ranges[2 * 21 + 1] = 1 << 30;
  ranges.types[23] = 77;
  test.mask = {500, 700, ranges.bands(500, 700)};
  const BackwardInputs inputs(test);
  BackwardOutputs host(test);
  run_backward_sync(test, inputs, host);
  DeviceCall call(test, inputs, ranges.count());
  call.enqueue(DeviceRanges(ranges), nullptr);
  expect_same_gradients(call.outputs_sync(), host);
  const DeviceListReport report = call.report();
  ASSERT_TRUE(report.first_bad);
  EXPECT_EQ(report.first_bad->index, 20);
  EXPECT_EQ(report.first_bad->field, "q_ranges[0]");
}

INSTANTIATE_TEST_SUITE_P(Backends, BackwardDeviceListTest, ::testing::Values("", "mma"));

}  // namespace
}  // namespace magi::test
