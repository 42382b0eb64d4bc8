// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "cuda/stream.hpp"
#include "kernels/sm90/forward/large_call.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/device_tools.hpp"
#include "support/gpu/gpu_test.hpp"

// What small cases do not show: equal bits under load, sizes beyond 32-bit indices, masks of very
// many slices.
namespace magi::test {
namespace {

using ForwardProofTest = GpuTest;

constexpr int kRepeats = 1000;

/// Another stream that keeps some multiprocessors and the memory busy.
class BackgroundLoad {
 public:
  BackgroundLoad() : array_(std::size_t{256} << 20), result_(std::size_t{1} << 20) {
    array_.fill(0, nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Another slice of load, of a size that changes from call to call.
  void step() {
    num_ctas_ = num_ctas_ % 512 + 37;
    disturb(static_cast<const float*>(array_.data()), array_.size_bytes() / sizeof(float),
            static_cast<float*>(result_.data()), num_ctas_, stream_.handle());
  }

 private:
  DeviceBuffer array_;
  DeviceBuffer result_;
  Stream stream_;
  int num_ctas_ = 1;
};

struct ProofCase {
  LargeShape shape;
  Mask mask;
  AttentionParams params;
};

std::vector<ProofCase> repeat_cases() {
  RandomStream random(17);
  std::vector<ProofCase> cases;
  const LargeShape shape{.rows_q = 1024, .rows_k = 1024, .heads_q = 64, .heads_kv = 8};
  cases.push_back({shape, {1024, 1024, {band_slice({0, 1024}, {0, 1024}, MaskType::Causal)}}, {}});
  Mask documents{1024, 1024, {}};
  for (std::int32_t begin = 0; begin < 1024;) {
    const std::int32_t end = std::min(1024, begin + random.between(1, 200));
    documents.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
    begin = end;
  }
  cases.push_back({shape, documents, {.softcap = 20.0}});
  Mask overlapping{1024, 1024, {}};
  overlapping.slices = random_ranges(random, 1024, 1024, 40).bands(1024, 1024);
  LargeShape narrow = shape;
  narrow.dim = 64;
  cases.push_back({narrow, overlapping, {}});
  LargeShape wide = shape;
  wide.dim = 256;
  cases.push_back({wide, overlapping, {}});
  LargeShape few_rows = shape;
  few_rows.rows_q = 40;
  few_rows.rows_k = 30000;
  cases.push_back({few_rows, {40, 30000, {band_slice({0, 40}, {0, 30000}, MaskType::Full)}}, {}});
  return cases;
}

TEST_F(ForwardProofTest, AThousandRepeatsUnderLoadGiveTheSameBits) {
  BackgroundLoad load;
  const DeviceBuffer count(sizeof(unsigned long long));
  for (const ProofCase& test : repeat_cases()) {
    SCOPED_TRACE(::testing::Message()
                 << test.mask.slices.size() << " slices, dim " << test.shape.dim);
    const LargeCall expected(test.shape);
    const LargeCall repeated(test.shape);
    ForwardArgs args = expected.args();
    args.slices = test.mask.slices;
    args.params = test.params;
    const ForwardWork work(args);
    attention_forward_cuda(args, work, nullptr);
    args = repeated.args();
    args.params = test.params;
    count.fill(0, nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const Stream stream;
    for (int i = 0; i < kRepeats; ++i) {
      if (i % 2 == 0) load.step();
      repeated.out().fill(0xff, stream.handle());
      repeated.lse().fill(0xff, stream.handle());
      attention_forward_cuda(args, work, stream.handle());
      for (const auto& [a, b] : {std::pair{&expected.out(), &repeated.out()},
                                 std::pair{&expected.lse(), &repeated.lse()}}) {
        count_differences(a->data(), b->data(), a->size_bytes(),
                          static_cast<unsigned long long*>(count.data()), stream.handle());
      }
    }
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ASSERT_EQ(to_host_sync<unsigned long long>(count.data(), 1).front(), 0u);
  }
}

Mask window_mask(std::int64_t rows, std::int32_t width) {
  const auto end = static_cast<std::int32_t>(rows);
  return {end, end, {{.q0 = 0, .q1 = end, .k0 = 0, .k1 = end, .d_min = 1 - width, .d_max = 0}}};
}

/// The whole call, then rows at both ends, around the index 2^31 and in between.
void check_large(const LargeShape& shape, const Mask& mask) {
  const LargeCall call(shape);
  ForwardArgs args = call.args();
  args.slices = mask.slices;
  attention_forward_cuda(args, ForwardWork(args), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  RandomStream random(23);
  const std::int64_t boundary = (std::int64_t{1} << 31) / (shape.heads_q * shape.dim);
  std::vector<std::int64_t> rows = {0, 1, shape.rows_q / 2, shape.rows_q - 2, shape.rows_q - 1};
  for (std::int64_t row = boundary - 2; row <= boundary + 2; ++row) {
    if (row >= 0 && row < shape.rows_q) rows.push_back(row);
  }
  for (int i = 0; i < 20; ++i) {
    rows.push_back(random.between(0, static_cast<std::int32_t>(shape.rows_q - 1)));
  }
  for (const std::int64_t row : rows) {
    const auto last_head = static_cast<std::int32_t>(shape.heads_q - 1);
    for (const std::int64_t head : {0, random.between(0, last_head), last_head}) {
      call.check_row(mask.slices, row, head);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(ForwardProofTest, MoreThanTwoTo31ElementsInEachTensor) {
  constexpr std::int64_t kRows = (1 << 18) + 3001;
  check_large({.rows_q = kRows, .rows_k = kRows, .heads_q = 64, .heads_kv = 64},
              window_mask(kRows, 300));
  check_large({.rows_q = kRows, .rows_k = kRows, .heads_q = 64, .heads_kv = 8},
              window_mask(kRows, 300));
  constexpr std::int64_t kWideRows = (1 << 17) + 3001;
  check_large({.rows_q = kWideRows, .rows_k = kWideRows, .heads_q = 64, .heads_kv = 8, .dim = 256},
              window_mask(kWideRows, 300));
}

TEST_F(ForwardProofTest, AsManyRowsAsThereMayBe) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (free_bytes < (std::size_t{80} << 30)) GTEST_SKIP() << "needs 80 GB: device test not run";
  constexpr std::int64_t kRows = (std::int64_t{1} << 30) - 1;
  check_large({.rows_q = kRows, .rows_k = kRows, .dim = 8}, window_mask(kRows, 130));
}

/// Short slices near the diagonal, many rows of them overlapping.
TypedRanges many_ranges(std::int32_t rows, std::int32_t count) {
  RandomStream random(29);
  TypedRanges ranges;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t q = random.between(0, rows - 1);
    const std::int32_t k = std::clamp(q + random.between(-300, 300), 0, rows - 1);
    ranges.append({q, std::min(rows, q + random.between(0, 40))},
                  {k, std::min(rows, k + random.between(0, 60))}, random.between(0, 3));
  }
  return ranges;
}

TEST_F(ForwardProofTest, HundredsOfThousandsOfSlices) {
  constexpr std::int32_t kRows = 200000;
  const TypedRanges ranges = many_ranges(kRows, 400000);
  const std::vector<BandSlice> bands = ranges.bands(kRows, kRows);
  const LargeShape shape{.rows_q = kRows, .rows_k = kRows, .heads_q = 8, .heads_kv = 1};
  const LargeCall call(shape);
  ForwardArgs args = call.args();
  args.slices = bands;
  attention_forward_cuda(args, ForwardWork(args), nullptr);
  RandomStream random(31);
  for (int i = 0; i < 60; ++i) {
    call.check_row(bands, random.between(0, kRows - 1), random.between(0, 7));
    if (HasFatalFailure()) return;
  }
  const LargeCall other(shape);
  const DeviceRanges device(ranges);
  const DeviceBuffer memory(
      static_cast<std::size_t>(forward_workspace_bytes(other.args(), ranges.count())));
  const DeviceWorkspace workspace{memory.data(), static_cast<std::int64_t>(memory.size_bytes())};
  const DeviceBuffer count(sizeof(unsigned long long));
  count.fill(0, nullptr);
  attention_forward_cuda(other.args(), device.view(), workspace, {}, nullptr);
  auto* differing = static_cast<unsigned long long*>(count.data());
  count_differences(call.out().data(), other.out().data(), call.out().size_bytes(), differing,
                    nullptr);
  count_differences(call.lse().data(), other.lse().data(), call.lse().size_bytes(), differing,
                    nullptr);
  ASSERT_EQ(to_host_sync<unsigned long long>(count.data(), 1).front(), 0u);
}

TEST_F(ForwardProofTest, AnySmMarginGivesTheSameBits) {
  const ProofCase test = repeat_cases()[1];
  const LargeCall expected(test.shape);
  const LargeCall other(test.shape);
  const DeviceBuffer count(sizeof(unsigned long long));
  count.fill(0, nullptr);
  ForwardArgs args = expected.args();
  args.slices = test.mask.slices;
  attention_forward_cuda(args, ForwardWork(args), nullptr);
  args.out = other.args().out;
  args.lse = other.args().lse;
  for (const std::int32_t sm_margin : {1, 8, 100, device_info(0).num_sms - 1}) {
    other.poison_sync();
    attention_forward_cuda(args, ForwardWork(args, {.sm_margin = sm_margin}), nullptr);
    count_differences(expected.out().data(), other.out().data(), expected.out().size_bytes(),
                      static_cast<unsigned long long*>(count.data()), nullptr);
    ASSERT_EQ(to_host_sync<unsigned long long>(count.data(), 1).front(), 0u) << sm_margin;
  }
  EXPECT_THROW(ForwardWork(args, {.sm_margin = device_info(0).num_sms}), InvalidArgument);
  EXPECT_THROW(ForwardWork(args, {.sm_margin = -1}), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
