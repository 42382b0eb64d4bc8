// SPDX-License-Identifier: Apache-2.0
#include "capi/owned_handles.hpp"
#include "cuda/timing.hpp"
#include "gpu/abi_tensor.hpp"
#include "gpu/backward_case.hpp"
#include "gpu/gpu_test.hpp"

// The backward on device tensors through the C ABI: the bits of the C++ call.
namespace magi::test {
namespace {

using capi_test::mask_from;

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
  expected.put_into(test, args);
  const BackwardWork work(args);
  const GuardedWorkspace workspace(work.workspace_bytes());
  attention_backward_cuda(args, work, workspace.view(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  expected.download_sync();
  const auto handle = mask_from(test.mask);
  const Stream stream;
  for (const std::int32_t sm_margin : {0, 0, 100}) {
    BackwardOutputs seen(test);
    seen.put_into(test, args);
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

}  // namespace
}  // namespace magi::test
