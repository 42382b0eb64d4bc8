// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <random>
#include <vector>

#include "capi/owned_handles.hpp"
#include "magi/magi.h"

// The tensors of one attention call through the C ABI.
namespace magi::capi_test {

struct Array {
  explicit Array(std::initializer_list<std::int64_t> shape, std::uint32_t seed = 0) {
    tensor = {.struct_size = sizeof(magi_tensor),
              .dtype = MAGI_FLOAT32,
              .device = MAGI_CPU_DEVICE,
              .rank = static_cast<std::int32_t>(shape.size())};
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::int64_t count = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      tensor.stride[axis] = count;
      count *= tensor.shape[axis];
    }
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(seed == 0 ? 0.0f : static_cast<float>(random() % 2000) * 1e-3f - 1.0f);
    }
    tensor.data = values.data();
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  std::vector<float> values;
  magi_tensor tensor{};
};

constexpr std::int64_t kRows = 40;

struct Problem {
  Array q{{kRows, 4, 8}, 1}, k{{kRows, 2, 8}, 2}, v{{kRows, 2, 8}, 3}, sink{{3, 4}, 4};
  Array dout{{kRows, 4, 8}, 5}, dlse{{kRows, 4}, 6};
  Array out{{kRows, 4, 8}}, lse{{kRows, 4}}, max_logits{{4}};
  Array dq{{kRows, 4, 8}}, dk{{kRows, 2, 8}}, dv{{kRows, 2, 8}}, dsink{{3, 4}};

  magi_attention_inputs inputs{.struct_size = sizeof(inputs),
                               .q = &q.tensor,
                               .k = &k.tensor,
                               .v = &v.tensor,
                               .sink = &sink.tensor,
                               .softmax_scale = 0.7,
                               .softcap = 3.0,
                               .sink_layout = MAGI_SINK_HEAD};
  magi_attention_result result{.struct_size = sizeof(result),
                               .out = &out.tensor,
                               .lse = &lse.tensor,
                               .max_logits = &max_logits.tensor};
  magi_attention_gradients gradients{.struct_size = sizeof(gradients),
                                     .dout = &dout.tensor,
                                     .dlse = &dlse.tensor,
                                     .dq = &dq.tensor,
                                     .dk = &dk.tensor,
                                     .dv = &dv.tensor,
                                     .dsink = &dsink.tensor};
};

/// A config for Problem's heads and dims.
inline magi_plan_config config_for(std::int32_t num_ranks) {
  magi_plan_config config;
  magi_plan_config_init(&config);
  config.num_ranks = num_ranks;
  config.num_heads_q = 4;
  config.num_heads_kv = 2;
  config.head_dim_qk = 8;
  config.head_dim_v = 8;
  return config;
}

/// The only rank of a group of threads, and a plan for it.
struct LoneRank {
  explicit LoneRank(const magi_mask* mask) {
    magi_comm_options options;
    magi_comm_options_init(&options);
    group =
        made<magi_communicator>([&](auto** c) { return magi_thread_group_create(1, &options, c); });
    const magi_plan_config config = config_for(1);
    plan = made<magi_plan>([&](auto** p) { return magi_plan_create(mask, &config, p); });
  }

  Owned<magi_communicator> group;
  Owned<magi_plan> plan;
};

}  // namespace magi::capi_test
