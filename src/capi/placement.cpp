// SPDX-License-Identifier: Apache-2.0
#include "magi/placement.hpp"

#include "capi/handles.hpp"

namespace magi::capi {

PlacementConfig read_placement_config(const magi_placement_config* config, const char* name) {
  const magi_placement_config given = read_struct(config, name);
  PlacementConfig result{
      .min_chunks_per_rank = given.min_chunks_per_rank,
      .uneven_shard = read_flag(given.uneven_shard, std::string(name) + ".uneven_shard"),
      .token_tolerance = given.token_tolerance,
      .seed = given.seed};
  if (given.algorithm != nullptr) result.algorithm = placement_from_name(given.algorithm);
  if (given.chunk_size != 0) result.chunk_size = given.chunk_size;
  return result;
}

}  // namespace magi::capi

using namespace magi::capi;

void magi_placement_config_init(magi_placement_config* config) {
  const magi::PlacementConfig defaults;
  init_struct(config, magi_placement_config{.struct_size = sizeof(magi_placement_config),
                                            .algorithm = nullptr,
                                            .chunk_size = defaults.chunk_size.value_or(0),
                                            .min_chunks_per_rank = defaults.min_chunks_per_rank,
                                            .uneven_shard = defaults.uneven_shard ? 1 : 0,
                                            .token_tolerance = defaults.token_tolerance,
                                            .seed = defaults.seed});
}

void magi_placement_destroy(magi_placement* placement) { delete placement; }

magi_status magi_placement_from_chunks(int32_t num_rows, int32_t chunk_size, int32_t num_ranks,
                                       const int32_t* chunk_rank, int64_t num_chunks,
                                       magi_placement** placement) {
  return giving(placement, "placement", [&] {
    const auto ranks = read_array(chunk_rank, num_chunks, "chunk_rank");
    return magi::placement_from_chunks(num_rows, chunk_size, num_ranks,
                                       std::vector<int32_t>(ranks.begin(), ranks.end()));
  });
}

magi_status magi_placement_get_info(const magi_placement* placement, magi_placement_info* info) {
  return guarded([&] {
    const magi::Placement& given = placement_of(placement);
    write_struct(info,
                 magi_placement_info{.struct_size = sizeof(magi_placement_info),
                                     .num_rows = given.num_rows,
                                     .chunk_size = given.chunk_size,
                                     .num_ranks = given.num_ranks,
                                     .num_chunks = given.num_chunks(),
                                     .chunk_rank = given.chunk_rank.data()},
                 "info");
  });
}

magi_status magi_placement_rows_of(const magi_placement* placement, int32_t rank,
                                   int32_t* num_rows) {
  return guarded([&] { require(num_rows, "num_rows") = placement_of(placement).rows_of(rank); });
}

magi_status magi_placement_position_ids(const magi_placement* placement, int32_t rank,
                                        int32_t num_valid_rows, magi_buffer** ids) {
  return giving(ids, "ids",
                [&] { return magi::position_ids(placement_of(placement), rank, num_valid_rows); });
}

magi_status magi_resolve_chunk_size(int32_t rows, int32_t num_ranks,
                                    const magi_placement_config* config, int32_t* chunk_size) {
  return guarded([&] {
    require(chunk_size, "chunk_size") =
        magi::resolve_chunk_size(rows, num_ranks, read_placement_config(config, "config"));
  });
}

magi_status magi_padding_rows(int32_t rows, int32_t num_ranks, int32_t chunk_size,
                              int32_t* padding) {
  return guarded(
      [&] { require(padding, "padding") = magi::padding_rows(rows, num_ranks, chunk_size); });
}
