// SPDX-License-Identifier: Apache-2.0
#include "capi/abi_tensor.hpp"
#include "capi/owned_handles.hpp"
#include "cuda/stream.hpp"
#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/gpu_test.hpp"

// The backward on device tensors through the C ABI: the bits of the C++ call.
namespace magi::test {
namespace {

using capi_test::made;
using capi_test::mask_from;
using capi_test::Owned;

/// The structs of one call.
struct AbiCall {
  explicit AbiCall(const BackwardArgs& args)
      : q(to_tensor(args.q)),
        k(to_tensor(args.k)),
        v(to_tensor(args.v)),
        out(to_tensor(args.out)),
        lse(to_tensor(args.lse)),
        dout(to_tensor(args.dout)),
        dlse(to_tensor(args.dlse)),
        dq(to_tensor(args.dq)),
        dk(to_tensor(args.dk)),
        dv(to_tensor(args.dv)) {}
  AbiCall(const AbiCall&) = delete;
  AbiCall& operator=(const AbiCall&) = delete;

  magi_tensor q, k, v, out, lse, dout, dlse, dq, dk, dv;
  magi_attention_inputs inputs{.struct_size = sizeof(inputs), .q = &q, .k = &k, .v = &v};
  magi_attention_result result{.struct_size = sizeof(result), .out = &out, .lse = &lse};
  magi_attention_gradients gradients{.struct_size = sizeof(gradients),
                                     .dout = &dout,
                                     .dlse = &dlse,
                                     .dq = &dq,
                                     .dk = &dk,
                                     .dv = &dv};
};

/// The attention of a plan of one rank for the case's mask and sizes.
struct OneRank {
  explicit OneRank(const BackwardCase& test) {
    const auto mask = mask_from(test.mask);
    magi_plan_config config;
    magi_plan_config_init(&config);
    config.num_heads_q = test.heads_q;
    config.num_heads_kv = test.heads_kv;
    config.head_dim_qk = test.dim_qk;
    config.head_dim_v = test.dim_v;
    plan = made<magi_plan>([&](auto** p) { return magi_plan_create(mask.get(), &config, p); });
    magi_comm_options options;
    magi_comm_options_init(&options);
    alone =
        made<magi_communicator>([&](auto** c) { return magi_thread_group_create(1, &options, c); });
    attention = made<magi_attention>(
        [&](auto** a) { return magi_attention_create(plan.get(), alone.get(), a); });
  }
  Owned<magi_communicator> alone;
  Owned<magi_plan> plan;
  Owned<magi_attention> attention;
};

using CapiBackwardTest = GpuTest;

TEST_F(CapiBackwardTest, EqualsTheCppCallOnFirstAndLaterCalls) {
  BackwardCase test;
  test.heads_q = 8;
  test.heads_kv = 2;
  test.has_dlse = true;
  test.mask = {700,
               700,
               {band_slice({0, 300}, {0, 300}, MaskType::Causal),
                band_slice({300, 700}, {200, 700}, MaskType::Full)}};
  const BackwardInputs inputs(test);
  BackwardOutputs expected(test);
  BackwardArgs args = inputs.args(test);
  expected.put_into(args);
  const BackwardWork work(args);
  const GuardedWorkspace workspace(work.workspace_bytes());
  attention_backward_cuda(args, work, workspace.view(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  expected.download_sync();
  const auto handle = mask_from(test.mask);
  const Stream stream;
  for (const std::int32_t sm_margin : {0, 0, 100}) {
    BackwardOutputs seen(test);
    seen.put_into(args);
    AbiCall abi(args);
    abi.inputs.sm_margin = sm_margin;
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ASSERT_EQ(magi_flex_attention_backward(handle.get(), &abi.inputs, &abi.result, &abi.gradients,
                                           stream.handle()),
              MAGI_OK)
        << magi_last_error_message();
    stream.wait_sync();
    seen.download_sync();
    if (sm_margin == 0) expect_same_gradients(expected, seen);
    EXPECT_TRUE(seen.dq.has_whole_guards());
  }
}

TEST_F(CapiBackwardTest, WorksInMemoryOfTheCaller) {
  BackwardCase test;
  test.has_dlse = true;
  test.mask = {300, 300, {band_slice({0, 300}, {0, 300}, MaskType::Causal)}};
  const BackwardInputs inputs(test);
  BackwardArgs args = inputs.args(test);
  const auto mask = mask_from(test.mask);
  const auto run = [&](BackwardOutputs& outputs, const magi_workspace* workspace) {
    outputs.put_into(args);
    AbiCall abi(args);
    abi.gradients.workspace = workspace;
    const magi_status status =
        magi_flex_attention_backward(mask.get(), &abi.inputs, &abi.result, &abi.gradients, nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    outputs.download_sync();
    return status;
  };
  BackwardOutputs expected(test), seen(test);
  ASSERT_EQ(run(expected, nullptr), MAGI_OK) << magi_last_error_message();
  AbiCall abi(args);
  std::size_t size_bytes = 0;
  ASSERT_EQ(magi_flex_attention_backward_workspace_bytes(mask.get(), &abi.inputs, &abi.result,
                                                         &abi.gradients, &size_bytes),
            MAGI_OK);
  const GuardedWorkspace memory(static_cast<std::int64_t>(size_bytes));
  magi_workspace workspace{sizeof(workspace), memory.view().data, size_bytes};
  ASSERT_EQ(run(seen, &workspace), MAGI_OK) << magi_last_error_message();
  expect_same_gradients(expected, seen);
  --workspace.size_bytes;
  EXPECT_EQ(run(seen, &workspace), MAGI_INVALID_ARGUMENT);
}

TEST_F(CapiBackwardTest, APlanOfOneRankGivesTheBitsOfTheCallWithoutPlanInBothModes) {
  BackwardCase test;
  test.heads_q = 8;
  test.heads_kv = 2;
  test.has_dlse = true;
  test.mask = {512, 512, {band_slice({0, 512}, {0, 512}, MaskType::Causal)}};
  const BackwardInputs inputs(test);
  BackwardArgs args = inputs.args(test);
  const auto mask = mask_from(test.mask);
  const OneRank rank(test);
  const Stream stream;
  const auto run = [&](bool is_planned, std::int32_t is_fast, BackwardOutputs& outputs) {
    outputs.put_into(args);
    AbiCall abi(args);
    abi.inputs.is_fast_backward = is_fast;
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const magi_status status =
        is_planned ? magi_attention_backward(rank.attention.get(), &abi.inputs, &abi.result,
                                             &abi.gradients, stream.handle())
                   : magi_flex_attention_backward(mask.get(), &abi.inputs, &abi.result,
                                                  &abi.gradients, stream.handle());
    EXPECT_EQ(status, MAGI_OK) << magi_last_error_message();
    stream.wait_sync();
    outputs.download_sync();
  };
  BackwardOutputs expected(test), planned(test);
  run(false, 0, expected);
  run(true, 0, planned);
  expect_same_gradients(expected, planned);
  for (const bool is_planned : {false, true}) {
    BackwardOutputs fast(test);
    run(is_planned, 1, fast);
    expect_same_bits(expected.dk, fast.dk);
    expect_same_bits(expected.dv, fast.dv);
  }
}

}  // namespace
}  // namespace magi::test
