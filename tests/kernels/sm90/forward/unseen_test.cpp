// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <tuple>
#include <vector>

#include "magi/attention_cuda.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"
#include "support/gpu/instance_dims.hpp"
#include "support/masks.hpp"

// What rows may hold that are not seen (attention_cuda.hpp): anything at all where nobody sees
// them, and anything finite where others do.
namespace magi::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class ForwardUnseenTest : public GpuTest,
                          public ::testing::WithParamInterface<std::tuple<DType, InstanceDims>> {
 protected:
  DType type() const { return std::get<0>(GetParam()); }
  InstanceDims dims() const { return std::get<1>(GetParam()); }
  double largest() const { return type() == DType::BFloat16 ? 3.38e38 : 65504.0; }
};

struct Inputs {
  Inputs(DType type, const Mask& mask, const InstanceDims& dims)
      : q(type, mask.rows_q, 8, dims.qk),
        k(type, mask.rows_k, 2, dims.qk),
        v(type, mask.rows_k, 2, dims.v) {
    RandomStream random(7);
    for (GuardedTensor* tensor : {&q, &k, &v}) {
      for (std::int64_t row = 0; row < tensor->rows(); ++row) set_row(*tensor, row, random);
    }
  }

  static void set_row(GuardedTensor& tensor, std::int64_t row, RandomStream& random) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        tensor.set(row, head, d, random.between(-200, 200) / 100.0);
      }
    }
  }

  GuardedTensor q, k, v;
};

void fill_row(GuardedTensor& tensor, std::int64_t row, double value) {
  for (std::int64_t head = 0; head < tensor.heads(); ++head) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d) {
      tensor.set(row, head, d, (d + head) % 2 == 0 ? value : -value);
    }
  }
}

/// Those that are not seen.
void fill_rows(GuardedTensor& tensor, const std::vector<bool>& seen, double value) {
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    if (!seen[static_cast<std::size_t>(row)]) fill_row(tensor, row, value);
  }
}

struct Result {
  GuardedTensor out, lse;
};

Result attend(Inputs& inputs, const Mask& mask, std::int32_t packed_heads) {
  Result result{{inputs.q.view().dtype, mask.rows_q, inputs.q.heads(), inputs.v.dim()},
                {DType::Float32, mask.rows_q, inputs.q.heads(), 1}};
  for (GuardedTensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &result.out, &result.lse}) {
    tensor->upload_sync();
  }
  ForwardArgs args{
      .q = inputs.q.view(), .k = inputs.k.view(), .v = inputs.v.view(), .slices = mask.slices};
  args.out = result.out.view();
  args.lse = result.lse.view(2);
  attention_forward_cuda(args, ForwardWork(args, {.packed_heads = packed_heads}), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  result.out.download_sync();
  result.lse.download_sync();
  return result;
}

/// Rows [0, rows) of both have the same bits, and none of them is NaN.
void expect_same(const Result& seen, const Result& expected, std::int64_t rows) {
  for (const auto& [a, b] :
       {std::pair{&seen.out, &expected.out}, std::pair{&seen.lse, &expected.lse}}) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < a->heads(); ++head) {
        for (std::int64_t d = 0; d < a->dim(); ++d) {
          ASSERT_EQ(a->bits(row, head, d), b->bits(row, head, d))
              << "row " << row << " head " << head << " dim " << d << ": " << a->get(row, head, d)
              << " instead of " << b->get(row, head, d);
          ASSERT_EQ(a->get(row, head, d), a->get(row, head, d)) << "NaN in row " << row;
        }
      }
    }
  }
}

Mask mask_with_gaps() {
  return {500,
          1500,
          {band_slice({0, 170}, {300, 541}, MaskType::Causal),
           band_slice({170, 333}, {900, 1187}, MaskType::BidirectionalCausal),
           band_slice({333, 500}, {100, 200}, MaskType::Full)}};
}

/// Short and long ones, with rows before, between and behind that are of none. One sees a key far
/// away, too, which a short tile holds alone.
Mask documents_with_gaps() {
  Mask mask{700, 700, {}};
  for (const Range rows : {Range{3, 9}, {14, 15}, {40, 300}, {310, 360}, {371, 530}, {560, 680}}) {
    mask.slices.push_back(band_slice(rows, rows, MaskType::Causal));
  }
  mask.slices.push_back(band_slice({371, 530}, {13, 14}, MaskType::Full));
  return mask;
}

TEST_P(ForwardUnseenTest, RowsThatNobodySeesMayBeAnything) {
  for (const Mask& mask : {mask_with_gaps(), documents_with_gaps()}) {
    const testing::Seen seen(mask);
    for (const std::int32_t packed_heads : {1, 4}) {
      Inputs inputs(type(), mask, dims());
      const Result expected = attend(inputs, mask, packed_heads);
      for (const double value : {largest(), kNan}) {
        fill_rows(inputs.q, seen.queries, value);
        fill_rows(inputs.k, seen.keys, value);
        fill_rows(inputs.v, seen.keys, value);
        expect_same(attend(inputs, mask, packed_heads), expected, mask.rows_q);
      }
    }
  }
}

TEST_P(ForwardUnseenTest, ARowIsNotTouchedByKeysThatOnlyOthersSee) {
  const Mask mask{400, 400, {band_slice({0, 400}, {0, 400}, MaskType::Causal)}};
  for (const std::int32_t packed_heads : {1, 4}) {
    Inputs inputs(type(), mask, dims());
    const Result expected = attend(inputs, mask, packed_heads);
    // Keys 250 and above are seen by the rows from 250 on.
    for (std::int64_t key = 250; key < 400; ++key) {
      fill_row(inputs.k, key, largest());
      fill_row(inputs.v, key, largest());
    }
    expect_same(attend(inputs, mask, packed_heads), expected, 250);
  }
}

INSTANTIATE_TEST_SUITE_P(Instances, ForwardUnseenTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            forward_dims()));

}  // namespace
}  // namespace magi::test
