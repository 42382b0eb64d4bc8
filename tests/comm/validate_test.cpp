// SPDX-License-Identifier: Apache-2.0
#include "comm/validate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/exchange_case.hpp"
#include "comm/mailbox_group.hpp"
#include "comm/ranks.hpp"

namespace magi::testing {
namespace {

using ::testing::HasSubstr;

/// Arguments of a good call on rank 0 of 2, to be poisoned.
struct Call {
  std::vector<HostTensor> storage;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  RowExchange rows{.owned = {{1, 0, 4}}, .needed = {{1, 0, 3}}};

  void add(DType input, std::vector<std::int64_t> shape, DType output) {
    storage.push_back(make_tensor(input, shape));
    inputs.push_back(storage.back().view);
    storage.push_back(make_tensor(output, shape));
    outputs.push_back(storage.back().view);
  }
  comm::ExchangeArgs args() const { return {inputs, outputs, rows, 0, 2}; }
};

Call good_cast() {
  Call call;
  call.add(DType::BFloat16, {4, 2, 8}, DType::BFloat16);
  return call;
}

Call good_merge() {
  Call call;
  call.add(DType::Float32, {4, 2, 8}, DType::Float32);
  call.add(DType::Float32, {4, 2}, DType::Float32);
  return call;
}

std::string cast_refusal(const Call& call) {
  return refusal_of([&] { comm::check_cast(call.args()); });
}

std::string reduce_refusal(const Call& call, ExchangeKind kind) {
  return refusal_of([&] { comm::check_reduce(call.args(), kind); });
}

TEST(Validate, GoodCallsPass) {
  EXPECT_EQ(cast_refusal(good_cast()), "accepted");
  EXPECT_EQ(reduce_refusal(good_cast(), ExchangeKind::Sum), "accepted");
  EXPECT_EQ(reduce_refusal(good_merge(), ExchangeKind::LseMerge), "accepted");
  Call narrow;
  narrow.add(DType::Float16, {4}, DType::Float32);
  EXPECT_EQ(reduce_refusal(narrow, ExchangeKind::Sum), "accepted");
}

TEST(Validate, RecordsOutsideAreNamed) {
  Call call = good_cast();
  call.rows.owned = {{1, 0, 2}, {1, 3, 2}};
  EXPECT_EQ(cast_refusal(call), "owned[1] is rows 3 to 5; allowed: rows 0 to 4 of inputs[0]");
  call = good_cast();
  call.rows.needed = {{1, -1, 1}};
  EXPECT_EQ(cast_refusal(call), "needed[0] is rows -1 to 0; allowed: rows 0 to 4 of outputs[0]");
  call.rows.needed = {{1, 2147483647, 2147483647}};
  EXPECT_THAT(cast_refusal(call), HasSubstr("rows 2147483647 to 4294967294"));
  call.rows.needed = {{2, 0, 1}};
  EXPECT_EQ(cast_refusal(call), "needed[0].peer is 2; allowed: 0 to 1");
  call.rows.needed = {{-1, 0, 1}};
  EXPECT_EQ(cast_refusal(call), "needed[0].peer is -1; allowed: 0 to 1");
  call.rows.needed = {{1, 0, -1}};
  EXPECT_EQ(cast_refusal(call), "needed[0].num_rows is -1; allowed: 0 or more");
  call.rows = {.owned = {{0, 0, 2}}, .needed = {{0, 0, 1}}};
  EXPECT_EQ(cast_refusal(call),
            "rows owned for the own rank is 2; allowed: as many as it needs from itself, 1");
}

TEST(Validate, TensorsThatDoNotFitAreNamed) {
  Call call = good_cast();
  call.outputs[0].shape[2] = 4;
  EXPECT_EQ(cast_refusal(call),
            "outputs[0].shape is [4, 2, 4]; allowed: the extents of inputs[0] beyond axis 0, "
            "[4, 2, 8]");
  call = good_cast();
  call.outputs[0].dtype = DType::Float16;
  EXPECT_EQ(cast_refusal(call), "outputs[0].dtype is float16; allowed: bfloat16, as its input");
  call = good_cast();
  call.inputs[0].device = 0;
  EXPECT_EQ(cast_refusal(call), "inputs[0].device is 0; allowed: -1 (CPU) for this backend");
  call = good_cast();
  call.inputs[0].data = nullptr;
  EXPECT_EQ(cast_refusal(call), "inputs[0].data is null; allowed: a pointer, where rows move");
  call = good_cast();
  call.inputs[0].rank = 5;
  EXPECT_EQ(cast_refusal(call), "inputs[0].rank is 5; allowed: 1 to 4");
  call = good_cast();
  call.inputs[0].shape[1] = -2;
  EXPECT_THAT(cast_refusal(call), HasSubstr("inputs[0].shape is [4, -2, 8]"));
  call = good_cast();
  call.outputs.clear();
  EXPECT_EQ(cast_refusal(call), "outputs is 0 tensors; allowed: as many as inputs, 1");
  call.inputs.clear();
  EXPECT_EQ(cast_refusal(call), "inputs is 0 tensors; allowed: 1 to 16 tensors");
}

TEST(Validate, ReducesOfOtherTypesAreNamed) {
  Call call;
  call.add(DType::Int32, {4}, DType::Int32);
  EXPECT_EQ(reduce_refusal(call, ExchangeKind::Sum),
            "outputs[0].dtype is int32; allowed: a floating-point type");
  call = {};
  call.add(DType::Float64, {4}, DType::Float32);
  EXPECT_EQ(reduce_refusal(call, ExchangeKind::Sum),
            "inputs[0].dtype is float64; allowed: float32 or a narrower floating-point type");
  call = {};
  call.add(DType::Float16, {4}, DType::BFloat16);
  EXPECT_THAT(reduce_refusal(call, ExchangeKind::Sum), HasSubstr("inputs[0].dtype is float16"));
  call = good_merge();
  call.inputs.pop_back();
  call.outputs.pop_back();
  EXPECT_EQ(reduce_refusal(call, ExchangeKind::LseMerge),
            "inputs is 1 tensors; allowed: {out, lse} pairs");
  call = good_merge();
  call.outputs[1].shape[1] = 3;
  call.inputs[1].shape[1] = 3;
  EXPECT_EQ(reduce_refusal(call, ExchangeKind::LseMerge),
            "inputs[1].shape is [4, 3]; allowed: [rows, heads] of its out tensor");
  call = good_merge();
  call.inputs[1].dtype = call.outputs[1].dtype = DType::BFloat16;
  EXPECT_EQ(reduce_refusal(call, ExchangeKind::LseMerge),
            "inputs[1].dtype is bfloat16; allowed: float32 or float64");
}

TEST(Validate, BadGroupsAreRefused) {
  EXPECT_EQ(refusal_of([] { make_thread_group(0); }), "num_ranks is 0; allowed: 1 to 1024");
  EXPECT_EQ(refusal_of([] { make_thread_group(2, {.deadline = std::chrono::milliseconds(0)}); }),
            "deadline is 0 ms; allowed: 1 ms to 2^40 ms (34 years)");
  EXPECT_EQ(
      refusal_of([] { make_thread_group(2, {.deadline = std::chrono::milliseconds::max()}); }),
      "deadline is 9223372036854775807 ms; allowed: 1 ms to 2^40 ms (34 years)")
      << "in nanoseconds it would be a time before now";
  EXPECT_EQ(refusal_of([] { make_thread_group(2, {.window_bytes = 0}); }),
            "window_bytes is 0; allowed: 1 or more");
  EXPECT_EQ(refusal_of([] { make_shm_group(3, 2, {}); }), "rank is 3; allowed: 0 to 1");
  EXPECT_EQ(refusal_of([] { make_shm_group(1, 2, {}); }),
            "bootstrap is empty; allowed: a function");
}

TEST(Validate, IncompleteTablesAreRefused) {
  const auto free_table = [](const magi_comm_vtable& table) { table.destroy(table.context); };
  magi_comm_vtable table = make_mailbox_tables(1)[0];
  magi_comm_vtable bad = table;
  bad.wait = nullptr;
  EXPECT_EQ(refusal_of([&] { make_vtable_group(bad); }),
            "vtable.wait is null; allowed: all entries set");
  bad = table;
  bad.rank = 1;
  EXPECT_EQ(refusal_of([&] { make_vtable_group(bad); }), "vtable.rank is 1; allowed: 0 to 0");
  bad = table;
  bad.struct_size = 8;
  EXPECT_THAT(refusal_of([&] { make_vtable_group(bad); }), HasSubstr("vtable.struct_size is 8"));
  free_table(table);
}

TEST(Validate, GroupsWithoutDeviceMemoryRefuseIt) {
  magi_comm_vtable table = make_mailbox_tables(1)[0];
  table.features = 0;
  const auto group = make_vtable_group(table);
  EXPECT_FALSE(group->has_device_exchange());
  EXPECT_EQ(refusal_of([&] { group->start_bytes({.device = 0}); }),
            "communicator is a mailbox group; allowed: a group that moves device memory");
}

TEST(Validate, ASuppliedGroupThatHasFailedSaysSo) {
  const auto failure_of = [](const Communicator& group) -> std::string {
    try {
      group.check();
    } catch (const CommError& error) {
      return std::to_string(static_cast<int>(error.failure())) + ": " + error.what();
    }
    return "none";
  };
  magi_comm_vtable table = make_mailbox_tables(1)[0];
  static std::int32_t status;
  table.allgather = [](void*, const void*, std::size_t, magi_gather_sink, void*) { return status; };
  table.last_error = [](void*, std::int32_t* failure) {
    *failure = 2;
    return status == MAGI_VTABLE_COMM_ERROR ? "rank 1 died" : "too many bytes";
  };
  const auto group = make_vtable_group(table);
  EXPECT_EQ(failure_of(*group), "none");
  status = MAGI_VTABLE_INVALID_ARGUMENT;
  EXPECT_THROW(group->allgather_sync({}), InvalidArgument);
  status = MAGI_VTABLE_CUDA_ERROR;
  EXPECT_THROW(group->allgather_sync({}), CudaError);
  status = MAGI_VTABLE_INTERNAL_ERROR;
  EXPECT_THROW(group->allgather_sync({}), InternalError);
  EXPECT_EQ(failure_of(*group), "none") << "what is no CommError leaves the group usable";
  status = MAGI_VTABLE_COMM_ERROR;
  EXPECT_THROW(group->allgather_sync({}), CommError);
  EXPECT_EQ(failure_of(*group), "2: rank 1 died");
  group->abort("no more");
  EXPECT_EQ(failure_of(*group), "2: rank 1 died") << "the first failure is told";

  const auto other = std::move(make_mailbox_group(1)[0]);
  other->abort("no more");
  EXPECT_EQ(failure_of(*other), "4: rank 0 aborted: no more");
}

TEST(Validate, ExchangesOfBytesReachTheTableOnceTheirArgumentsFit) {
  static magi_byte_exchange seen;
  static void* seen_stream;
  magi_comm_vtable table = make_mailbox_tables(1)[0];
  table.features = MAGI_COMM_MOVES_DEVICE_MEMORY | MAGI_COMM_COMPARES_EXCHANGES;
  table.start_bytes = [](void*, const magi_byte_exchange* args, void* stream,
                         void**) -> std::int32_t {
    seen = *args;
    seen_stream = stream;
    return MAGI_VTABLE_OK;
  };
  const auto group = make_vtable_group(table);
  ASSERT_TRUE(group->has_device_exchange());
  int memory = 0;
  int stream = 0;
  const std::int64_t sizes[] = {4};
  const std::int64_t negative[] = {-4};
  ByteExchange exchange{.send = &memory,
                        .receive = &memory,
                        .send_bytes = sizes,
                        .receive_bytes = sizes,
                        .kind = ExchangeKind::Sum,
                        .tag = {.plan_digest = 7, .stage = 2, .options = 3},
                        .content = 9};
  for (const std::int32_t device : {1, kCpuDevice}) {
    exchange.device = device;
    group->start_bytes(exchange, &stream);
    EXPECT_EQ(seen.struct_size, sizeof(seen));
    EXPECT_EQ(seen.send, &memory);
    EXPECT_EQ(seen.receive_bytes[0], 4);
    EXPECT_EQ(seen.device, device);
    EXPECT_EQ(seen.kind, MAGI_EXCHANGE_SUM);
    EXPECT_EQ(seen.plan_digest, 7U);
    EXPECT_EQ(seen.stage, 2);
    EXPECT_EQ(seen.options, 3U);
    EXPECT_EQ(seen.content, 9U);
    EXPECT_EQ(seen_stream, &stream);
  }
  exchange.send = nullptr;
  EXPECT_EQ(refusal_of([&] { group->start_bytes(exchange); }), "send is null; allowed: memory");
  exchange.send_bytes = negative;
  EXPECT_EQ(refusal_of([&] { group->start_bytes(exchange); }),
            "send_bytes[0] is -4; allowed: 0 or more");
  exchange.send_bytes = {};
  EXPECT_EQ(refusal_of([&] { group->start_bytes(exchange); }),
            "send_bytes is 0 entries; allowed: one for each of 1 ranks");
}

TEST(Validate, RefusalLeavesTheGroupUsable) {
  run_ranks(Backend::Threads, {.num_ranks = 2}, [](Communicator& group) {
    const TensorView none;
    const RowExchange rows{.owned = {{7, 0, 1}}};
    if (group.rank() == 0) {
      EXPECT_THAT(refusal_of([&] {
                    group.group_cast({&none, 1}, {&none, 1}, rows, {});
                  }),
                  HasSubstr("owned[0].peer is 7"));
    }
    group.close_sync();
  });
}

/// One group object per rank in one thread: rank 0 has left an exchange half way.
class HalfWay : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<Communicator>> group = make_thread_group(2);
  const HostTensor rows = make_tensor(DType::Float32, {4, 1});
  const RowExchange needs{.needed = {{1, 0, 4}}};
  std::unique_ptr<PendingExchange> pending =
      group[0]->group_cast({&rows.view, 1}, {&rows.view, 1}, needs, {});
};

TEST_F(HalfWay, CloseWithAnExchangeUnderWayIsRefused) {
  EXPECT_THAT(refusal_of([&] { group[0]->close_sync(); }), HasSubstr("exchange under way"));
}

TEST(ThreadGroup, OtherDataTypesAreNamed) {
  auto group = make_thread_group(2);
  const HostTensor floats = make_tensor(DType::Float32, {4, 1});
  const HostTensor doubles = make_tensor(DType::Float64, {4, 1});
  const RowExchange gives{.owned = {{1, 0, 4}}}, needs{.needed = {{0, 0, 4}}};
  const auto sent = group[0]->group_cast({&doubles.view, 1}, {&doubles.view, 1}, gives, {});
  const auto error = catch_comm_error([&] {
    group[1]->group_cast({&floats.view, 1}, {&floats.view, 1}, needs, {})->wait_sync();
  });
  EXPECT_EQ(error.failure(), CommFailure::PlanMismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 sends rows of data types float64; expected float32"));
}

TEST_F(HalfWay, AfterAFailureCheckAndCloseTellIt) {
  EXPECT_NO_THROW(group[0]->check());
  group[1]->abort("enough");
  for (const auto& rank : group) {
    const std::string told = "rank " + std::to_string(rank->rank()) + ": aborted by rank 1: enough";
    EXPECT_EQ(catch_comm_error([&] { rank->check(); }).what(), told);
    EXPECT_EQ(catch_comm_error([&] { rank->close_sync(); }).what(), told);
  }
}

TEST(ThreadGroup, AClosedGroupHasNoFailure) {
  const auto group = make_thread_group(1);
  group[0]->close_sync();
  EXPECT_NO_THROW(group[0]->check());
}

TEST_F(HalfWay, WaitAfterTheCommunicatorEndedThrows) {
  group[0].reset();
  EXPECT_EQ(catch_comm_error([&] { pending->wait_sync(); }).failure(), CommFailure::Aborted);
}

TEST(ThreadGroup, StartsNeedNobody) {
  // One thread plays both ranks: what fits the window is sent by the start alone.
  auto group = make_thread_group(2);
  HostTensor rows = make_tensor(DType::Float32, {1000, 64});
  fill(rows.view, [](const auto& at) { return static_cast<double>(at[0]); });
  const HostTensor received = make_tensor(DType::Float32, {1000, 64});
  const RowExchange owns{.owned = {{1, 0, 1000}}};
  const RowExchange needs{.needed = {{0, 0, 1000}}};
  group[0]->group_cast({&rows.view, 1}, {&received.view, 1}, owns, {})->wait_sync();
  group[1]->group_cast({&rows.view, 1}, {&received.view, 1}, needs, {})->wait_sync();
  EXPECT_EQ(rows.storage, received.storage);
}

}  // namespace
}  // namespace magi::testing
