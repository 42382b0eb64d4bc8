// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "magi/attention_cuda.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/guarded_tensor.hpp"
#include "support/masks.hpp"

// Calls in a row, each of which is launched ahead of the end of the one before. Beside other work,
// in graphs and where keys come: ForwardTest, ForwardArrivalTest.
namespace magi::test {
namespace {

using ForwardLaunchTest = GpuTest;

constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kDim = 128;

Mask documents() { return testing::document_mask({920, 130, 1, 640, 219}); }

/// Calls of which each has the out of the one before as its queries, by turns on the whole chip and
/// on `num_ctas` multiprocessors: the next call then begins on those that are free.
class Chain {
 public:
  explicit Chain(std::int32_t num_ctas) : mask_(documents()), k_(keys(5)), v_(keys(6)) {
    RandomStream random(4);
    for (int i = 0; i <= kCalls; ++i) {
      rows_.push_back(std::make_unique<GuardedTensor>(DType::BFloat16, mask_.rows_q, kHeads, kDim));
    }
    fill(*rows_.front(), random);
    lse_ = std::make_unique<GuardedTensor>(DType::Float32, mask_.rows_q, kHeads, 1);
    for (const std::int32_t margin : {0, device_info(0).num_sms - num_ctas}) {
      works_.push_back(std::make_unique<ForwardWork>(args(0), ForwardTuning{.sm_margin = margin}));
    }
    for (const auto& tensor : rows_) tensor->upload_sync();
    lse_->upload_sync();
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void enqueue(int call, const Stream& stream) const {
    attention_forward_cuda(args(call), *works_[static_cast<std::size_t>(call % 2)],
                           stream.handle());
  }

  /// Out of the last call.
  const GuardedTensor& out() {
    rows_.back()->download_sync();
    return *rows_.back();
  }

  static constexpr int kCalls = 12;

 private:
  static void fill(GuardedTensor& tensor, RandomStream& random) {
    for (std::int64_t row = 0; row < tensor.rows(); ++row) {
      for (std::int64_t head = 0; head < tensor.heads(); ++head) {
        for (std::int64_t d = 0; d < tensor.dim(); ++d) {
          tensor.set(row, head, d, random.between(-200, 200) / 100.0);
        }
      }
    }
    tensor.upload_sync();
  }

  std::unique_ptr<GuardedTensor> keys(std::uint64_t seed) const {
    auto tensor = std::make_unique<GuardedTensor>(DType::BFloat16, mask_.rows_k, 2, kDim);
    RandomStream random(seed);
    fill(*tensor, random);
    return tensor;
  }

  ForwardArgs args(int call) const {
    const auto at = static_cast<std::size_t>(call);
    ForwardArgs args{
        .q = rows_[at]->view(), .k = k_->view(), .v = v_->view(), .slices = mask_.slices};
    args.out = rows_[at + 1]->view();
    args.lse = lse_->view(2);
    return args;
  }

  const Mask mask_;
  std::unique_ptr<GuardedTensor> k_, v_, lse_;
  std::vector<std::unique_ptr<GuardedTensor>> rows_;  ///< queries of each call, and the last out
  std::vector<std::unique_ptr<ForwardWork>> works_;
};

TEST_F(ForwardLaunchTest, ACallReadsWhatTheOneBeforeItHasWritten) {
  for (const std::int32_t num_ctas : {1, 8, 100}) {
    SCOPED_TRACE(::testing::Message() << num_ctas << " CTAs in every second call");
    Chain alone(num_ctas);
    Chain in_a_row(num_ctas);
    const Stream stream;
    for (int call = 0; call < Chain::kCalls; ++call) {
      alone.enqueue(call, stream);
      stream.wait_sync();
    }
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (int call = 0; call < Chain::kCalls; ++call) in_a_row.enqueue(call, stream);
    }
    stream.wait_sync();
    EXPECT_TRUE(in_a_row.out().has_same_bytes(alone.out()));
  }
}

}  // namespace
}  // namespace magi::test
