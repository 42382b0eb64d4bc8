// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/gpu_test.hpp"

// Tensors of more than 2^31 elements, under a window so narrow that their end can be computed
// alone.
namespace magi::test {
namespace {

constexpr std::int32_t kWindow = 64;
constexpr std::int32_t kEndRows = 512;
constexpr std::int32_t kHeads = 64;
constexpr std::int64_t kNeededBytes = std::int64_t{40} << 30;

Mask window_mask(std::int32_t rows) {
  return {
      rows, rows, {{.q0 = 0, .q1 = rows, .k0 = 0, .k1 = rows, .d_min = 1 - kWindow, .d_max = 0}}};
}

/// Rows of all heads: 2^31 elements and a bit.
constexpr std::int32_t rows_of(std::int32_t dim) { return (1 << 30) / (kHeads / 2 * dim) + 1024; }

BackwardCase end_case(std::int32_t dim) {
  BackwardCase test;
  test.dim_qk = test.dim_v = dim;
  test.heads_q = kHeads;
  test.heads_kv = 1;
  test.tuning.packed_heads = 8;
  test.mask = window_mask(kEndRows);
  return test;
}

/// A tensor of many rows: zeros, and at the end the rows of `end`.
class LongTensor {
 public:
  LongTensor(const TensorView& end, std::int32_t rows)
      : row_bytes_(static_cast<std::size_t>(end.stride[0]) * dtype_bytes(end.dtype)),
        num_rows_(static_cast<std::size_t>(rows)),
        buffer_(row_bytes_ * num_rows_),
        view_(end) {
    buffer_.fill(0, nullptr);
    view_.data = buffer_.data();
    view_.shape[0] = rows;
    cuda_check(cudaMemcpy(tail(), end.data, kEndRows * row_bytes_, cudaMemcpyDeviceToDevice),
               "cudaMemcpy");
  }

  TensorView view() const { return view_; }
  void copy_end_to(const TensorView& end) const {
    cuda_check(cudaMemcpy(end.data, tail(), kEndRows * row_bytes_, cudaMemcpyDeviceToDevice),
               "cudaMemcpy");
  }

 private:
  void* tail() const {
    return static_cast<std::uint8_t*>(buffer_.data()) + (num_rows_ - kEndRows) * row_bytes_;
  }

  std::size_t row_bytes_;
  std::size_t num_rows_;
  DeviceBuffer buffer_;
  TensorView view_;
};

/// Rows from `first` on agree up to the order of sums.
void expect_near(const GuardedTensor& seen, const GuardedTensor& expected, std::int64_t first) {
  const std::vector<double> a = values_of(seen);
  const std::vector<double> b = values_of(expected);
  double largest = 0.0;
  for (const double value : b) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.0);
  const std::int64_t begin = first * seen.heads() * seen.dim();
  for (auto i = static_cast<std::size_t>(begin); i < a.size(); ++i) {
    ASSERT_LE(std::abs(a[i] - b[i]), largest * 0x1p-7) << "element " << i;
  }
}

class BackwardLargeTest : public GpuTest, public ::testing::WithParamInterface<std::int32_t> {};

TEST_P(BackwardLargeTest, BeyondTwoToThe31Elements) {
  std::size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (static_cast<std::int64_t>(free_bytes) < kNeededBytes) {
    GTEST_SKIP() << "less than 40 GiB free: device test not run";
  }
  const std::int32_t dim = GetParam();
  const std::int32_t rows = rows_of(dim);
  BackwardCase test = end_case(dim);
  check_backward(test);
  const BackwardInputs inputs(test);
  BackwardOutputs expected(test);
  BackwardArgs args = inputs.args(test);
  expected.put_into(args);
  {
    const BackwardWork work(args, test.tuning);
    const GuardedWorkspace workspace(work.workspace_bytes());
    attention_backward_cuda(args, work, workspace.view(), nullptr);
  }
  const LongTensor q(args.q, rows), k(args.k, rows), v(args.v, rows), out(args.out, rows);
  const LongTensor lse(args.lse, rows), dout(args.dout, rows);
  const LongTensor dq(args.dq, rows), dk(args.dk, rows), dv(args.dv, rows);
  const Mask mask = window_mask(rows);
  BackwardArgs long_args{.q = q.view(), .k = k.view(), .v = v.view(), .slices = mask.slices};
  long_args.out = out.view();
  long_args.lse = lse.view();
  long_args.dout = dout.view();
  long_args.dq = dq.view();
  long_args.dk = dk.view();
  long_args.dv = dv.view();
  const BackwardWork work(long_args, test.tuning);
  const GuardedWorkspace workspace(work.workspace_bytes());
  attention_backward_cuda(long_args, work, workspace.view(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  BackwardOutputs seen(test);
  dq.copy_end_to(seen.dq.view());
  dk.copy_end_to(seen.dk.view());
  dv.copy_end_to(seen.dv.view());
  seen.download_sync();
  expected.download_sync();
  // Rows nearer to the beginning of the end see keys before it.
  expect_near(seen.dq, expected.dq, kWindow);
  expect_near(seen.dk, expected.dk, 0);
  expect_near(seen.dv, expected.dv, 0);
}

INSTANTIATE_TEST_SUITE_P(Dims, BackwardLargeTest, ::testing::Values(128, 256));

}  // namespace
}  // namespace magi::test
