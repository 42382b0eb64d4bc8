// SPDX-License-Identifier: Apache-2.0
#include "gpu/sender_side.hpp"

#include <array>
#include <cstring>

#include "cuda/driver.hpp"
#include "magi/error.hpp"

namespace magi::bench {
namespace {

constexpr std::int32_t kMostRows = 16384;
constexpr std::int32_t kAttentionRows = 8192;
constexpr std::int32_t kDocuments[] = {0, 3072, 5120, 6656, 7680, 8192};
constexpr std::size_t kTensorBytes = std::size_t{kMostRows} * kRowBytes;
constexpr std::int32_t kRowsOfWarpTask = 4;
enum Counter : int { kTicketWord, kLeftOverWord, kEndedWord, kPushTicket, kPushEnded, kNumWords };

/// What row `row` of a tensor of a side holds, 8 bytes at a time.
std::uint64_t value_at(std::int32_t device, int tensor, std::int64_t row, std::size_t word) {
  return (static_cast<std::uint64_t>(device * 2 + tensor + 1) << 48) |
         (static_cast<std::uint64_t>(row) << 16) | word;
}

DeviceBuffer numbered_rows(std::int32_t device) {
  constexpr std::size_t kWords = kRowBytes / sizeof(std::uint64_t);
  std::vector<std::uint64_t> values;
  values.reserve(2 * kMostRows * kWords);
  for (int tensor = 0; tensor < 2; ++tensor) {
    for (std::int64_t row = 0; row < kMostRows; ++row) {
      for (std::size_t word = 0; word < kWords; ++word) {
        values.push_back(value_at(device, tensor, row, word));
      }
    }
  }
  return to_device_sync<std::uint64_t>(values);
}

/// Small numbers in bfloat16, enough for a kernel's power to be that of real ones.
DeviceBuffer drawn_values(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<std::uint16_t>(((seed >> 33) & 0x807f) | 0x3f00);
  }
  return to_device_sync<std::uint16_t>(values);
}

DeviceBuffer zeroed(std::size_t size_bytes) {
  DeviceBuffer buffer(size_bytes);
  cuda_check(cudaMemset(buffer.data(), 0, size_bytes), "cudaMemset");
  return buffer;
}

template <typename Value>
std::shared_ptr<Value> pinned() {
  void* data = nullptr;
  cuda_check(cudaHostAlloc(&data, sizeof(Value), cudaHostAllocPortable), "cudaHostAlloc");
  std::memset(data, 0, sizeof(Value));
  const auto release = [](Value* value) { static_cast<void>(cudaFreeHost(value)); };
  return {static_cast<Value*>(data), release};
}

/// Tasks of up to `most` rows, run by run, each run to its place counted from the other end.
std::vector<comm::PushTask> tasks_of(const RunsOfRows& runs, std::int32_t most, std::int32_t peer) {
  std::vector<comm::PushTask> tasks;
  for (std::int32_t to = 0; to < runs.rows; to += most) {
    const std::int32_t from = runs.rows - (to / runs.run + 1) * runs.run + to % runs.run;
    tasks.push_back({.local_row = from, .remote_row = to, .num_rows = most, .peer = peer});
  }
  return tasks;
}

}  // namespace

Gate::Gate() : word_(pinned<std::int32_t>()) {}

Side::Side(std::int32_t device)
    : device_(device),
      scope_(device),
      q_(drawn_values(std::size_t{kAttentionRows} * 64 * 128, 1)),
      k_(drawn_values(std::size_t{kAttentionRows} * 8 * 128, 2)),
      v_(drawn_values(std::size_t{kAttentionRows} * 8 * 128, 3)),
      out_(q_.size_bytes()),
      lse_(std::size_t{kAttentionRows} * 64 * sizeof(float)),
      source_(numbered_rows(device)),
      counters_(zeroed(kNumWords * sizeof(unsigned))),
      times_(zeroed(2 * sizeof(std::uint64_t))),
      state_(zeroed(sizeof(comm::PassState))),
      mailbox_(pinned<comm::PeerMailbox>()) {
  const std::array<std::int32_t, 2> both{0, 1};
  window_ = MappedMemory::create(2 * kTensorBytes, device, both);
  control_ = MappedMemory::create(sizeof(comm::PeerControl), device, both);
  write_value_ =
      reinterpret_cast<decltype(write_value_)>(driver_function("cuStreamWriteValue64", 12000));
  make_attention();
}

void Side::make_attention() {
  const auto view = [this](const DeviceBuffer& buffer, DType type,
                           std::initializer_list<std::int64_t> shape) {
    TensorView tensor = contiguous_view(buffer.data(), type, shape);
    tensor.device = device_;
    return tensor;
  };
  for (std::size_t i = 0; i + 1 < std::size(kDocuments); ++i) {
    const Range rows{kDocuments[i], kDocuments[i + 1]};
    slices_.push_back(band_slice(rows, rows, MaskType::Causal));
  }
  args_.q = view(q_, DType::BFloat16, {kAttentionRows, 64, 128});
  args_.k = view(k_, DType::BFloat16, {kAttentionRows, 8, 128});
  args_.v = view(v_, DType::BFloat16, {kAttentionRows, 8, 128});
  args_.out = view(out_, DType::BFloat16, {kAttentionRows, 64, 128});
  args_.lse = view(lse_, DType::Float32, {kAttentionRows, 64});
  args_.slices = slices_;
  sm90::InstanceSet instances = sm90::find_instances(args_);
  const ForwardProblem problem = sm90::forward_problem(args_);
  // Pieces of cut tiles would take another instance.
  const ForwardTuning tuning{.max_pieces = 1};
  plain_ = sm90::make_forward(instances, problem, slices_, tuning, {});
  static const sm90::ForwardInstance kPushing = pushing_forward();
  instances.by_features[static_cast<std::size_t>(sm90::FeatureSet::Plain)] = &kPushing;
  pushing_ = sm90::make_forward(instances, problem, slices_, tuning, {});
}

void Side::connect(const Side& peer) { peer_ = &peer; }

void Side::set_runs(const RunsOfRows& runs) {
  const DeviceScope here(device_);
  runs_ = runs;
  push_tasks_ = to_device_sync<comm::PushTask>(tasks_of(runs, comm::kRowsPerPush, 1 - device_));
  warp_tasks_ = to_device_sync<comm::PushTask>(tasks_of(runs, kRowsOfWarpTask, 1 - device_));
}

std::byte* Side::source(int tensor) const {
  return static_cast<std::byte*>(source_.data()) + static_cast<std::size_t>(tensor) * kTensorBytes;
}

/// On the main stream, with what it takes in front of attention.
void Side::push(int blocks) {
  comm::PeerView view{.control = {},
                      .state = static_cast<comm::PassState*>(state_.data()),
                      .mailbox = mailbox_.get(),
                      .rank = device_,
                      .num_ranks = 2,
                      .deadline_ns = 1'000'000'000};
  const auto at = [](const Side& side) {
    return reinterpret_cast<comm::PeerControl*>(side.control_->data());
  };
  view.control[device_] = at(*this);
  view.control[1 - device_] = at(*peer_);
  comm::RowPush rows{.tasks = static_cast<const comm::PushTask*>(push_tasks_.data()),
                     .num_remote = runs_.rows / comm::kRowsPerPush,
                     .num_tensors = 2,
                     .num_sections = 2,
                     .is_beside = job_.is_beside_attention};
  for (int tensor = 0; tensor < 2; ++tensor) {
    rows.from[tensor] = {.data = source(tensor),
                         .row_stride = kRowBytes,
                         .row_units = kRowBytes,
                         .head_units = kRowBytes};
    rows.to[tensor] = rows.from[tensor];
    rows.to[tensor].data = nullptr;
    rows.to[tensor].data += tensor * kRowBytes;
    rows.to[tensor].row_stride = 2 * kRowBytes;
  }
  rows.region[1 - device_] = peer_->window_->data();
  const comm::PassBegin begin{.area = num_passes_++ % 2, .digest = 7};
  comm::launch_push(view, rows, {.remote = blocks}, begin, nullptr, main_.handle());
}

void Side::copy_runs(Sender sender) {
  for (std::int32_t to = 0; to < runs_.rows; to += runs_.run) {
    const std::int64_t from = runs_.rows - to - runs_.run;
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::byte* source_rows = source(tensor) + from * kRowBytes;
      const auto count = static_cast<std::size_t>(runs_.run);
      if (sender == Sender::Copies) {
        std::byte* target =
            peer_->window_->data() + std::int64_t{to} * 2 * kRowBytes + tensor * kRowBytes;
        cuda_check(cudaMemcpy2DAsync(target, 2 * kRowBytes, source_rows, kRowBytes, kRowBytes,
                                     count, cudaMemcpyDefault, beside_.handle()),
                   "cudaMemcpy2DAsync");
      } else {
        std::byte* target =
            peer_->window_->data() + (std::int64_t{tensor} * runs_.rows + to) * kRowBytes;
        cuda_check(cudaMemcpyAsync(target, source_rows, count * kRowBytes, cudaMemcpyDefault,
                                   beside_.handle()),
                   "cudaMemcpyAsync");
      }
    }
  }
}

void Side::copy_batch() const {
  std::vector<void*> targets;
  std::vector<const void*> sources;
  for (std::int32_t to = 0; to < runs_.rows; to += runs_.run) {
    const std::int64_t from = runs_.rows - to - runs_.run;
    for (int tensor = 0; tensor < 2; ++tensor) {
      targets.push_back(peer_->window_->data() +
                        (std::int64_t{tensor} * runs_.rows + to) * kRowBytes);
      sources.push_back(source(tensor) + from * kRowBytes);
    }
  }
  const std::vector<std::size_t> sizes(targets.size(),
                                       static_cast<std::size_t>(runs_.run) * kRowBytes);
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;
  cuda_check(cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), sizes.size(),
                                  &attributes, &first, 1, beside_.handle()),
             "cudaMemcpyBatchAsync");
}

void Side::set_warps(int num_warps) {
  auto* counters = static_cast<unsigned*>(counters_.data());
  auto* times = static_cast<std::uint64_t*>(times_.data());
  auto& theirs = *reinterpret_cast<comm::PeerControl*>(peer_->control_->data());
  const WarpPush push{.k = source(0),
                      .v = source(1),
                      .to = peer_->window_->data(),
                      .tasks = static_cast<const comm::PushTask*>(warp_tasks_.data()),
                      .num_tasks = runs_.rows / kRowsOfWarpTask,
                      .num_warps = num_warps,
                      .ticket = counters + kPushTicket,
                      .num_ended = counters + kPushEnded,
                      .arrived = &theirs.magic[device_],
                      .number = ++number_,
                      .end_time = times + 1,
                      .begin_time = times};
  if (job_.is_beside_attention) return set_push(push);
  launch_warp_push(push, num_warps * device_info(device_).num_sms, main_.handle());
}

/// What does not run in the stream of attention goes to a stream beside it.
void Side::send(const Sending& sending) {
  switch (sending.sender) {
    case Sender::None:
      return;
    case Sender::Push:
      return push(sending.amount);
    case Sender::Warps:
      return set_warps(sending.amount);
    case Sender::Copies:
    case Sender::TensorCopies:
      copy_runs(sending.sender);
      break;
    case Sender::CopyBatch:
      copy_batch();
      break;
  }
  auto& theirs = *reinterpret_cast<comm::PeerControl*>(peer_->control_->data());
  driver_check(write_value_(beside_.handle(), reinterpret_cast<CUdeviceptr>(&theirs.magic[device_]),
                            ++number_, 0),
               "cuStreamWriteValue64");
}

void Side::attend(const KeyArrivals* arrivals, bool is_pushing) {
  const sm90::ForwardMemory memory{.counters = static_cast<unsigned*>(counters_.data())};
  sm90::enqueue_forward(args_, is_pushing ? pushing_ : plain_, memory, arrivals, main_.handle());
}

void Side::enqueue(const Job& job, const std::int32_t* gate) {
  const DeviceScope here(device_);
  job_ = job;
  launch_gate(gate, main_.handle());
  begin_.record(main_.handle());
  fork_.record(main_.handle());
  fork_.await(beside_.handle());
  const auto send_timed = [&] {
    const auto begin = std::chrono::steady_clock::now();
    send(job.sending);
    host_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const bool is_push = job.sending.sender == Sender::Push;
  if (is_push && job.is_beside_attention) {
    // As a call over ranks does it: attention may begin as soon as the push has.
    auto& own = *reinterpret_cast<comm::PeerControl*>(control_->data());
    const KeyArrivals arrivals{.flags = own.arrived[0][0],
                               .expected = &static_cast<comm::PassState*>(state_.data())->pass,
                               .start = [&](void* /*stream*/) { send_timed(); },
                               .await = [](void* /*stream*/) {}};
    attend(&arrivals, false);
  } else {
    send_timed();
    const bool is_on_main = is_push || job.sending.sender == Sender::Warps;
    sent_.record(is_on_main && !job.is_beside_attention ? main_.handle() : beside_.handle());
    if (job.is_beside_attention) attend(nullptr, job.sending.sender == Sender::Warps);
  }
  end_.record(main_.handle());
}

Times Side::times_sync() {
  const DeviceScope here(device_);
  main_.wait_sync();
  beside_.wait_sync();
  Times times{.attention = end_.seconds_since_sync(begin_), .host = host_seconds_};
  const bool is_beside = job_.is_beside_attention;
  if (job_.sending.sender == Sender::Warps && is_beside) {
    const auto clock = to_host_sync<std::uint64_t>(times_.data(), 2);
    times.sent = static_cast<double>(clock[1] - clock[0]) * 1e-9;
  } else if (job_.sending.sender != Sender::Push || !is_beside) {
    times.sent = sent_.seconds_since_sync(begin_);
  }
  return times;
}

void Side::clear_sync() const {
  const DeviceScope here(device_);
  cuda_check(cudaMemset(window_->data(), 0, window_->size_bytes()), "cudaMemset");
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void Side::check_sync(const std::string& what, bool is_apart) const {
  constexpr std::size_t kWords = kRowBytes / sizeof(std::uint64_t);
  const auto rows = static_cast<std::size_t>(runs_.rows);
  const auto seen = to_host_sync<std::uint64_t>(window_->data(), 2 * rows * kWords);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::size_t line = i / kWords;  // a row of one tensor
    const int tensor = static_cast<int>(is_apart ? line / rows : line % 2);
    const auto to = static_cast<std::int32_t>(is_apart ? line % rows : line / 2);
    const std::int64_t from = runs_.rows - (to / runs_.run + 1) * runs_.run + to % runs_.run;
    if (seen[i] == value_at(peer_->device_, tensor, from, i % kWords)) continue;
    throw InternalError(what + ": row " + std::to_string(to) + " of tensor " +
                        std::to_string(tensor) + " on GPU " + std::to_string(device_) +
                        " is not what was sent");
  }
}

}  // namespace magi::bench
