// SPDX-License-Identifier: Apache-2.0
#include "doctor/attention_rates.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/masks.hpp"
#include "kernels/attention/backend.hpp"

namespace magi::cli {
namespace {

constexpr double kForwardFlops = 4.0;
constexpr double kBackwardFlops = 10.0;
constexpr std::int32_t kRounds = 3;

/// Sizes that fill a GPU, and some that a few cores are done with in a moment.
struct Sizes {
  std::int32_t rows;
  std::int32_t heads_q;
  std::int32_t heads_kv;
  std::int32_t dim;
  DType type;
  std::int32_t repeats;
  std::int32_t launches;
};
constexpr Sizes kGpu{16384, 64, 8, 128, DType::BFloat16, 8, 100};
constexpr Sizes kHost{1024, 8, 2, 64, DType::Float32, 1, 3};

/// The tensors of a call and what a backend prepared for its mask.
class Problem {
 public:
  Problem(const RankPlace& place, const Sizes& sizes, Mask mask)
      : place_(place),
        mask_(std::move(mask)),
        q_(place, sizes.type, {sizes.rows, sizes.heads_q, sizes.dim}),
        k_(place, sizes.type, {sizes.rows, sizes.heads_kv, sizes.dim}),
        v_(place, sizes.type, {sizes.rows, sizes.heads_kv, sizes.dim}),
        out_(place, sizes.type, {sizes.rows, sizes.heads_q, sizes.dim}),
        lse_(place, DType::Float32, {sizes.rows, sizes.heads_q}),
        dout_(place, sizes.type, {sizes.rows, sizes.heads_q, sizes.dim}),
        dq_(place, sizes.type, {sizes.rows, sizes.heads_q, sizes.dim}),
        dk_(place, sizes.type, {sizes.rows, sizes.heads_kv, sizes.dim}),
        dv_(place, sizes.type, {sizes.rows, sizes.heads_kv, sizes.dim}) {
    const auto backend = find_backend("", place.device);
    forward_ = backend->prepare_forward(forward_args(), {});
    backward_ = backend->prepare_backward(backward_args(), {.is_deterministic = false});
    size_bytes_ = std::max(forward_->workspace_bytes(), backward_->workspace_bytes());
    if (size_bytes_ > 0) workspace_ = place.allocate(size_bytes_);
  }

  double forward_seconds(std::int32_t repeats) const {
    return seconds(repeats, [this] {
      forward_->run(forward_args(), {workspace_.get(), size_bytes_}, place_.stream);
    });
  }
  double backward_seconds(std::int32_t repeats) const {
    return seconds(repeats, [this] {
      backward_->run(backward_args(), {workspace_.get(), size_bytes_}, place_.stream);
    });
  }
  std::int64_t pairs() const { return area(mask_); }

 private:
  ForwardArgs forward_args() const {
    return {.q = q_.view,
            .k = k_.view,
            .v = v_.view,
            .slices = mask_.slices,
            .out = out_.view,
            .lse = lse_.view};
  }
  BackwardArgs backward_args() const {
    return {.q = q_.view,
            .k = k_.view,
            .v = v_.view,
            .slices = mask_.slices,
            .out = out_.view,
            .lse = lse_.view,
            .dout = dout_.view,
            .dq = dq_.view,
            .dk = dk_.view,
            .dv = dv_.view};
  }

  /// The time of one run: the least of a few rounds behind a warm one.
  double seconds(std::int32_t repeats, const std::function<void()>& run) const {
    const auto round = [&] {
      return place_.time_sync([&] {
        for (std::int32_t i = 0; i < repeats; ++i) run();
      });
    };
    round();
    double least = round();
    for (std::int32_t i = 1; i < kRounds; ++i) least = std::min(least, round());
    return least / repeats;
  }

  const RankPlace& place_;
  Mask mask_;
  PlacedTensor q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_;
  std::shared_ptr<const PreparedForward> forward_;
  std::shared_ptr<const PreparedBackward> backward_;
  std::shared_ptr<void> workspace_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace

AttentionRates attention_rates(const RankPlace& place) {
  const Sizes& sizes = place.device == kCpuDevice ? kHost : kGpu;
  double flops = 0.0, forward = 0.0, backward = 0.0;
  for (const char* name : {"full", "causal", "varlen_causal"}) {
    const Problem problem(place, sizes, bench_mask(name, sizes.rows));
    flops += static_cast<double>(problem.pairs()) * sizes.heads_q * sizes.dim;
    forward += problem.forward_seconds(sizes.repeats);
    backward += problem.backward_seconds(sizes.repeats);
  }
  const Sizes one{64, 1, 1, sizes.dim, sizes.type, 1, sizes.launches};
  const Problem least(place, one, {.rows_q = 64, .rows_k = 64, .slices = {{0, 64, 0, 64}}});
  return {.flops_per_second = kForwardFlops * flops / forward,
          .backward_flops_per_second = kBackwardFlops * flops / backward,
          .seconds_per_launch = least.forward_seconds(sizes.launches)};
}

}  // namespace magi::cli
