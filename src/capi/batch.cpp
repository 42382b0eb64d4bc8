// SPDX-License-Identifier: Apache-2.0
#include "magi/batch.hpp"

#include "capi/handles.hpp"
#include "capi/status.hpp"
#include "draw/pictures.hpp"
#include "magi/magi_batch.h"

struct magi_batch {
  magi::BatchPlan plan;
};

namespace magi::capi {
namespace {

BatchConfig read_batch_config(const magi_batch_config* config) {
  const magi_batch_config given = read_struct(config, "config");
  return {.num_ranks = given.num_ranks,
          .rows_per_rank = given.rows_per_rank,
          .devices_per_node = given.devices_per_node,
          .num_micro_batches = given.num_micro_batches,
          .chunk_size = given.chunk_size,
          .cost = {.flops_per_token = given.flops_per_token,
                   .flops_per_pair = given.flops_per_pair,
                   .bytes_per_token = given.bytes_per_token,
                   .flops_per_second = given.flops_per_second,
                   .bytes_per_second = given.bytes_per_second,
                   .network_bytes_per_second = given.network_bytes_per_second}};
}

const BatchPlan& batch_of(const magi_batch* handle) { return require(handle, "batch").plan; }

void give_batch(BatchPlan plan, magi_batch** result) {
  give(std::make_unique<magi_batch>(magi_batch{std::move(plan)}), result);
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

void magi_batch_config_init(magi_batch_config* config) {
  const magi::BatchConfig defaults;
  init_struct(config, magi_batch_config{
                          .struct_size = sizeof(magi_batch_config),
                          .num_ranks = defaults.num_ranks,
                          .rows_per_rank = defaults.rows_per_rank,
                          .flops_per_token = defaults.cost.flops_per_token,
                          .flops_per_pair = defaults.cost.flops_per_pair,
                          .bytes_per_token = defaults.cost.bytes_per_token,
                          .flops_per_second = defaults.cost.flops_per_second,
                          .bytes_per_second = defaults.cost.bytes_per_second,
                          .network_bytes_per_second = defaults.cost.network_bytes_per_second});
}

void magi_batch_destroy(magi_batch* batch) { delete batch; }

magi_status magi_batch_create(const magi_batch_config* config, const int32_t* rows,
                              const int64_t* pairs, int64_t num_samples, magi_batch** batch) {
  return guarded([&] {
    require(batch, "batch");
    const auto lengths = read_array(rows, num_samples, "rows");
    std::vector<magi::BatchSample> samples;
    for (const int32_t length : lengths) samples.push_back(magi::causal_sample(length));
    if (pairs != nullptr) {
      const auto areas = read_array(pairs, num_samples, "pairs");
      for (std::size_t i = 0; i < areas.size(); ++i) samples[i].pairs = areas[i];
    }
    give_batch(magi::plan_batch(samples, read_batch_config(config)), batch);
  });
}

magi_status magi_batch_from_json(const char* text, size_t size_bytes, magi_batch** batch) {
  return guarded([&] {
    require(batch, "batch");
    give_batch(magi::batch_from_json(read_text(text, size_bytes, "text")), batch);
  });
}

magi_status magi_batch_to_json(const magi_batch* batch, magi_buffer** text) {
  return guarded([&] {
    require(text, "text");
    give(make_text(magi::batch_to_json(batch_of(batch))), text);
  });
}

magi_status magi_batch_check(const magi_batch* batch, magi_buffer** text) {
  return guarded([&] {
    require(text, "text");
    give(make_text(lines(magi::check_batch(batch_of(batch)))), text);
  });
}

magi_status magi_batch_draw(const magi_batch* batch, const char* title, magi_buffer** svg) {
  return guarded([&] {
    require(svg, "svg");
    give(make_text(magi::draw::batch_picture(batch_of(batch), title == nullptr ? "" : title)), svg);
  });
}

magi_status magi_batch_parts(const magi_batch* batch, magi_buffer** parts) {
  return guarded([&] {
    require(parts, "parts");
    std::vector<int32_t> table;
    int32_t micro_batch = 0;
    for (const magi::MicroBatch& one : batch_of(batch).micro_batches) {
      for (const magi::BatchPart& part : one.parts) {
        table.insert(table.end(), {micro_batch, part.sample, part.rank, part.rows});
      }
      ++micro_batch;
    }
    give(make_buffer(std::span<const int32_t>(table)), parts);
  });
}

magi_status magi_batch_packed(const magi_batch* batch, int32_t micro_batch, magi_buffer** samples) {
  return guarded([&] {
    require(samples, "samples");
    std::vector<int32_t> table;
    for (const magi::PackedSample& one :
         magi::pack_micro_batch(batch_of(batch), micro_batch).samples) {
      table.insert(table.end(), {one.sample, one.begin});
    }
    give(make_buffer(std::span<const int32_t>(table)), samples);
  });
}

magi_status magi_batch_mask(const magi_batch* batch, int32_t micro_batch,
                            const magi_mask* const* masks, int64_t num_masks, magi_mask** mask) {
  return guarded([&] {
    require(mask, "mask");
    std::vector<magi::Mask> given;
    for (const magi_mask* one : read_array(masks, num_masks, "masks")) {
      given.push_back(require(one, "mask").mask);
    }
    give(std::make_unique<magi_mask>(
             magi_mask{magi::micro_batch_mask(batch_of(batch), micro_batch, given)}),
         mask);
  });
}

magi_status magi_batch_placement(const magi_batch* batch, int32_t micro_batch,
                                 const magi_mask* mask, magi_placement** placement) {
  return guarded([&] {
    require(placement, "placement");
    auto made = std::make_shared<const magi::Placement>(
        magi::micro_batch_placement(batch_of(batch), micro_batch, require(mask, "mask").mask));
    give(std::make_unique<magi_placement>(magi_placement{std::move(made)}), placement);
  });
}

magi_status magi_batch_get_report(const magi_batch* batch, magi_batch_report* report) {
  return guarded([&] {
    const magi::BatchPlan& plan = batch_of(batch);
    const magi::BatchReport& figures = plan.report;
    write_struct(
        report,
        magi_batch_report{.struct_size = sizeof(magi_batch_report),
                          .num_micro_batches = static_cast<int32_t>(plan.micro_batches.size()),
                          .num_ranks = plan.config.num_ranks,
                          .chunk_size = plan.config.chunk_size,
                          .rank_rows = figures.rank_rows.data(),
                          .rank_seconds = figures.rank_seconds.data(),
                          .step_seconds = figures.step_seconds,
                          .lower_bound_seconds = figures.lower_bound_seconds,
                          .node_bytes = figures.node_bytes,
                          .network_bytes = figures.network_bytes},
        "report");
  });
}
