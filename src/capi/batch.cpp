// SPDX-License-Identifier: Apache-2.0
#include "magi/batch.hpp"

#include "capi/handles.hpp"
#include "draw/pictures.hpp"
#include "magi/magi_batch.h"

struct magi_batch {
  magi::BatchPlan plan;
};

namespace magi::capi {
namespace {

/// Copies all but the cost from or to the caller's struct.
template <typename From, typename To>
void copy_sizes(const From& from, To& to) {
  to.num_ranks = from.num_ranks;
  to.rows_per_rank = from.rows_per_rank;
  to.devices_per_node = from.devices_per_node;
  to.num_micro_batches = from.num_micro_batches;
  to.chunk_size = from.chunk_size;
}

template <typename From, typename To>
void copy_cost(const From& from, To& to) {
  to.flops_per_token = from.flops_per_token;
  to.flops_per_pair = from.flops_per_pair;
  to.bytes_per_token = from.bytes_per_token;
  to.flops_per_second = from.flops_per_second;
  to.bytes_per_second = from.bytes_per_second;
  to.network_bytes_per_second = from.network_bytes_per_second;
}

BatchConfig read_batch_config(const magi_batch_config* config) {
  const magi_batch_config given = read_struct(config, "config");
  BatchConfig result;
  copy_sizes(given, result);
  copy_cost(given, result.cost);
  return result;
}

const BatchPlan& batch_of(const magi_batch* handle) { return require(handle, "batch").plan; }

std::unique_ptr<magi_batch> handle_of_batch(BatchPlan plan) {
  return std::make_unique<magi_batch>(magi_batch{std::move(plan)});
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

void magi_batch_config_init(magi_batch_config* config) {
  const magi::BatchConfig defaults;
  magi_batch_config made{.struct_size = sizeof(magi_batch_config)};
  copy_sizes(defaults, made);
  copy_cost(defaults.cost, made);
  init_struct(config, made);
}

void magi_batch_destroy(magi_batch* batch) { delete batch; }

magi_status magi_batch_create(const magi_batch_config* config, const int32_t* rows,
                              const int64_t* pairs, int64_t num_samples, magi_batch** batch) {
  return giving(batch, "batch", [&] {
    const auto lengths = read_array(rows, num_samples, "rows");
    std::vector<magi::BatchSample> samples;
    for (const int32_t length : lengths) samples.push_back(magi::causal_sample(length));
    if (pairs != nullptr) {
      const auto areas = read_array(pairs, num_samples, "pairs");
      for (std::size_t i = 0; i < areas.size(); ++i) samples[i].pairs = areas[i];
    }
    return handle_of_batch(magi::plan_batch(samples, read_batch_config(config)));
  });
}

magi_status magi_batch_from_json(const char* text, size_t size_bytes, magi_batch** batch) {
  return giving(batch, "batch", [&] {
    return handle_of_batch(magi::batch_from_json(read_text(text, size_bytes, "text")));
  });
}

magi_status magi_batch_to_json(const magi_batch* batch, magi_buffer** text) {
  return giving(text, "text", [&] { return magi::batch_to_json(batch_of(batch)); });
}

magi_status magi_batch_check(const magi_batch* batch, magi_buffer** text) {
  return giving(text, "text", [&] { return lines(magi::check_batch(batch_of(batch))); });
}

magi_status magi_batch_draw(const magi_batch* batch, const char* title, magi_buffer** svg) {
  return giving(svg, "svg", [&] {
    return magi::draw::batch_picture(batch_of(batch), title == nullptr ? "" : title);
  });
}

magi_status magi_batch_parts(const magi_batch* batch, magi_buffer** parts) {
  return giving(parts, "parts", [&] {
    std::vector<int32_t> table;
    int32_t micro_batch = 0;
    for (const magi::MicroBatch& one : batch_of(batch).micro_batches) {
      for (const magi::BatchPart& part : one.parts) {
        table.insert(table.end(), {micro_batch, part.sample, part.rank, part.rows});
      }
      ++micro_batch;
    }
    return table;
  });
}

magi_status magi_batch_packed(const magi_batch* batch, int32_t micro_batch, magi_buffer** samples) {
  return giving(samples, "samples", [&] {
    std::vector<int32_t> table;
    for (const magi::PackedSample& one :
         magi::pack_micro_batch(batch_of(batch), micro_batch).samples) {
      table.insert(table.end(), {one.sample, one.begin});
    }
    return table;
  });
}

magi_status magi_batch_mask(const magi_batch* batch, int32_t micro_batch,
                            const magi_mask* const* masks, int64_t num_masks, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    std::vector<magi::Mask> given;
    for (const magi_mask* one : read_array(masks, num_masks, "masks")) {
      given.push_back(mask_of(one));
    }
    return magi::micro_batch_mask(batch_of(batch), micro_batch, given);
  });
}

magi_status magi_batch_placement(const magi_batch* batch, int32_t micro_batch,
                                 const magi_mask* mask, magi_placement** placement) {
  return giving(placement, "placement", [&] {
    return magi::micro_batch_placement(batch_of(batch), micro_batch, mask_of(mask));
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
