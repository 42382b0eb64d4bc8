// SPDX-License-Identifier: Apache-2.0
// Causal attention of two packed documents on a GPU (Hopper), forward and backward, in memory and
// on a stream of the caller's. Values of ones have means of ones, whose gradient is known too.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <stdexcept>
#include <vector>

#include "magi/attention_cuda.hpp"
#include "magi/mask_builders.hpp"

namespace {

constexpr std::int32_t kRows = 1000, kHeads = 8, kHeadsKv = 2, kDim = 128;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// A tensor in memory of this program's, filled with one value.
template <typename Element>
magi::TensorView made(std::initializer_list<std::int64_t> shape, Element value) {
  magi::TensorView view = magi::contiguous_view(nullptr, magi::dtype_of<Element>(), shape);
  const std::vector<Element> host(static_cast<std::size_t>(view.num_elements()), value);
  check(cudaMalloc(&view.data, host.size() * sizeof(Element)));
  check(cudaMemcpy(view.data, host.data(), host.size() * sizeof(Element), cudaMemcpyHostToDevice));
  view.device = 0;
  return view;
}

/// The largest distance of bfloat16 elements from a value.
float distance(const magi::TensorView& view, float value) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(view.num_elements()));
  check(cudaMemcpy(bits.data(), view.data, bits.size() * 2, cudaMemcpyDeviceToHost));
  float largest = 0.0f;
  for (const std::uint32_t element : bits) {
    largest = std::max(largest, std::abs(std::bit_cast<float>(element << 16) - value));
  }
  return largest;
}

}  // namespace

int main() try {
  const std::vector<std::int32_t> documents{0, 400, kRows};
  const auto mask = magi::mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  constexpr std::uint16_t kOne = 0x3f80, kZero = 0;  // of bfloat16
  const auto q = made({kRows, kHeads, kDim}, kOne), k = made({kRows, kHeadsKv, kDim}, kOne);
  const auto v = made({kRows, kHeadsKv, kDim}, kOne), out = made({kRows, kHeads, kDim}, kZero);
  const auto lse = made({kRows, kHeads}, 0.0f), dout = made({kRows, kHeads, kDim}, kOne);
  const auto dq = made({kRows, kHeads, kDim}, kOne), dk = made({kRows, kHeadsKv, kDim}, kOne);
  const auto dv = made({kRows, kHeadsKv, kDim}, kZero);

  const magi::ForwardArgs forward{
      .q = q, .k = k, .v = v, .slices = mask.slices, .out = out, .lse = lse};
  magi::BackwardArgs backward = {};
  backward.q = q, backward.k = k, backward.v = v, backward.slices = mask.slices;
  backward.out = out, backward.lse = lse, backward.dout = dout;
  backward.dq = dq, backward.dk = dk, backward.dv = dv;
  const magi::ForwardWork forward_work(forward);  // schedules, made once for a mask and shapes
  const magi::BackwardWork backward_work(backward);
  magi::DeviceWorkspace workspace{.size_bytes = backward_work.workspace_bytes()};
  check(cudaMalloc(&workspace.data, static_cast<std::size_t>(workspace.size_bytes)));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  magi::attention_forward_cuda(forward, forward_work, stream);  // enqueued, waits for nothing
  magi::attention_backward_cuda(backward, backward_work, workspace, stream);
  check(cudaStreamSynchronize(stream));
  const float largest = std::max({distance(out, 1.0f), distance(dq, 0.0f), distance(dk, 0.0f)});
  std::cout << (largest < 0.01f ? "right" : "wrong") << '\n';
  return largest < 0.01f ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
