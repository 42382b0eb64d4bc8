// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"
#include "capi/status.hpp"

using namespace magi::capi;

magi_status magi_dispatch(const magi_tensor* global, const magi_placement* placement, int32_t rank,
                          double pad_value, const magi_tensor* local, void* stream) {
  return guarded([&] {
    magi::dispatch(read_tensor(global, "global"), placement_of(placement), rank,
                   read_tensor(local, "local"), pad_value, stream);
  });
}

magi_status magi_undispatch(const magi_tensor* local, const magi_placement* placement,
                            magi_communicator* communicator, const magi_tensor* global,
                            void* stream) {
  return guarded([&] {
    magi::undispatch(read_tensor(local, "local"), placement_of(placement),
                     communicator_of(communicator), read_tensor(global, "global"), stream);
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
    magi::undispatch_backward(read_tensor(given.global_gradient, "global_gradient"),
                              placement_of(placement), communicator_of(communicator),
                              static_cast<magi::UndispatchGradient>(given.mode),
                              read_tensor(given.local_gradient, "local_gradient"), stream);
  });
}

magi_status magi_roll(const magi_roll_args* args, const magi_placement* placement,
                      magi_communicator* communicator, void* stream) {
  return guarded([&] {
    const magi_roll_args given = read_struct(args, "args");
    magi::roll(read_tensor(given.local, "local"), placement_of(placement), given.num_valid_rows,
               given.shift, communicator_of(communicator), read_tensor(given.out, "out"), stream);
  });
}
