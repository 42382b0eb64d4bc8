// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "verify/case.hpp"

namespace magi::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Reads the members of one object and refuses those that nobody asked for.
class Reader {
 public:
  Reader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {
    if (!json.is_object()) throw invalid(name_, json.type_name(), "an object");
  }

  const Json& member(const char* key) {
    ++num_read_;
    const auto found = json_.find(key);
    if (found == json_.end()) throw invalid(name_ + "." + key, "absent", "present");
    return *found;
  }
  template <typename Integer>
  void read_int(const char* key, Integer& value) {
    const Json& json = member(key);
    if (!json.is_number_integer()) throw invalid(name_ + "." + key, json.dump(), "an integer");
    const bool is_fitting =
        json.is_number_unsigned()
            ? json.get<std::uint64_t>() <=
                  static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())
            : json.get<std::int64_t>() >=
                  static_cast<std::int64_t>(std::numeric_limits<Integer>::min());
    if (!is_fitting) throw invalid(name_ + "." + key, json.dump(), "a 32-bit integer");
    value = json.get<Integer>();
  }
  void read_optional(const char* key, std::optional<std::int32_t>& value) {
    if (json_.contains(key) && json_[key].is_null()) {
      ++num_read_;
      value.reset();
    } else {
      read_int(key, value.emplace());
    }
  }
  void read_number(const char* key, double& value) {
    const Json& json = member(key);
    if (!json.is_number()) throw invalid(name_ + "." + key, json.dump(), "a number");
    value = json.get<double>();
  }
  void read_bool(const char* key, bool& value) {
    const Json& json = member(key);
    if (!json.is_boolean()) throw invalid(name_ + "." + key, json.dump(), "true or false");
    value = json.get<bool>();
  }
  std::string read_text(const char* key) {
    const Json& json = member(key);
    if (!json.is_string()) throw invalid(name_ + "." + key, json.type_name(), "a string");
    return json.get<std::string>();
  }
  /// One of `count` values by number.
  template <typename Enum>
  void read_enum(const char* key, Enum& value, std::int32_t count) {
    std::int32_t number = 0;
    read_int(key, number);
    if (number < 0 || number >= count) {
      throw invalid(name_ + "." + key, number, "0 to " + std::to_string(count - 1));
    }
    value = static_cast<Enum>(number);
  }
  void finish() const {
    if (num_read_ != json_.size()) throw invalid(name_, "with unknown keys", "the keys of a case");
  }

 private:
  const Json& json_;
  std::string name_;
  std::size_t num_read_ = 0;
};

/// Assigned member by member: long initializer lists of this type compile for minutes under
/// sanitizers.
Json placement_json(const PlacementConfig& config) {
  Json json;
  json["algorithm"] = placement_name(config.algorithm);
  json["chunk_size"] = config.chunk_size ? Json(*config.chunk_size) : Json();
  json["min_chunks_per_rank"] = config.min_chunks_per_rank;
  json["uneven_shard"] = config.uneven_shard;
  json["token_tolerance"] = config.token_tolerance;
  json["seed"] = config.seed;
  return json;
}

PlacementConfig placement_from(const Json& json, const char* name) {
  Reader reader(json, name);
  PlacementConfig config;
  config.algorithm = placement_from_name(reader.read_text("algorithm"));
  reader.read_optional("chunk_size", config.chunk_size);
  reader.read_int("min_chunks_per_rank", config.min_chunks_per_rank);
  reader.read_bool("uneven_shard", config.uneven_shard);
  reader.read_number("token_tolerance", config.token_tolerance);
  reader.read_int("seed", config.seed);
  reader.finish();
  return config;
}

Json config_json(const PlanConfig& config) {
  Json json;
  json["num_ranks"] = config.num_ranks;
  json["num_heads_q"] = config.num_heads_q;
  json["num_heads_kv"] = config.num_heads_kv;
  json["head_dim_qk"] = config.head_dim_qk;
  json["head_dim_v"] = config.head_dim_v;
  json["placement"] = placement_json(config.placement);
  json["placement_k"] = config.placement_k ? placement_json(*config.placement_k) : Json();
  json["overlap_degree"] = config.overlap_degree ? Json(*config.overlap_degree) : Json();
  json["stage_mode"] = static_cast<std::int32_t>(config.stage_mode);
  json["min_stage_rows"] = config.min_stage_rows;
  json["devices_per_node"] = config.devices_per_node;
  json["work"] = work_name(config.work);
  return json;
}

PlanConfig config_from(const Json& json) {
  Reader reader(json, "config");
  PlanConfig config;
  reader.read_int("num_ranks", config.num_ranks);
  reader.read_int("num_heads_q", config.num_heads_q);
  reader.read_int("num_heads_kv", config.num_heads_kv);
  reader.read_int("head_dim_qk", config.head_dim_qk);
  reader.read_int("head_dim_v", config.head_dim_v);
  config.placement = placement_from(reader.member("placement"), "config.placement");
  const Json& keys = reader.member("placement_k");
  if (!keys.is_null()) config.placement_k = placement_from(keys, "config.placement_k");
  reader.read_optional("overlap_degree", config.overlap_degree);
  reader.read_enum("stage_mode", config.stage_mode, 3);
  reader.read_int("min_stage_rows", config.min_stage_rows);
  reader.read_int("devices_per_node", config.devices_per_node);
  config.work = work_from_name(reader.read_text("work"));
  reader.finish();
  return config;
}

}  // namespace

std::string case_to_json(const VerifyCase& verify_case) {
  Json json;
  json["mask"] = Json::parse(mask_to_json(verify_case.mask));
  json["config"] = config_json(verify_case.config);
  json["dtype"] = dtype_name(verify_case.dtype);
  json["softmax_scale"] = verify_case.params.softmax_scale;
  json["softcap"] = verify_case.params.softcap;
  json["sink_layout"] = static_cast<std::int32_t>(verify_case.params.sink_layout);
  json["num_sinks"] = verify_case.num_sinks;
  json["has_dlse"] = verify_case.has_dlse;
  json["data_seed"] = verify_case.data_seed;
  return json.dump() + "\n";
}

VerifyCase case_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw invalid("the case", "not JSON", "one JSON object");
  Reader reader(json, "case");
  VerifyCase read;
  read.mask = mask_from_json(reader.member("mask").dump());
  read.config = config_from(reader.member("config"));
  const std::string dtype = reader.read_text("dtype");
  if (dtype != "float64" && dtype != "float32") {
    throw invalid("case.dtype", dtype, "float64 or float32");
  }
  read.dtype = dtype == "float64" ? DType::Float64 : DType::Float32;
  read.config.element_bytes = static_cast<std::int32_t>(dtype_bytes(read.dtype));
  reader.read_number("softmax_scale", read.params.softmax_scale);
  reader.read_number("softcap", read.params.softcap);
  reader.read_enum("sink_layout", read.params.sink_layout, 2);
  reader.read_int("num_sinks", read.num_sinks);
  if (read.num_sinks < 0 || read.num_sinks > 8) {
    throw invalid("case.num_sinks", read.num_sinks, "0 to 8");
  }
  reader.read_bool("has_dlse", read.has_dlse);
  reader.read_int("data_seed", read.data_seed);
  reader.finish();
  return read;
}

}  // namespace magi::cli
