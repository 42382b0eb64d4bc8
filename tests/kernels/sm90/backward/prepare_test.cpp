// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/prepare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "support/gpu/gpu_test.hpp"
#include "support/gpu/random_tensors.hpp"

namespace magi::test {
namespace {

constexpr std::int32_t kSumsPerTile = 64 * 72;
constexpr std::int64_t kNumSemaphores = 100'001;
constexpr std::size_t kTile = sm90::kTileRows;
constexpr float kExponentScale = 0.125f;

struct PrepareCase {
  DType type = DType::BFloat16;
  std::int32_t rows = 100;
  std::int32_t heads = 8;
  std::int32_t packed_heads = 4;
  std::int32_t dim = 128;
  std::int32_t tiles_per_q_tile = 1;
  Layout layout = Layout::Contiguous;
  bool has_float_rows = false;  ///< out and dout
  bool has_dlse = false;
  std::int32_t num_late_ctas = 0;
};

std::ostream& operator<<(std::ostream& stream, const PrepareCase& test) {
  return stream << dtype_name(test.type) << " rows " << test.rows << " heads " << test.heads
                << " packed " << test.packed_heads << " dim " << test.dim << " tiles per q tile "
                << test.tiles_per_q_tile << " layout " << static_cast<int>(test.layout)
                << (test.has_float_rows ? " float rows" : "") << (test.has_dlse ? " dlse" : "")
                << " late CTAs " << test.num_late_ctas;
}

sm90::StridedRows strided_rows(const GuardedTensor& tensor) {
  const TensorView view = tensor.view();
  return {view.data, view.stride[0], view.stride[1], view.dtype};
}

/// The inputs, and a workspace of NaN that the kernels fill.
class Prepared {
 public:
  explicit Prepared(const PrepareCase& test)
      : test_(test),
        out(row_type(), test.rows, test.heads, test.dim, test.layout),
        dout(row_type(), test.rows, test.heads, test.dim, test.layout),
        lse(DType::Float32, test.rows, test.heads, 1, test.layout),
        dlse(DType::Float32, test.rows, test.heads, 1, test.layout),
        dout_copy(test.type, test.rows, test.heads, test.dim) {
    RandomStream random(7);
    for (GuardedTensor* tensor : {&out, &dout, &lse, &dlse}) fill_random(*tensor, random, 1.0);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kUnusual[] = {-kInfinity, kInfinity, 2e4, -3e38, -1e9, 3e38};
    for (std::int64_t row = 0; row < test.rows; row += 7) {
      lse.set(row, row % test.heads, 0, kUnusual[row / 7 % 6]);
    }
    lse.upload_sync();
    dout_copy.upload_sync();
    packed = {.rows_q = test.rows, .heads_q = test.heads, .packed_heads = test.packed_heads};
    const std::int32_t q_tile_tokens = packed.tile_tokens() * test.tiles_per_q_tile;
    packed.tiles_per_group =
        (test.rows + q_tile_tokens - 1) / q_tile_tokens * test.tiles_per_q_tile;
    const auto tiles = static_cast<std::size_t>(packed.num_tiles());
    lse_log2_ = poisoned(tiles * kTile);
    delta_ = poisoned(tiles * kTile);
    sums_ = poisoned(tiles * kSumsPerTile);
    const std::int32_t num_q_tiles = packed.tiles_per_group / test.tiles_per_q_tile;
    for (std::int32_t tile = 0; tile < num_q_tiles; ++tile) num_components.push_back(tile % 3);
    num_components_ = to_device_sync<std::int32_t>(num_components);
    semaphores_ = poisoned(kNumSemaphores);
  }

  void run() {
    sm90::PrepareParams params;
    params.packed = packed;
    params.dim_v = test_.dim;
    params.out = strided_rows(out);
    params.dout = strided_rows(dout);
    params.lse = strided_rows(lse);
    if (test_.has_dlse) params.dlse = strided_rows(dlse);
    params.exponent_scale = kExponentScale;
    params.lse_log2 = lse_log2();
    params.delta = delta();
    if (test_.has_float_rows) params.dout_copy = dout_copy.view().data;
    params.sums = static_cast<float*>(sums_.data());
    params.sums_per_tile = kSumsPerTile;
    params.num_components = static_cast<const std::int32_t*>(num_components_.data());
    params.tiles_per_q_tile = test_.tiles_per_q_tile;
    params.semaphores = static_cast<std::uint32_t*>(semaphores_.data());
    params.num_semaphores = kNumSemaphores;
    params.num_late_ctas = test_.num_late_ctas;
    params.is_beside = test_.num_late_ctas > 0;
    sm90::prepare_backward(params, test_.type, nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    dout_copy.download_sync();
  }

  /// Rows whose lse is infinite in base 2.
  bool has_no_weights(std::int64_t row, std::int64_t head) const {
    return std::abs(lse.get(row, head, 0)) * std::numbers::log2e > 3.4e38;
  }
  /// Returns whether the row's lse is finite and too large for weights.
  bool is_large(std::int64_t row, std::int64_t head) const {
    const double size = std::abs(lse.get(row, head, 0)) * std::numbers::log2e;
    return size >= double{sm90::kLargestLse} && !has_no_weights(row, head);
  }

  float* lse_log2() const { return static_cast<float*>(lse_log2_.data()); }
  float* delta() const { return static_cast<float*>(delta_.data()); }
  double expected_delta(std::int64_t row, std::int64_t head) const {
    double sum = test_.has_dlse ? dlse.get(row, head, 0) : 0.0;
    const GuardedTensor& seen_dout = test_.has_float_rows ? dout_copy : dout;
    for (std::int64_t d = 0; d < test_.dim; ++d) {
      sum -= out.get(row, head, d) * seen_dout.get(row, head, d);
    }
    return sum;
  }
  void expect_cleared() const {
    const auto num_sums = static_cast<std::size_t>(packed.num_tiles()) * kSumsPerTile;
    const std::vector<float> sums = to_host_sync<float>(sums_.data(), num_sums);
    for (std::size_t i = 0; i < num_sums; ++i) {
      const auto tile = i / kSumsPerTile % static_cast<std::size_t>(packed.tiles_per_group);
      if (num_components[tile / static_cast<std::size_t>(test_.tiles_per_q_tile)] > 1) {
        ASSERT_EQ(sums[i], 0.0f) << i;
      } else {
        ASSERT_TRUE(std::isnan(sums[i])) << i;
      }
    }
    for (const auto count : to_host_sync<std::uint32_t>(semaphores_.data(), kNumSemaphores)) {
      ASSERT_EQ(count, 0u);
    }
  }

 private:
  DType row_type() const { return test_.has_float_rows ? DType::Float32 : test_.type; }
  static DeviceBuffer poisoned(std::size_t count) {
    DeviceBuffer buffer(count * sizeof(float));
    buffer.fill(0xff, nullptr);
    return buffer;
  }

  PrepareCase test_;
  DeviceBuffer lse_log2_, delta_, sums_, semaphores_, num_components_;

 public:
  GuardedTensor out, dout, lse, dlse, dout_copy;
  sm90::PackedRows packed;
  std::vector<std::int32_t> num_components;  ///< per tiles_per_q_tile tiles
};

void check_prepare(const PrepareCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  Prepared prepared(test);
  prepared.run();
  const auto count = static_cast<std::size_t>(prepared.packed.num_tiles()) * kTile;
  const auto lse_log2 = to_host_sync<float>(prepared.lse_log2(), count);
  const auto delta = to_host_sync<float>(prepared.delta(), count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto tile = static_cast<std::int64_t>(i / kTile);
    const auto r = static_cast<std::int64_t>(i % kTile);
    const std::int64_t group = tile / prepared.packed.tiles_per_group;
    const std::int64_t row =
        tile % prepared.packed.tiles_per_group * prepared.packed.tile_tokens() +
        r / test.packed_heads;
    const std::int64_t head = group * test.packed_heads + r % test.packed_heads;
    const bool has_keys = row < test.rows && !prepared.has_no_weights(row, head);
    if (has_keys && prepared.is_large(row, head)) {
      ASSERT_EQ(lse_log2[i], -sm90::kNoKeys / kExponentScale) << "tile " << tile << " row " << r;
      ASSERT_NEAR(delta[i], prepared.expected_delta(row, head), 1e-4);
      continue;
    }
    if (!has_keys) {
      ASSERT_EQ(lse_log2[i], -sm90::kNoKeys / kExponentScale) << "tile " << tile << " row " << r;
      ASSERT_EQ(delta[i], 0.0f) << "tile " << tile << " row " << r;
      continue;
    }
    const double lse2 = prepared.lse.get(row, head, 0) * std::numbers::log2e;
    ASSERT_NEAR(lse_log2[i], -lse2 / kExponentScale, 1e-6 * std::max(100.0, std::abs(lse2)));
    ASSERT_NEAR(delta[i], prepared.expected_delta(row, head), 1e-4);
  }
  prepared.expect_cleared();
  if (!test.has_float_rows) return;
  GuardedTensor rounded(test.type, test.rows, test.heads, test.dim);
  for (std::int64_t row = 0; row < test.rows; ++row) {
    for (std::int64_t head = 0; head < test.heads; ++head) {
      for (std::int64_t d = 0; d < test.dim; ++d) {
        rounded.set(row, head, d, prepared.dout.get(row, head, d));
      }
    }
  }
  expect_same_bits(rounded, prepared.dout_copy);
  EXPECT_TRUE(prepared.dout_copy.has_whole_guards());
}

using BackwardPrepareTest = GpuTest;

TEST_F(BackwardPrepareTest, EveryPacking) {
  for (const std::int32_t packed_heads : {1, 2, 4, 8, 16}) {
    check_prepare({.heads = 16, .packed_heads = packed_heads});
    check_prepare({.rows = 1, .heads = 16, .packed_heads = packed_heads, .has_dlse = true});
    check_prepare({.rows = 330, .heads = 16, .packed_heads = packed_heads, .tiles_per_q_tile = 2});
  }
}

TEST_F(BackwardPrepareTest, EveryTypeDimAndLayout) {
  for (const DType type : {DType::BFloat16, DType::Float16}) {
    for (const std::int32_t dim : {8, 40, 64, 72, 128, 136, 256}) {
      for (const Layout layout : {Layout::Contiguous, Layout::PaddedRows, Layout::HeadMajor}) {
        check_prepare({.type = type, .dim = dim, .layout = layout, .has_dlse = true});
        check_prepare({.type = type, .dim = dim, .layout = layout, .has_float_rows = true});
      }
    }
  }
}

TEST_F(BackwardPrepareTest, NoRowsClearTheSemaphores) {
  check_prepare({.rows = 0});
  check_prepare({.rows = 0, .num_late_ctas = 3});
}

TEST_F(BackwardPrepareTest, LateCtasClearTheSums) {
  for (const std::int32_t rows : {1, 330, 5000}) {
    for (const std::int32_t num_late_ctas : {1, 2, 264}) {
      for (const std::int32_t dim : {64, 128, 256}) {
        check_prepare({.rows = rows, .dim = dim, .num_late_ctas = num_late_ctas});
        check_prepare({.rows = rows,
                       .dim = dim,
                       .tiles_per_q_tile = 2,
                       .has_float_rows = true,
                       .num_late_ctas = num_late_ctas});
      }
    }
  }
}

constexpr std::int32_t kSinks = 3;
const PrepareCase kSinkCase{.rows = 700, .heads = 6, .packed_heads = 2, .has_dlse = true};

void enqueue_sinks(const Prepared& prepared, const GuardedTensor& sink, const GuardedTensor& dsink,
                   SinkLayout layout, bool is_adding) {
  const TensorView logits = sink_view(sink, layout);
  const TensorView view = sink_view(dsink, layout);
  const bool is_shared = layout == SinkLayout::SinkHead;
  const std::size_t axis = is_shared ? 0 : 1;
  sm90::enqueue_sink_gradient(
      {.packed = prepared.packed,
       .exponent_scale = kExponentScale,
       .lse_log2 = prepared.lse_log2(),
       .delta = prepared.delta(),
       .sink = {static_cast<const float*>(logits.data), is_shared ? 0 : logits.stride[0],
                logits.stride[axis], kSinks},
       .dsink = static_cast<float*>(view.data),
       .row_stride = is_shared ? 0 : view.stride[0],
       .sink_stride = view.stride[axis],
       .is_adding = is_adding},
      nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// Adds the gradients to what is there.
void add_expected_sinks(const Prepared& prepared, const GuardedTensor& sink,
                        std::vector<double>& expected) {
  for (std::int64_t i = 0; i < kSinkCase.rows * kSinkCase.heads * kSinks; ++i) {
    const std::int64_t head = i % kSinkCase.heads;
    const std::int64_t s = i / kSinkCase.heads % kSinks;
    const std::int64_t row = i / kSinkCase.heads / kSinks;
    const double lse = prepared.lse.get(row, head, 0);
    if (prepared.has_no_weights(row, head) || prepared.is_large(row, head)) continue;
    const std::int64_t sink_row = sink.rows() == 1 ? 0 : row;
    expected[static_cast<std::size_t>((sink_row * kSinks + s) * kSinkCase.heads + head)] +=
        std::exp(sink.get(sink_row, s, head) - lse) * prepared.expected_delta(row, head);
  }
}

void check_sinks(SinkLayout layout, bool is_adding) {
  Prepared prepared(kSinkCase);
  prepared.run();
  const std::int32_t rows = layout == SinkLayout::SinkHead ? 1 : kSinkCase.rows;
  GuardedTensor sink(DType::Float32, rows, kSinks, kSinkCase.heads);
  GuardedTensor dsink(DType::Float32, rows, kSinks, kSinkCase.heads);
  RandomStream random(8);
  fill_random(sink, random, 1.0);
  if (is_adding) fill_random(dsink, random, 1.0);
  dsink.upload_sync();
  std::vector<double> expected = values_of(dsink);
  if (!is_adding) std::fill(expected.begin(), expected.end(), 0.0);
  add_expected_sinks(prepared, sink, expected);
  enqueue_sinks(prepared, sink, dsink, layout, is_adding);
  dsink.download_sync();
  const std::vector<double> seen = values_of(dsink);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    ASSERT_NEAR(seen[i], expected[i], 1e-4 * std::max(1.0, std::abs(expected[i]))) << i;
  }
  EXPECT_TRUE(dsink.has_whole_guards());
}

TEST_F(BackwardPrepareTest, SinkGradients) {
  for (const SinkLayout layout : {SinkLayout::SinkHead, SinkLayout::RowSinkHead}) {
    check_sinks(layout, false);
    check_sinks(layout, true);
  }
}

}  // namespace
}  // namespace magi::test
