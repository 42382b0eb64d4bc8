// SPDX-License-Identifier: Apache-2.0
#include "capi/arguments.hpp"
#include "capi/status.hpp"
#include "kernels/attention/supplied_backend.hpp"

using namespace magi::capi;

magi_status magi_attention_backend_register(const magi_attention_backend* backend) {
  return guarded([&] {
    const magi_attention_backend given = read_struct(backend, "backend");
    read_struct(&given.limits, "backend.limits");
    magi::add_backend(read_name(given.name), [&] { return magi::make_supplied_backend(given); });
  });
}

magi_status magi_attention_backend_unregister(const char* name) {
  return guarded([&] {
    require(name, "name");
    magi::remove_backend(name);
  });
}

magi_status magi_attention_get_limits(const char* backend, int32_t device,
                                      magi_attention_limits* limits) {
  return guarded([&] {
    const auto found = magi::find_backend(read_name(backend), device);
    write_struct(limits, magi::to_c(found->limits()), "limits");
  });
}
