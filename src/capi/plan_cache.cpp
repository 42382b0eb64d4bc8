// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"
#include "capi/status.hpp"

using namespace magi::capi;

magi_status magi_plan_cache_create(size_t capacity, magi_plan_cache** cache) {
  return guarded([&] {
    require(cache, "cache");
    give(std::make_unique<magi_plan_cache>(capacity), cache);
  });
}

void magi_plan_cache_destroy(magi_plan_cache* cache) { delete cache; }

magi_status magi_plan_cache_find_or_make(magi_plan_cache* cache, const magi_mask* mask,
                                         const magi_plan_config* config, magi_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    auto found = require(cache, "cache")
                     .cache.find_or_make(require(mask, "mask").mask, read_plan_config(config));
    give(std::make_unique<magi_plan>(magi_plan{std::move(found)}), plan);
  });
}

magi_status magi_plan_cache_find_or_make_on(magi_plan_cache* cache, const magi_mask* mask,
                                            const magi_plan_config* config,
                                            const magi_placement* placement_q,
                                            const magi_placement* placement_k, magi_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    require(placement_q, "placement_q");
    require(placement_k, "placement_k");
    auto found = require(cache, "cache")
                     .cache.find_or_make_on(require(mask, "mask").mask, read_plan_config(config),
                                            *placement_q->placement, *placement_k->placement);
    give(std::make_unique<magi_plan>(magi_plan{std::move(found)}), plan);
  });
}

magi_status magi_plan_cache_size(const magi_plan_cache* cache, size_t* size) {
  return guarded([&] { require(size, "size") = require(cache, "cache").cache.size(); });
}

magi_status magi_plan_cache_clear(magi_plan_cache* cache) {
  return guarded([&] { require(cache, "cache").cache.clear(); });
}
