// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/cell.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/random.hpp"
#include "bench/distributed/check.hpp"
#include "bench/distributed/problem.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kSilentRounds = 3;

/// Seconds of the slowest rank, by pass, of each round.
using Times = std::array<std::vector<double>, 2>;

/// The sides of one mask and length.
class CellRun {
 public:
  CellRun(const DistBenchOptions& options, RankDevice& device, Stopwatch& watch,
          const Problem& problem)
      : options_(options), device_(device), watch_(watch), problem_(problem) {}

  void make_and_check(DistCell& cell);
  void time(DistCell& cell, Link* link);

 private:
  struct Timed {
    DistSide id;
    RankAttention* attention;
    AttentionTensors tensors;
  };
  static Timed timed(const Side& side) {
    return {side.id, side.attention.get(), side.arrays.views()};
  }
  void check(const Side& side, DistSideFigures& figures);
  std::array<double, 2> once(const Timed& side);
  std::map<DistSide, Times> rounds(const std::vector<Timed>& sides, std::int32_t count);
  void time_silent(DistCell& cell, Link* link);

  const DistBenchOptions& options_;
  RankDevice& device_;
  Stopwatch& watch_;
  const Problem& problem_;
  std::vector<Side> sides_;
};

DistSideFigures& figures_of(DistCell& cell, DistSide side) {
  return cell.sides[static_cast<std::size_t>(side)];
}

std::int64_t sent_by(const Side& side) {
  if (side.group == nullptr) return 0;
  const auto& bytes = side.group->counters().bytes_to_peer;
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

bool is_nccl(const Communicator& group) {
  return group.backend() == std::string_view(transport_name(Transport::Nccl));
}

std::int64_t whole(double value) { return static_cast<std::int64_t>(value); }

void CellRun::make_and_check(DistCell& cell) {
  for (const DistSide id : kDistSides) {
    if (!problem_.allows(id)) continue;
    const double outside = static_cast<double>(device_.outside_bytes_sync().value_or(0));
    sides_.push_back(problem_.make(id));
    DistSideFigures& figures = figures_of(cell, id);
    check(sides_.back(), figures);
    figures.is_there = true;
    const double held = static_cast<double>(device_.outside_bytes_sync().value_or(0)) - outside;
    figures.outside_bytes = whole(watch_.largest_sync({held})[0]);
  }
}

/// The first run of a side: what it sends and holds, and whether it is right.
void CellRun::check(const Side& side, DistSideFigures& figures) {
  const AttentionTensors tensors = side.arrays.views();
  device_.wait_sync();
  device_.reset_peak();
  const std::int64_t used = device_.used_bytes().value_or(0);
  const std::int64_t begin = sent_by(side);
  side.attention->forward(tensors);
  const std::int64_t middle = sent_by(side);
  side.attention->backward(tensors);
  const std::int64_t end = sent_by(side);
  device_.wait_sync();
  const std::vector<double> largest =
      watch_.largest_sync({distance_sync(device_, side, sides_.front()),
                           static_cast<double>(middle - begin), static_cast<double>(end - middle),
                           static_cast<double>(device_.peak_bytes().value_or(0) - used)});
  figures.error = largest[0];
  figures.passes[0].bytes_sent = whole(largest[1]);
  figures.passes[1].bytes_sent = whole(largest[2]);
  figures.has_memory = device_.peak_bytes().has_value();
  figures.extra_bytes = whole(largest[3]);
  if (figures.error <= allowed_distance(device_.type())) return;
  std::ostringstream text;
  text << dist_side_name(side.id) << " is off the kernel alone by " << figures.error
       << "; allowed: " << allowed_distance(device_.type());
  throw InternalError(text.str());
}

std::array<double, 2> CellRun::once(const Timed& side) {
  std::array<double, 2> seconds{};
  const std::array<std::function<void()>, 2> passes = {
      [&] { side.attention->forward(side.tensors); },
      [&] { side.attention->backward(side.tensors); }};
  for (std::size_t pass = 0; pass < passes.size(); ++pass) {
    if (options_.times_pass[pass]) {
      seconds[pass] = watch_.seconds_of_sync(passes[pass]);
    } else if (pass == 0) {
      passes[pass]();
    }
  }
  return seconds;
}

std::map<DistSide, Times> CellRun::rounds(const std::vector<Timed>& sides, std::int32_t count) {
  for (const Timed& side : sides) once(side);  // prepares what is left to prepare
  std::map<DistSide, Times> found;
  std::vector<std::size_t> order(sides.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  RandomStream random(0);  // the same order on all ranks
  for (std::int32_t round = 0; round < count; ++round) {
    for (std::size_t i = order.size(); i > 1; --i) {
      const auto other = random.between(0, static_cast<std::int32_t>(i) - 1);
      std::swap(order[i - 1], order[static_cast<std::size_t>(other)]);
    }
    for (const std::size_t index : order) {
      const std::array<double, 2> seconds = once(sides[index]);
      for (std::size_t pass = 0; pass < 2; ++pass) {
        found[sides[index].id][pass].push_back(seconds[pass]);
      }
    }
  }
  for (auto& [id, times] : found) {
    for (std::vector<double>& seconds : times) seconds = watch_.largest_sync(std::move(seconds));
  }
  return found;
}

void CellRun::time(DistCell& cell, Link* link) {
  std::vector<Timed> all;
  for (const Side& side : sides_) all.push_back(timed(side));
  const std::map<DistSide, Times> times = rounds(all, options_.rounds);
  for (const auto& [id, passes] : times) {
    for (std::size_t pass = 0; pass < 2; ++pass) {
      if (!options_.times_pass[pass]) continue;
      const std::vector<double>& seconds = passes[pass];
      const std::vector<double>& alone = times.at(DistSide::Alone)[pass];
      const double size = id == DistSide::Alone ? 1.0 : cell.ranks;
      std::vector<double> shares;
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        shares.push_back(alone[i] / seconds[i] / size);
      }
      DistPassFigures& figures = figures_of(cell, id).passes[pass];
      figures.median_seconds = median(seconds);
      figures.low_seconds = *std::ranges::min_element(seconds);
      figures.high_seconds = *std::ranges::max_element(seconds);
      figures.flops_per_second = problem_.flops(pass) / size / figures.median_seconds;
      figures.share = median(shares);
    }
  }
  if (cell.ranks > 1) time_silent(cell, link);
}

/// Baselines whose link is muted, and in the library's place its kernel on keys at hand.
void CellRun::time_silent(DistCell& cell, Link* link) {
  std::vector<Timed> sides;
  Side local;
  for (const Side& side : sides_) {
    if (side.id == DistSide::Alone) continue;
    if (side.id == DistSide::Default) local = problem_.without_communication(side);
    sides.push_back(timed(side.id == DistSide::Default ? local : side));
  }
  if (link != nullptr) link->mute(true);
  const std::map<DistSide, Times> times = rounds(sides, std::min(kSilentRounds, options_.rounds));
  if (link != nullptr) link->mute(false);
  for (const auto& [id, passes] : times) {
    for (std::size_t pass = 0; pass < 2; ++pass) {
      if (!options_.times_pass[pass]) continue;
      figures_of(cell, id).passes[pass].silent_seconds = median(passes[pass]);
    }
  }
}

}  // namespace

DistRank::DistRank(const DistBenchOptions& options, std::shared_ptr<Communicator> base,
                   const std::function<void(const std::string&)>& tell)
    : options_(options), base_(std::move(base)) {
  tell_ = [this, tell](const std::string& line) {
    if (base_->rank() == 0) tell(line);
  };
  device_ = options.is_cpu ? make_host_device() : make_gpu_device(base_->rank());
  ours_ = baselines_ = base_;
  if (!options.is_cpu) {
    GpuGroupOptions group{.transport = options.transport,
                          .nccl = options.nccl,
                          .deadline = std::chrono::seconds(options.deadline_seconds)};
    ours_ = baselines_ = make_gpu_group(base_, group);
    group.transport = Transport::Nccl;
    const bool wants_nccl = options.has_baselines && base_->num_ranks() > 1;
    if (wants_nccl && !is_nccl(*ours_)) baselines_ = make_gpu_group(base_, group);
  }
  if (base_->num_ranks() > 1) meeting_ = std::make_unique<Link>(*baselines_, *device_);
  if (options.has_baselines && base_->num_ranks() > 1) {
    link_ = std::make_unique<Link>(*baselines_, *device_);
  }
  watch_ = std::make_unique<Stopwatch>(
      *device_, *base_, meeting_.get(),
      AttentionShape{options.heads_q, options.heads_kv, options.head_dim});
}

DistRank::~DistRank() = default;

DistCell DistRank::run(std::int32_t mask, std::int32_t tokens) {
  const std::string& name = options_.masks[static_cast<std::size_t>(mask)];
  tell_(name + ", " + std::to_string(tokens) + " tokens on each of " +
        std::to_string(base_->num_ranks()) + " ranks");
  const Problem problem(options_, {*device_, *ours_, link_.get(), baselines_.get()}, name, tokens);
  DistCell cell{.mask = mask,
                .tokens = tokens,
                .ranks = base_->num_ranks(),
                .rounds = options_.rounds,
                .num_slices = std::ssize(problem.mask().slices),
                .area = area(problem.mask()),
                .transport = transport_from_name("transport", ours_->backend())};
  CellRun run(options_, *device_, *watch_, problem);
  run.make_and_check(cell);
  run.time(cell, link_.get());
  tell_(to_summary(options_, cell));
  return cell;
}

void DistRank::close_sync() {
  device_->wait_sync();
  watch_.reset();
  link_.reset();
  meeting_.reset();
  if (is_nccl(*baselines_)) baselines_->close_sync();
  base_->allgather_sync({});  // nobody writes into windows that end now
  baselines_.reset();
  ours_.reset();
}

}  // namespace magi::cli
