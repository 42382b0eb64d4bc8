// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"
#include "capi/outputs.hpp"

namespace magi::capi {
namespace {

/// The tensors that a call writes, apart from what it reads.
TensorView read_output(const magi_tensor* output, const char* name, const TensorView& input,
                       const char* input_name) {
  const TensorView view = read_tensor(output, name);
  const NamedTensor written[] = {{name, view}};
  const NamedTensor read[] = {{input_name, input}};
  check_outputs(written, read);
  return view;
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_dispatch(const magi_tensor* global, const magi_placement* placement, int32_t rank,
                          double pad_value, const magi_tensor* local, void* stream) {
  return guarded([&] {
    const magi::TensorView from = read_tensor(global, "global");
    magi::dispatch(from, placement_of(placement), rank, read_output(local, "local", from, "global"),
                   pad_value, stream);
  });
}

magi_status magi_undispatch(const magi_tensor* local, const magi_placement* placement,
                            magi_communicator* communicator, const magi_tensor* global,
                            void* stream) {
  return guarded([&] {
    const magi::TensorView from = read_tensor(local, "local");
    magi::undispatch(from, placement_of(placement), communicator_of(communicator),
                     read_output(global, "global", from, "local"), stream);
  });
}

magi_status magi_undispatch_backward(const magi_undispatch_gradient* gradient,
                                     const magi_placement* placement,
                                     magi_communicator* communicator, void* stream) {
  return guarded([&] {
    const magi_undispatch_gradient given = read_struct(gradient, "gradient");
    if (given.mode != MAGI_GRADIENT_REPLICATED && given.mode != MAGI_GRADIENT_PARTIAL) {
      throw magi::invalid("gradient.mode", given.mode, "0 (replicated) or 1 (partial)");
    }
    const magi::TensorView from = read_tensor(given.global_gradient, "global_gradient");
    magi::undispatch_backward(
        from, placement_of(placement), communicator_of(communicator),
        static_cast<magi::UndispatchGradient>(given.mode),
        read_output(given.local_gradient, "local_gradient", from, "global_gradient"), stream);
  });
}

magi_status magi_roll(const magi_roll_args* args, const magi_placement* placement,
                      magi_communicator* communicator, void* stream) {
  return guarded([&] {
    const magi_roll_args given = read_struct(args, "args");
    const magi::TensorView from = read_tensor(given.local, "local");
    magi::roll(from, placement_of(placement), given.num_valid_rows, given.shift,
               communicator_of(communicator), read_output(given.out, "out", from, "local"), stream);
  });
}
