// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/stopwatch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace magi::cli {
namespace {

constexpr double kLeadFlops = 5e11;  ///< about 0.8 ms of an H200
constexpr int kLeadRuns = 4;
constexpr std::int64_t kWordElements = 8;  ///< 16 bytes

/// A word of everyone goes to everyone.
comm::RowTable word_table(const Communicator& group) {
  RowExchange words;
  for (std::int32_t peer = 0; peer < group.num_ranks(); ++peer) {
    words.owned.push_back({.peer = peer, .row = 0, .num_rows = 1});
    words.needed.push_back({.peer = peer, .row = peer, .num_rows = 1});
  }
  return {words, group.rank(), group.num_ranks()};
}

}  // namespace

Stopwatch::Stopwatch(RankDevice& device, Communicator& base, Link* link,
                     const AttentionShape& shape)
    : device_(device), base_(base), link_(link), words_(word_table(base)) {
  if (device.ordinal() == kCpuDevice) return;
  const double pairs = kLeadFlops / (4.0 * shape.heads_q * shape.head_dim);
  const auto rows = static_cast<std::int32_t>(std::clamp(std::sqrt(pairs), 1024.0, 65536.0));
  lead_ = make_results(device, shape, {rows, 0});
  lead_.q = device.make_random({rows, shape.heads_q, shape.head_dim}, 1);
  lead_.k = device.make_random({rows, shape.heads_kv, shape.head_dim}, 2);
  lead_.v = device.make_random({rows, shape.heads_kv, shape.head_dim}, 3);
  const Range all{0, rows};
  lead_kernel_ = std::make_unique<KernelAttention>(
      device, std::vector{BandSlice{all.begin, all.end, all.begin, all.end}});
  own_word_ = device.make(device.type(), {1, 1, kWordElements});
  all_words_ = device.make(device.type(), {base.num_ranks(), 1, kWordElements});
}

void Stopwatch::line_up() {
  if (lead_kernel_ == nullptr) {
    base_.allgather_sync({});
    return;
  }
  for (int run = 0; run < kLeadRuns; ++run) lead_kernel_->forward(lead_.views());
  if (link_ == nullptr) return;
  link_->move(words_, ExchangeKind::Other, {&own_word_.view, 1}, {&all_words_.view, 1}).await();
}

double Stopwatch::seconds_of_sync(const std::function<void()>& work) {
  line_up();
  return device_.seconds_of_sync(work);
}

std::vector<double> Stopwatch::largest_sync(std::vector<double> values) const {
  for (double& value : values) {
    if (!(value <= std::numeric_limits<double>::max())) {
      value = std::numeric_limits<double>::infinity();
    }
  }
  const auto all = base_.allgather_sync(std::as_bytes(std::span(values)));
  for (const auto& bytes : all) {
    std::vector<double> others(values.size());
    std::memcpy(others.data(), bytes.data(), bytes.size());
    std::ranges::transform(values, others, values.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  return values;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace magi::cli
