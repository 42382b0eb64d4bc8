// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <span>
#include <thread>

#include "capi/owned_handles.hpp"
#include "comm/mailbox_group.hpp"

namespace magi::capi_test {
namespace {

magi_comm_options options_with(std::int64_t deadline_ms) {
  magi_comm_options options;
  magi_comm_options_init(&options);
  options.deadline_ms = deadline_ms;
  return options;
}

std::vector<Owned<magi_communicator>> thread_group(std::int32_t num_ranks,
                                                   std::int64_t deadline_ms = 10000) {
  const magi_comm_options options = options_with(deadline_ms);
  std::vector<magi_communicator*> handles(static_cast<std::size_t>(num_ranks));
  EXPECT_EQ(magi_thread_group_create(num_ranks, &options, handles.data()), MAGI_OK);
  return {handles.begin(), handles.end()};
}

template <typename Body>
void on_threads(const std::vector<Owned<magi_communicator>>& group, const Body& body) {
  std::vector<std::jthread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&body, handle = communicator.get()] { body(handle); });
  }
}

magi_tensor floats(float* data, std::int64_t rows) {
  return {.struct_size = sizeof(magi_tensor),
          .data = data,
          .dtype = MAGI_FLOAT32,
          .device = MAGI_CPU_DEVICE,
          .rank = 2,
          .shape = {rows, 2},
          .stride = {2, 1}};
}

/// A cast of as many tensors, whose `rows` go to a rank that sends as many.
magi_exchange_args cast_of(std::span<const magi_tensor> inputs,
                           std::span<const magi_tensor> outputs, const magi_peer_rows& rows) {
  return {.struct_size = sizeof(magi_exchange_args),
          .inputs = inputs.data(),
          .outputs = outputs.data(),
          .num_tensors = static_cast<std::int32_t>(inputs.size()),
          .kind = MAGI_EXCHANGE_CAST,
          .owned = &rows,
          .num_owned = 1,
          .needed = &rows,
          .num_needed = 1};
}

/// Both ranks of a pair send their two rows and get the other's; then each sums the other's rows
/// into its own. Returns an empty text or what went wrong.
std::string exchange_with_peer(magi_communicator* communicator) {
  std::int32_t rank = 0, num_ranks = 0;
  if (magi_communicator_rank(communicator, &rank, &num_ranks) != MAGI_OK) return "rank";
  const auto base = static_cast<float>(10 * rank);
  const auto other = static_cast<float>(10 * (1 - rank));
  std::array<float, 4> own{base, base + 1, base + 2, base + 3}, received{};
  const magi_tensor input = floats(own.data(), 2), output = floats(received.data(), 2);
  const magi_peer_rows rows{.peer = 1 - rank, .row = 0, .num_rows = 2};
  magi_exchange_args args = cast_of({&input, 1}, {&output, 1}, rows);
  const auto run = [&] {
    magi_exchange* exchange = nullptr;
    if (magi_exchange_start(communicator, &args, &exchange) != MAGI_OK) return false;
    const Owned<magi_exchange> owned(exchange);
    return magi_exchange_wait_sync(exchange) == MAGI_OK;
  };
  if (!run()) return magi_last_error_message();
  if (received != std::array<float, 4>{other, other + 1, other + 2, other + 3}) return "cast";
  args.inputs = &input;
  std::array<float, 4> sums{1, 1, 1, 1};
  const magi_tensor sum = floats(sums.data(), 2);
  args.outputs = &sum;
  args.kind = MAGI_EXCHANGE_SUM;
  if (!run()) return magi_last_error_message();
  if (sums != std::array<float, 4>{other + 1, other + 2, other + 3, other + 4}) return "reduce";
  if (magi_communicator_close_sync(communicator) != MAGI_OK) return magi_last_error_message();
  return "";
}

TEST(CommunicatorAbi, ThreadsExchangeRows) {
  const auto group = thread_group(2);
  EXPECT_STREQ(magi_communicator_backend(group[0].get()), "threads");
  on_threads(group, [](magi_communicator* c) { EXPECT_EQ(exchange_with_peer(c), ""); });
  magi_comm_counters counters{.struct_size = sizeof(counters)};
  ASSERT_EQ(magi_communicator_counters(group[1].get(), &counters), MAGI_OK);
  const Owned<magi_buffer> bytes(counters.bytes_to_peer);
  EXPECT_EQ(array_of<std::int64_t>(bytes.get()), (std::vector<std::int64_t>{32, 0}));
  EXPECT_EQ(counters.casts, 1);
  EXPECT_EQ(counters.reduces, 1);
}

TEST(CommunicatorAbi, ExchangesWriteApartFromWhatTheyRead) {
  const auto group = thread_group(1);
  std::array<float, 8> values{1, 2, 3, 4};
  const magi_tensor input = floats(values.data(), 2);
  magi_tensor output = floats(values.data() + 2, 2);
  const magi_peer_rows rows{.peer = 0, .row = 0, .num_rows = 2};
  const magi_exchange_args args = cast_of({&input, 1}, {&output, 1}, rows);
  magi_exchange* exchange = nullptr;
  EXPECT_EQ(magi_exchange_start(group[0].get(), &args, &exchange), MAGI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(magi_last_error_message()).find("overlapping args.inputs"),
            std::string::npos)
      << magi_last_error_message();
  EXPECT_EQ(values, (std::array<float, 8>{1, 2, 3, 4}));
  output = floats(values.data() + 4, 2);
  ASSERT_EQ(magi_exchange_start(group[0].get(), &args, &exchange), MAGI_OK);
  const Owned<magi_exchange> owned(exchange);
  EXPECT_EQ(magi_exchange_wait_sync(exchange), MAGI_OK);
  EXPECT_EQ(values, (std::array<float, 8>{1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST(CommunicatorAbi, ExchangesTakeUpToSixteenTensors) {
  const auto group = thread_group(1);
  constexpr std::size_t kMost = 16;
  std::array<std::array<float, 4>, kMost + 1> values{}, received{};
  std::vector<magi_tensor> inputs, outputs;
  for (std::size_t t = 0; t <= kMost; ++t) {
    values[t].fill(static_cast<float>(t));
    inputs.push_back(floats(values[t].data(), 2));
    outputs.push_back(floats(received[t].data(), 2));
  }
  const magi_peer_rows rows{.peer = 0, .row = 0, .num_rows = 2};
  magi_exchange_args args = cast_of(inputs, outputs, rows);
  magi_exchange* exchange = nullptr;
  EXPECT_EQ(magi_exchange_start(group[0].get(), &args, &exchange), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "args.num_tensors is 17; allowed: 1 to 16");
  args.num_tensors = kMost;
  ASSERT_EQ(magi_exchange_start(group[0].get(), &args, &exchange), MAGI_OK)
      << magi_last_error_message();
  const Owned<magi_exchange> owned(exchange);
  EXPECT_EQ(magi_exchange_wait_sync(exchange), MAGI_OK);
  for (std::size_t t = 0; t < kMost; ++t) EXPECT_EQ(received[t], values[t]);
}

TEST(CommunicatorAbi, ATableOfFunctionsIsACommunicator) {
  std::vector<Owned<magi_communicator>> group;
  for (const magi_comm_vtable& vtable : testing::make_mailbox_tables(2)) {
    group.push_back(made<magi_communicator>(
        [&](auto** c) { return magi_communicator_from_vtable(&vtable, c); }));
  }
  on_threads(group, [](magi_communicator* c) { EXPECT_EQ(exchange_with_peer(c), ""); });
  magi_communicator* refused = nullptr;
  EXPECT_EQ(magi_communicator_from_vtable(nullptr, &refused), MAGI_INVALID_ARGUMENT);
}

TEST(CommunicatorAbi, FailuresSayOfWhatKindTheyAre) {
  const auto group = thread_group(2, 60);
  EXPECT_EQ(magi_communicator_close_sync(group[0].get()), MAGI_COMM_ERROR);
  EXPECT_EQ(magi_last_comm_failure(), MAGI_COMM_TIMEOUT);
  EXPECT_EQ(magi_mask_rows(nullptr, nullptr, nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_last_comm_failure(), 0);

  const auto other = thread_group(2);
  EXPECT_EQ(magi_communicator_check(other[0].get()), MAGI_OK);
  EXPECT_EQ(magi_communicator_abort(other[1].get(), "enough"), MAGI_OK);
  EXPECT_EQ(magi_communicator_close_sync(other[0].get()), MAGI_COMM_ERROR);
  EXPECT_EQ(magi_communicator_check(other[0].get()), MAGI_COMM_ERROR);
  EXPECT_EQ(magi_last_comm_failure(), MAGI_COMM_ABORTED);
  EXPECT_STREQ(magi_last_error_message(), "rank 0: aborted by rank 1: enough");
  EXPECT_EQ(magi_communicator_check(nullptr), MAGI_INVALID_ARGUMENT);
}

TEST(CommunicatorAbi, RefusesBadOptions) {
  magi_communicator* handles[2] = {};
  magi_comm_options options = options_with(0);
  EXPECT_EQ(magi_thread_group_create(2, &options, handles), MAGI_INVALID_ARGUMENT);
  options = options_with(10);
  EXPECT_EQ(magi_thread_group_create(0, &options, handles), MAGI_INVALID_ARGUMENT);
  magi_bootstrap bootstrap{.struct_size = sizeof(bootstrap), .rank = 0, .num_ranks = 1};
  EXPECT_EQ(magi_shm_group_create(&bootstrap, &options, handles), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "bootstrap.allgather is null; allowed: a function");
  const auto group = thread_group(1);
  const magi_exchange_args args{.struct_size = sizeof(args), .kind = 3};
  magi_exchange* exchange = nullptr;
  EXPECT_EQ(magi_exchange_start(group[0].get(), &args, &exchange), MAGI_INVALID_ARGUMENT);
}

/// Runs `body` for rank 1 in a child process and for rank 0 here; both must return "".
void in_two_processes(const std::function<std::string(std::int32_t)>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(body(1).empty() ? 0 : 1);
  EXPECT_EQ(body(0), "");
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "rank 1 failed";
}

/// Ends of two pipes between a pair of ranks.
struct PipePair {
  int to_peer = -1;
  int from_peer = -1;
  std::int32_t rank = 0;
};

std::int32_t gather_by_pipe(void* context, const void* bytes, std::size_t size, void* gathered) {
  const auto& pipes = *static_cast<const PipePair*>(context);
  auto* all = static_cast<char*>(gathered);
  std::memcpy(all + static_cast<std::size_t>(pipes.rank) * size, bytes, size);
  if (write(pipes.to_peer, bytes, size) != static_cast<ssize_t>(size)) return 1;
  char* peer = all + static_cast<std::size_t>(1 - pipes.rank) * size;
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = read(pipes.from_peer, peer + done, size - done);
    if (got <= 0) return 2;
    done += static_cast<std::size_t>(got);
  }
  return 0;
}

std::int32_t gather_alone(void* /*context*/, const void* bytes, std::size_t size, void* gathered) {
  std::memcpy(gathered, bytes, size);
  return 0;
}

TEST(CommunicatorAbi, ProcessesMeetThroughTheCallersBootstrap) {
  int forth[2], back[2];
  ASSERT_EQ(pipe(forth), 0);
  ASSERT_EQ(pipe(back), 0);
  in_two_processes([&](std::int32_t rank) -> std::string {
    PipePair pipes{.to_peer = rank == 0 ? forth[1] : back[1],
                   .from_peer = rank == 0 ? back[0] : forth[0],
                   .rank = rank};
    const magi_bootstrap bootstrap{.struct_size = sizeof(bootstrap),
                                   .rank = rank,
                                   .num_ranks = 2,
                                   .allgather = gather_by_pipe,
                                   .context = &pipes};
    const magi_comm_options options = options_with(10000);
    magi_communicator* communicator = nullptr;
    if (magi_shm_group_create(&bootstrap, &options, &communicator) != MAGI_OK) {
      return magi_last_error_message();
    }
    const Owned<magi_communicator> owned(communicator);
    return exchange_with_peer(communicator);
  });
  for (const int end : {forth[0], forth[1], back[0], back[1]}) close(end);
}

TEST(CommunicatorAbi, NcclGroupsRefuseBadArguments) {
  magi_nccl_options options;
  magi_nccl_options_init(&options);
  EXPECT_EQ(options.deadline_ms, 100'000);
  magi_bootstrap bootstrap{
      .struct_size = sizeof(bootstrap), .num_ranks = 1, .allgather = gather_alone};
  magi_communicator* communicator = nullptr;
  EXPECT_EQ(magi_nccl_group_create(&bootstrap, 4711, &options, &communicator),
            MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(magi_last_error_message()).substr(0, 15), "device is 4711;");
  options.max_ctas = -2;
  EXPECT_EQ(magi_nccl_group_create(&bootstrap, 0, &options, &communicator), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "max_ctas is -2; allowed: 0 or more");
  options.deadline_ms = 0;
  EXPECT_EQ(magi_nccl_group_create(&bootstrap, 0, &options, &communicator), MAGI_INVALID_ARGUMENT);
  bootstrap.allgather = nullptr;
  EXPECT_EQ(magi_nccl_group_create(&bootstrap, 0, &options, &communicator), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(communicator, nullptr);
}

TEST(CommunicatorAbi, ProcessesMeetByName) {
  const std::string name = "magi-capi-test-" + std::to_string(getpid());
  in_two_processes([&](std::int32_t rank) -> std::string {
    const magi_comm_options options = options_with(10000);
    magi_communicator* communicator = nullptr;
    if (magi_shm_group_create_named(name.c_str(), rank, 2, &options, &communicator) != MAGI_OK) {
      return magi_last_error_message();
    }
    const Owned<magi_communicator> owned(communicator);
    return exchange_with_peer(communicator);
  });
}

}  // namespace
}  // namespace magi::capi_test
