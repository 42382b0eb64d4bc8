// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"

// Every value is read through a path such as slices[3].k[1], so that a message says where it
// stands.
namespace magi {
namespace {

using Json = nlohmann::json;

/// A mask nests three deep; more is refused while reading, before anything is built of it.
constexpr int kMaxDepth = 4;

/// Text for a message: one short line of ASCII, whatever the input held.
std::string printable(std::string text, std::size_t longest) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 40);
}

/// The library's account of a syntax error, without its own prefix "[json.exception...] ".
std::string reason(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t prefix = text.find("] ");
  return printable(prefix == std::string::npos ? text : text.substr(prefix + 2), 200);
}

/// Parses with a bound on depth and without repeated keys, of which a JSON document would silently
/// keep the last.
Json parse(std::string_view text) {
  std::vector<std::vector<std::string>> keys;
  const auto watch = [&keys](int depth, Json::parse_event_t event, Json& value) {
    if (depth >= kMaxDepth &&
        (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start)) {
      throw invalid("depth of the mask JSON", depth + 1, "at most " + std::to_string(kMaxDepth));
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      std::vector<std::string>& seen = keys.back();
      const auto& key = value.get_ref<const std::string&>();
      // No object of a mask has more than three keys: this stays short.
      if (std::find(seen.begin(), seen.end(), key) != seen.end() || seen.size() > 3) {
        throw invalid("key " + shown(value) + " of the mask JSON", "repeated or one too many",
                      "each known key once");
      }
      seen.push_back(key);
    }
    return true;
  };
  return Json::parse(text.begin(), text.end(), watch);
}

void require_keys(const std::string& where, const Json& object,
                  const std::vector<std::string>& names) {
  std::string allowed;
  for (const std::string& name : names) allowed += (allowed.empty() ? "" : ", ") + name;
  if (!object.is_object()) throw invalid(where, shown(object), "an object with " + allowed);
  for (const auto& [key, value] : object.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      throw invalid("key of " + where, shown(Json(key)), allowed);
    }
  }
  for (const std::string& name : names) {
    if (!object.contains(name)) throw invalid(where, "without " + name, "all of " + allowed);
  }
}

/// The integer if it is one and within the bounds. Unsigned values beyond int64 are not.
std::optional<std::int32_t> integer_between(const Json& value, std::int32_t low,
                                            std::int32_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kBandInfinity}) {
    return std::nullopt;
  }
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) return std::nullopt;
  return static_cast<std::int32_t>(number);
}

std::int32_t read_int(const std::string& where, const Json& value, std::int32_t low,
                      std::int32_t high) {
  const std::optional<std::int32_t> number = integer_between(value, low, high);
  if (number) return *number;
  throw invalid(where, shown(value),
                "an integer from " + std::to_string(low) + " to " + std::to_string(high));
}

std::int32_t read_diagonal(const std::string& where, const Json& value, std::int32_t unbounded) {
  if (value.is_null()) return unbounded;
  return read_int(where, value, -kBandInfinity, kBandInfinity);
}

Range read_range(const std::string& where, const Json& value) {
  if (!value.is_array() || value.size() != 2) throw invalid(where, shown(value), "[begin, end]");
  const std::int32_t begin = read_int(where + "[0]", value[0], 0, kMaxRows);
  return {begin, read_int(where + "[1]", value[1], begin, kMaxRows)};
}

BandSlice read_band(const std::string& where, const Json& value) {
  if (value.size() != 6) throw invalid(where, shown(value), "[q0, q1, k0, k1, d_min, d_max]");
  std::int32_t rows[4] = {};
  for (std::size_t i = 0; i < 4; ++i) {
    rows[i] = read_int(where + "[" + std::to_string(i) + "]", value[i], 0, kMaxRows);
  }
  return {rows[0],
          rows[1],
          rows[2],
          rows[3],
          read_diagonal(where + "[4]", value[4], -kBandInfinity),
          read_diagonal(where + "[5]", value[5], kBandInfinity)};
}

/// Not mask_type_from_name: a name may hold anything, which shown() makes printable.
MaskType read_type(const std::string& where, const Json& value) {
  for (const MaskType type :
       {MaskType::Full, MaskType::Causal, MaskType::InverseCausal, MaskType::BidirectionalCausal}) {
    if (value == mask_type_name(type)) return type;
  }
  throw invalid(where, shown(value), "full, causal, inv_causal, bi_causal");
}

BandSlice read_slice(const std::string& where, const Json& value) {
  if (value.is_array()) return read_band(where, value);
  require_keys(where, value, {"q", "k", "type"});
  const MaskType type = read_type(where + ".type", value["type"]);
  const Range q = read_range(where + ".q", value["q"]);
  return band_slice(q, read_range(where + ".k", value["k"]), type);
}

Mask read_mask(const Json& document) {
  require_keys("mask JSON", document, {"rows_q", "rows_k", "slices"});
  const Json& slices = document["slices"];
  if (!slices.is_array()) throw invalid("slices", shown(slices), "an array of slices");
  Mask mask;
  mask.rows_q = read_int("rows_q", document["rows_q"], 0, kMaxRows);
  mask.rows_k = read_int("rows_k", document["rows_k"], 0, kMaxRows);
  mask.slices.reserve(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    mask.slices.push_back(read_slice("slices[" + std::to_string(i) + "]", slices[i]));
  }
  validate(mask);
  return mask;
}

}  // namespace

Mask mask_from_json(std::string_view text) {
  try {
    return read_mask(parse(text));
  } catch (const Json::exception& error) {
    throw invalid("mask JSON", "not well formed (" + reason(error) + ")", "one JSON object");
  }
}

std::string mask_to_json(const Mask& mask) {
  std::ostringstream text;
  const auto diagonal = [](std::int32_t d, std::int32_t unbounded) {
    return d == unbounded ? std::string("null") : std::to_string(d);
  };
  text << "{\"rows_q\": " << mask.rows_q << ", \"rows_k\": " << mask.rows_k << ", \"slices\": [";
  const char* separator = "\n";
  for (const BandSlice& s : mask.slices) {
    text << separator << '[' << s.q0 << ", " << s.q1 << ", " << s.k0 << ", " << s.k1 << ", "
         << diagonal(s.d_min, -kBandInfinity) << ", " << diagonal(s.d_max, kBandInfinity) << ']';
    separator = ",\n";
  }
  text << "]}\n";
  return text.str();
}

}  // namespace magi
