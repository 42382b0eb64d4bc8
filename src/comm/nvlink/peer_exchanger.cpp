// SPDX-License-Identifier: Apache-2.0
#include "comm/nvlink/peer_exchanger.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/math.hpp"
#include "base/mix.hpp"
#include "comm/nvlink/peer_link.hpp"
#include "comm/nvlink/peer_rounding.hpp"
#include "comm/rows/exchange_kind.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace magi::comm {

/// Tasks in device memory.
class DeviceTasks {
 public:
  DeviceTasks() = default;
  explicit DeviceTasks(std::span<const PushTask> tasks)
      : memory_(to_device_sync(tasks)), count_(tasks.size()) {}
  std::span<const PushTask> get() const {
    return {static_cast<const PushTask*>(memory_.data()), count_};
  }

 private:
  DeviceBuffer memory_;
  std::size_t count_ = 0;
};

/// The places of a table's rows at peers, with tasks in device memory. Tasks for rare kinds of
/// moves are made when such a move first needs them.
struct PeerTables {
  PeerPlaces places;
  DeviceTasks to_rows;
  mutable std::optional<DeviceTasks> to_wire, to_owners;
  mutable bool has_sections = false;  ///< casts arrive in arrival_chunks
};

namespace {

constexpr std::int32_t kBlocksPerSm = 2;
/// Blocks of a push beside attention; each takes a multiprocessor from it. With 24, rows arrive at
/// best 4 % earlier, and attention loses up to 1.4 times as much.
constexpr std::int32_t kBlocksBeside = 16;
static_assert(kBlocksBeside <= kMostWaitingBlocks);
/// The bound of sent, of received and of own rows for a short push, which takes some 10 us.
constexpr std::int64_t kMostShortBytes = 2 << 20;
/// Arrival chunks let attention begin early, but cost it balance: few, unless many rows travel.
constexpr std::int32_t kFewSections = 2;
constexpr std::int64_t kLongRows = 8192;

class PeerMove;

/// The state that the moves of one exchanger share. Moves may outlive the exchanger.
struct PeerState {
  std::shared_ptr<PeerLink> link;
  std::shared_ptr<RowMemory> memory;
  CountMove count;
  std::int32_t num_blocks = 1;
  std::shared_ptr<Stream> beside;        ///< stream of pushes beside attention; may be null
  std::optional<std::int64_t> partials;  ///< memory of place_partials, for the next reduce
  std::deque<PeerMove*> reduces;         ///< reduces in start order that are not applied yet
  std::int64_t largest_bytes = 0;
};

std::shared_ptr<const PeerTables> make_tables(PeerPlaces places) {
  auto tables = std::make_shared<PeerTables>();
  tables->to_rows = DeviceTasks(places.to_rows);
  tables->places = std::move(places);
  return tables;
}

/// Returns the tasks of a reduce, or of a cast to memory outside the window.
std::span<const PushTask> tasks_on_wire(const PeerTables& tables, bool is_reducing) {
  std::optional<DeviceTasks>& tasks = is_reducing ? tables.to_owners : tables.to_wire;
  if (!tasks) tasks.emplace(is_reducing ? owner_tasks(tables.places) : wire_tasks(tables.places));
  return tasks->get();
}

/// Gathers each rank's side of the exchange. Collective.
std::vector<RowExchange> gather_rows(Communicator& base, const RowExchange& own) {
  std::vector<PeerRows> records = own.owned;
  records.insert(records.end(), own.needed.begin(), own.needed.end());
  records.push_back({.num_rows = static_cast<std::int32_t>(own.owned.size())});
  std::vector<RowExchange> all;
  for (const auto& bytes : base.allgather_sync(std::as_bytes(std::span(records)))) {
    std::vector<PeerRows> theirs(bytes.size() / sizeof(PeerRows));
    MAGI_CHECK(!theirs.empty());
    std::memcpy(theirs.data(), bytes.data(), theirs.size() * sizeof(PeerRows));
    const auto middle = theirs.begin() + theirs.back().num_rows;
    all.push_back({{theirs.begin(), middle}, {middle, theirs.end() - 1}});
  }
  return all;
}

/// Returns the places of a table's rows at the peers. The first call finds them, by everyone() or,
/// if that is empty, by a collective gather.
std::shared_ptr<const PeerTables> peer_tables(PeerLink& link, const RowTable& table,
                                              const EveryonesRows& everyone) {
  if (table.at_peers == nullptr) {
    const DeviceScope scope(link.device());
    const auto all = everyone ? everyone() : gather_rows(link.base(), table.rows);
    table.at_peers = make_tables(peer_places(all, link.rank()));
  }
  return table.at_peers;
}

/// Returns the number of arrival chunks of a table's rows with so many heads.
std::int32_t arrival_chunks(const PeerPlaces& places, std::int64_t num_heads) {
  const bool is_long = places.most_remote >= kLongRows;
  return static_cast<std::int32_t>(
      std::gcd(num_heads, std::int64_t{is_long ? kMaxSections : kFewSections}));
}

std::int64_t most_partials(const RowTable& table, const PeerPlaces& places) {
  return table.most_partials.value_or(places.most_owned);
}

/// Whether a cast copies own rows on the caller's stream, as its push has few blocks.
bool copies_own(const PeerState& state, const RowTable& table) {
  return state.beside != nullptr && !table.own.empty();
}

/// Bytes from the first to the last row of neighbouring tensors, of `row_bytes` in all.
std::int64_t rows_extent(const TensorView& first, std::int64_t row_bytes) {
  if (first.shape[0] == 0) return 0;
  const auto element = static_cast<std::int64_t>(dtype_bytes(first.dtype));
  return (first.shape[0] - 1) * first.stride[0] * element + row_bytes;
}

/// A push on a stream beside the caller's. After join, the caller's stream waits for it.
class SidePush {
 public:
  explicit SidePush(std::shared_ptr<Stream> side) : side_(std::move(side)) {}
  cudaStream_t fork(cudaStream_t stream) {
    event_.record(stream);
    event_.await(side_->handle());
    return side_->handle();
  }
  void end() { event_.record(side_->handle()); }
  void join(cudaStream_t stream) const { event_.await(stream); }

 private:
  std::shared_ptr<Stream> side_;
  OrderEvent event_;
};

class PeerMove final : public PendingKeys {
 public:
  /// `push`: options of a later push; null: the rows are sent at once.
  PeerMove(std::shared_ptr<PeerState> state, const RowTable& table, const RowMove& move,
           const KeyPush* push, void* stream);
  ~PeerMove() override {
    std::erase(state_->reduces, this);
    if (!side_) return;
    on_device_or_drop(link_.device(), [this] { side_->join(queue_of(start_)); });
  }

  void await(void* stream) override {
    if (is_done_) return;
    while (is_reduce(kind_) && state_->reduces.front() != this) {
      state_->reduces.front()->finish(stream);
    }
    finish(stream);
  }
  bool round_into(std::span<const TensorView> targets) override {
    if (!state_->memory->can_round({kind_, to_, wire_types_, wire_, tasks_, targets})) return false;
    rounded_.assign(targets.begin(), targets.end());
    return true;
  }
  void push(void* stream) override {
    if (!is_sent_) launch(stream);
  }
  void guard_results(std::byte* results, std::int64_t size_bytes) override {
    arrival_.results = results;
    arrival_.results_bytes = size_bytes;
  }
  void guard_places(const AddressTable& places) override { arrival_.addresses = places; }
  ArrivalFlags arrival_flags() const override { return link_.arrival_flags(arrival_.move); }
  bool is_awaited_by_push() const override { return is_short_; }

 private:
  /// The pass of a move that is outside of passes.
  PassStart own_pass(const RowMove& move) const;
  void enqueue(const RowTable& table, const RowMove& move);
  /// Whether the tensors are at the addresses where peers write.
  bool is_placed() const;
  /// Whether the push awaits the incoming rows: these are so few that computing beside it costs
  /// more in launches than it saves.
  bool is_short(const RowTable& table) const;
  void push_in_place(const RowMove& move);
  void push_to_wire(const RowTable& table, const RowMove& move);
  /// `num_own`: the number of own tasks, which are the last ones.
  void set_push(const RowMove& move, std::span<const PushTask> tasks, std::int32_t num_own,
                std::span<const DeviceRows> to);
  void launch(void* stream);
  /// Makes a graph that captures `stream` keep the memory that its nodes read.
  void keep_with_capture(void* stream) const;
  /// Allocates memory for this move's received rows, outside the window.
  void leave_window(const RowTable& table);
  void await_rows(void* stream);
  /// Lets the kernel that awaits partials also add and round them. Returns false if it cannot.
  bool round_arriving(const Partials& partials, void* stream);
  void add_partials(void* stream);
  void finish(void* stream);

  std::shared_ptr<PeerState> state_;
  PeerLink& link_;
  std::shared_ptr<const PeerTables> tables_;
  std::shared_ptr<const void> on_device_;  ///< owns the memory of tasks_
  std::span<const PushTask> on_wire_;      ///< tasks of rows that do not arrive in place
  ExchangeKind kind_;
  std::int64_t most_rows_;  ///< the most rows on the wire of a receiving rank
  std::vector<TensorView> to_, rounded_;
  std::uint64_t wire_types_;
  std::int64_t row_bytes_;
  RowTasks tasks_;
  void* start_;             ///< the stream on which the move was started
  const bool is_deferred_;  ///< a later push sends the rows
  const KeyPush how_;       ///< options of that push
  RowPush push_;
  bool is_sent_ = false;
  bool is_written_ = false;            ///< attention writes the partials to their owners
  bool is_short_ = false;              ///< the push also awaits the incoming rows
  RowArrival arrival_;                 ///< the rows that are still awaited
  std::byte* wire_ = nullptr;          ///< received rows that are not in place; own ones after them
  std::shared_ptr<std::byte> buffer_;  ///< owns the wire if it is not in the window
  std::optional<SidePush> side_;
  bool is_done_ = false;
};

PeerMove::PeerMove(std::shared_ptr<PeerState> state, const RowTable& table, const RowMove& move,
                   const KeyPush* push, void* stream)
    : state_(std::move(state)),
      link_(*state_->link),
      tables_(peer_tables(link_, table, {})),
      kind_(move.kind),
      most_rows_(is_reduce(kind_) ? most_partials(table, tables_->places)
                                  : tables_->places.most_needed),
      to_(move.to.begin(), move.to.end()),
      wire_types_(wire_types_of(move.from, move.to)),
      row_bytes_(static_cast<std::int64_t>(wire_row_bytes(to_, wire_types_))),
      start_(stream),
      is_deferred_(push != nullptr),
      how_(push != nullptr ? *push : KeyPush{}) {
  const DeviceScope scope(link_.device());
  const bool is_on_wire = is_reduce(kind_) || !is_placed();
  // If attention runs beside the push, the push itself copies own rows.
  if (is_on_wire || (!is_deferred_ && copies_own(*state_, table))) {
    tasks_ = state_->memory->tasks_of(table, stream);
    on_device_ = table.on_device[link_.device()];
  }
  if (is_on_wire) on_wire_ = tasks_on_wire(*tables_, is_reduce(kind_));
  const bool is_pass = !link_.is_in_pass();
  const PassStart start = own_pass(move);
  if (is_pass) link_.check_pass(start, queue_of(start_));
  try {
    if (is_pass) link_.begin_pass(start, queue_of(start_));
    enqueue(table, move);
    if (is_pass) leave_window(table);
  } catch (const std::exception& error) {
    std::erase(state_->reduces, this);
    if (is_pass) link_.abort(error.what());
    if (is_pass) link_.end_pass(queue_of(start_));
    throw;
  }
  if (is_pass) link_.end_pass(queue_of(start_));
}

PassStart PeerMove::own_pass(const RowMove& move) const {
  const std::int64_t most_bytes = most_rows_ * row_bytes_;
  const std::uint64_t digest =
      mix(mix(mix(move.tag.plan_digest + move.tag.options, static_cast<std::uint64_t>(kind_)),
              wire_types_),
          static_cast<std::uint64_t>(most_bytes));
  return {.most_bytes = most_bytes, .digest = digest};
}

void PeerMove::enqueue(const RowTable& table, const RowMove& move) {
  if (!is_reduce(kind_) && is_placed()) {
    is_short_ = is_short(table);
    push_in_place(move);
  } else {
    push_to_wire(table, move);
  }
  if (is_reduce(kind_)) state_->reduces.push_back(this);
  state_->largest_bytes = std::max(state_->largest_bytes, link_.used_bytes());
  if (kind_ == ExchangeKind::Other) return;
  const WireOrder& sent = is_reduce(kind_) ? table.needed : table.owned;
  state_->count(kind_, sent.peer_bytes(row_bytes_));
}

bool PeerMove::is_placed() const {
  return std::ranges::all_of(to_, [this](const TensorView& tensor) {
    return link_.is_in_area(static_cast<const std::byte*>(tensor.data));
  });
}

bool PeerMove::is_short(const RowTable& table) const {
  if (!is_deferred_ || state_->beside != nullptr || link_.is_sharing_gpu()) return false;
  const WireOrder& needed = table.needed;
  const std::int64_t most_rows =
      std::max({needed.num_rows, needed.num_own_rows, table.owned.num_rows});
  return most_rows * row_bytes_ <= kMostShortBytes;
}

void PeerMove::push_in_place(const RowMove& move) {
  std::vector<DeviceRows> to = tensor_rows(to_);
  const auto begin = reinterpret_cast<std::intptr_t>(link_.area(link_.rank()));
  for (DeviceRows& rows : to) rows.data -= begin;
  const PeerPlaces& places = tables_->places;
  const std::uint64_t own_source = std::uint64_t{1} << link_.rank();
  const bool is_pushing_own = !how_.is_without_own && tasks_.own.empty();
  arrival_ = {.sources = places.cast_sources & ~(is_pushing_own ? 0 : own_source),
              .data = static_cast<std::byte*>(to_[0].data),
              .size_bytes = rows_extent(to_[0], row_bytes_)};
  const std::int32_t num_left_out = is_pushing_own ? 0 : places.num_own_tasks;
  const std::span<const PushTask> tasks = tables_->to_rows.get();
  set_push(move, tasks.first(tasks.size() - static_cast<std::size_t>(num_left_out)),
           places.num_own_tasks - num_left_out, to);
  state_->memory->copy({move.from}, {to_}, tasks_.own, start_);
}

void PeerMove::push_to_wire(const RowTable& table, const RowMove& move) {
  const PeerPlaces& places = tables_->places;
  const std::optional<std::int64_t> taken =
      is_reduce(kind_) ? std::exchange(state_->partials, std::nullopt) : std::nullopt;
  is_written_ = taken.has_value();
  const std::int64_t offset = taken ? *taken : link_.place(most_rows_ * row_bytes_);
  wire_ = link_.area(link_.rank()) + offset;
  auto to = wire_rows(to_, wire_types_, nullptr);
  for (DeviceRows& rows : to) rows.data += offset;  // from the start of the region
  const WireOrder& received = is_reduce(kind_) ? table.owned : table.needed;
  arrival_ = {.sources = is_reduce(kind_)
                             ? places.reduce_sources
                             : places.cast_sources & ~(std::uint64_t{1} << link_.rank()),
              .data = wire_,
              .size_bytes = received.num_rows * row_bytes_};
  if (is_reduce(kind_)) {
    set_push(move, is_written_ ? std::span<const PushTask>() : on_wire_, 0, to);
    std::byte* behind = wire_ + table.owned.num_rows * row_bytes_;
    state_->memory->copy({move.from}, {move.from, behind}, tasks_.own_partials, start_);
  } else {
    set_push(move, on_wire_, 0, to);
    if (!how_.is_without_own) state_->memory->copy({move.from}, {to_}, tasks_.own, start_);
  }
}

void PeerMove::set_push(const RowMove& move, std::span<const PushTask> tasks, std::int32_t num_own,
                        std::span<const DeviceRows> to) {
  const bool has_sections = kind_ == ExchangeKind::Cast && tables_->has_sections;
  push_ = {.tasks = tasks.data(),
           .num_remote = static_cast<std::int32_t>(tasks.size()) - num_own,
           .num_own = num_own,
           .num_tensors = static_cast<std::int32_t>(to.size()),
           .num_sections = arrival_.num_sections =
               has_sections ? arrival_chunks(tables_->places, move.from[0].shape[1]) : 1,
           .move = arrival_.move = link_.next_move(),
           .is_beside = is_deferred_ && !is_short_};
  std::ranges::copy(tensor_rows(move.from), push_.from);
  std::ranges::copy(to, push_.to);
  for (std::int32_t peer = 0; peer < link_.num_ranks(); ++peer) {
    push_.region[peer] = arrival_.areas[peer] = link_.area(peer);
  }
  arrival_.area_bytes = link_.area_bytes();
  // A kernel has written the partials: the wait for those of others publishes these too. If ranks
  // share a GPU's queue, that wait may block another rank's, so a push publishes them instead.
  is_sent_ = arrival_.is_publishing = is_written_ && !link_.is_sharing_gpu();
  if (!is_deferred_ && !is_sent_) launch(start_);
}

void PeerMove::launch(void* stream) {
  is_sent_ = true;
  keep_with_capture(stream);
  cudaStream_t queue = queue_of(stream);
  std::optional<PassBegin> begin = link_.take_begin();
  if (state_->beside != nullptr) {
    // Attention reads the number of the pass on the caller's stream.
    if (begin) launch_begin_pass(link_.view(), *std::exchange(begin, std::nullopt), queue);
    queue = side_.emplace(state_->beside).fork(queue);
  }
  const std::int32_t most = state_->num_blocks;
  // Rows for peers get all of the few blocks beside attention if there are no own rows, else half
  // of them. Own rows get the other half, at least one block, as a multiprocessor has two.
  const bool has_all = side_.has_value() && push_.num_own == 0;
  const std::int32_t share = has_all ? most : ceil_div(most, 2);
  const std::int32_t remote = how_.is_beside_attention ? std::min(share, kBlocksBeside) : share;
  PushBlocks blocks{.remote = remote, .own = most - remote};
  // So few blocks begin the pass themselves.
  if (is_short_) blocks = {.remote = kBlocksBeside, .own = kMostWaitingBlocks - kBlocksBeside};
  launch_push(link_.view(), push_, blocks, begin, is_short_ ? &arrival_ : nullptr, queue);
  if (is_short_) arrival_.sources = 0;
  if (side_) side_->end();
  link_.meet_on_shared_gpu_sync();
}

void PeerMove::keep_with_capture(void* stream) const {
  cudaGraph_t graph = graph_of_capture(queue_of(stream));
  if (graph == nullptr) return;
  keep_with_graph(graph, tables_);
  if (on_device_ != nullptr) keep_with_graph(graph, on_device_);
  keep_with_graph(graph, state_->link);
}

void PeerMove::await_rows(void* stream) {
  push(stream);
  launch_await(link_.view(), arrival_, queue_of(stream));
  arrival_.sources = 0;
  arrival_.is_publishing = false;
  if (!side_) return;
  side_->join(queue_of(stream));
  side_.reset();
}

bool PeerMove::round_arriving(const Partials& partials, void* stream) {
  if (rounded_.empty() || arrival_.sources == 0 || link_.is_sharing_gpu()) return false;
  push(stream);
  return !side_ && launch_round_arriving(partials, link_.view(), arrival_, queue_of(stream));
}

void PeerMove::leave_window(const RowTable& table) {
  const WireOrder& received = is_reduce(kind_) ? table.owned : table.needed;
  await_rows(start_);
  const std::int64_t size_bytes = (received.num_rows + received.num_own_rows) * row_bytes_;
  if (wire_ == nullptr || size_bytes == 0) return;
  buffer_ = state_->memory->allocate(size_bytes, start_);
  cuda_check(cudaMemcpyAsync(buffer_.get(), wire_, static_cast<std::size_t>(size_bytes),
                             cudaMemcpyDeviceToDevice, queue_of(start_)),
             "cudaMemcpyAsync");
  wire_ = buffer_.get();
}

void PeerMove::add_partials(void* stream) {
  const Partials partials{kind_, to_, wire_types_, wire_, tasks_, rounded_};
  if (!round_arriving(partials, stream)) {
    await_rows(stream);
    state_->memory->combine(partials, stream);
  }
  std::erase(state_->reduces, this);
}

void PeerMove::finish(void* stream) {
  const DeviceScope scope(link_.device());
  if (is_reduce(kind_)) {
    add_partials(stream);
  } else {
    await_rows(stream);
    if (wire_ != nullptr) state_->memory->copy({to_, wire_}, {to_}, tasks_.needed, stream);
  }
  buffer_.reset();
  is_done_ = true;
}

class LinkExchanger final : public PeerExchanger {
 public:
  LinkExchanger(std::shared_ptr<PeerLink> link, const DeviceAllocator& allocator,
                std::int32_t beside_sms, CountMove count)
      : state_(std::make_shared<PeerState>()) {
    const DeviceScope scope(link->device());
    const std::int32_t num_sms = beside_sms > 0 ? beside_sms : device_info(link->device()).num_sms;
    if (beside_sms > 0) state_->beside = std::make_shared<Stream>();
    state_->num_blocks = kBlocksPerSm * num_sms;
    state_->memory = make_device_memory(link->device(), allocator);
    state_->link = std::move(link);
    state_->count = std::move(count);
  }

  void prepare(const RowTable& table, const MoveUse& use, const EveryonesRows& everyone) override {
    const auto tables = peer_tables(*state_->link, table, everyone);
    const DeviceScope scope(state_->link->device());
    const bool is_on_wire = is_reduce(use.kind) || !use.is_in_place;
    if (is_on_wire || copies_own(*state_, table)) state_->memory->tasks_of(table, nullptr);
    if (is_on_wire) tasks_on_wire(*tables, is_reduce(use.kind));
  }
  std::int64_t most_rows(const RowTable& table, ExchangeKind kind) const override {
    const PeerPlaces& places = peer_tables(*state_->link, table, {})->places;
    return is_reduce(kind) ? most_partials(table, places)
                           : std::max(places.most_rows, places.most_needed);
  }
  void begin_pass(const PassStart& start, void* stream) override {
    state_->link->begin_pass(start, queue_of(stream));
  }
  void check_pass(const PassStart& start, void* stream) const override {
    state_->link->check_pass(start, queue_of(stream));
  }
  void end_pass(void* stream) noexcept override { state_->link->end_pass(queue_of(stream)); }
  std::byte* place(std::int64_t most_bytes) override {
    return state_->link->area(state_->link->rank()) + state_->link->place(most_bytes);
  }

  bool is_capturable() const override { return true; }
  void bring_in_sections(const RowTable& table) override {
    peer_tables(*state_->link, table, {})->has_sections = true;
  }
  ArrivalShape arrival_shape(const RowTable& table, std::int32_t num_heads) const override {
    const PeerPlaces& places = peer_tables(*state_->link, table, {})->places;
    return {.num_sources = kMaxPeers,
            .num_sections = arrival_chunks(places, num_heads),
            .early_source = state_->link->rank()};
  }
  std::vector<NeededPart> needed_parts(const RowTable& table) const override {
    const PeerPlaces& places = peer_tables(*state_->link, table, {})->places;
    std::vector<NeededPart> parts;
    parts.reserve(places.needed_runs.size());
    for (const PushTask& run : places.needed_runs) {
      const bool is_own = run.peer == state_->link->rank();
      parts.push_back({.row = run.local_row,
                       .num_rows = run.num_rows,
                       .source = run.peer,
                       .wire_row = is_own ? -1 : run.remote_row,
                       .is_shared = is_own && places.is_shared(run)});
    }
    return parts;
  }
  std::vector<std::byte*> place_partials(const RowTable& table,
                                         std::span<const TensorView> partials) override {
    const auto row_bytes =
        static_cast<std::int64_t>(wire_row_bytes(partials, wire_types_of(partials, partials)));
    const PeerPlaces& places = peer_tables(*state_->link, table, {})->places;
    state_->partials = state_->link->place(most_partials(table, places) * row_bytes);
    std::vector<std::byte*> regions;
    for (std::int32_t rank = 0; rank < state_->link->num_ranks(); ++rank) {
      regions.push_back(state_->link->area(rank) + *state_->partials);
    }
    return regions;
  }

  std::unique_ptr<PendingRows> start(const RowTable& table, const RowMove& move,
                                     void* stream) override {
    return make_move(table, move, nullptr, stream);
  }
  std::unique_ptr<PendingKeys> start_keys(const RowTable& table, const RowMove& move,
                                          const KeyPush& push, void* stream) override {
    return make_move(table, move, &push, stream);
  }
  std::int64_t largest_bytes() const override { return state_->largest_bytes; }

 private:
  std::unique_ptr<PeerMove> make_move(const RowTable& table, const RowMove& move,
                                      const KeyPush* push, void* stream) {
    MAGI_CHECK(move.from.size() == move.to.size() && move.from.size() <= kMaxTensors);
    return std::make_unique<PeerMove>(state_, table, move, push, stream);
  }

  std::shared_ptr<PeerState> state_;
};

}  // namespace

std::unique_ptr<PeerExchanger> make_peer_exchanger(std::shared_ptr<PeerLink> link,
                                                   const DeviceAllocator& allocator,
                                                   std::int32_t beside_sms, CountMove count) {
  return std::make_unique<LinkExchanger>(std::move(link), allocator, beside_sms, std::move(count));
}

}  // namespace magi::comm
