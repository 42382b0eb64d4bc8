// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/text_stream.hpp"
#include "magi/mask_builders.hpp"
#include "mask/form_reader.hpp"
#include "mask/slice_json.hpp"

namespace magi {
namespace {

using json::Field;
using json::Value;

/// [begin, end].
Value range(Range& target, std::size_t& num_read) {
  Value value{.allowed = json::integer_between_text(0, kMaxRows) + " in [begin, end]"};
  value.add_integer = [&target, &num_read](std::int64_t row) {
    const std::int32_t least = num_read == 0 ? 0 : target.begin;
    if (num_read > 1 || row < least || row > kMaxRows) return false;
    (num_read++ == 0 ? target.begin : target.end) = static_cast<std::int32_t>(row);
    return true;
  };
  value.size = [&num_read] { return num_read; };
  return value;
}

Value type(MaskType& target) {
  return json::text(
      "full, causal, inv_causal, bi_causal",
      [&target](std::string_view seen) {
        constexpr std::array kTypes = {MaskType::Full, MaskType::Causal, MaskType::InverseCausal,
                                       MaskType::BidirectionalCausal};
        for (const MaskType one : kTypes) {
          if (seen != mask_type_name(one)) continue;
          target = one;
          return true;
        }
        return false;
      },
      [&target] { return std::string(mask_type_name(target)); });
}

/// {"q": [begin, end], "k": [begin, end], "type": "causal"}.
Value typed_slice(std::vector<BandSlice>& slices) {
  struct Given {
    Range q, k;
    std::size_t num_q = 0;
    std::size_t num_k = 0;
    MaskType type = MaskType::Full;
  };
  const auto given = std::make_shared<Given>();
  Value value = json::object([given] {
    return std::vector<Field>{{"q", range(given->q, given->num_q)},
                              {"k", range(given->k, given->num_k)},
                              {"type", type(given->type)}};
  });
  value.allowed = "a row or an object with q, k, type";
  value.close = [given, &slices] {
    if (given->num_q != 2 || given->num_k != 2) {
      throw invalid("slices[" + std::to_string(slices.size()) + "]", "without both ends of q and k",
                    "q and k as [begin, end]");
    }
    slices.push_back(band_slice(given->q, given->k, given->type));
  };
  return value;
}

Value schema(Mask& mask) {
  Value value = json::object([&mask] {
    Value slices = slice_rows(mask.slices);
    slices.element = [&mask](std::size_t) { return typed_slice(mask.slices); };
    return std::vector<Field>{{"rows_q", json::integer(mask.rows_q, 0, kMaxRows)},
                              {"rows_k", json::integer(mask.rows_k, 0, kMaxRows)},
                              {"slices", std::move(slices)}};
  });
  value.allowed = "an object with rows_q, rows_k, slices";
  return value;
}

/// Reads as far as the first key of a text, and the string after it: all of a long one as a tree
/// would take many times its memory.
class FirstMember final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FirstMember(std::string_view json) {
    nlohmann::json::sax_parse(json.begin(), json.end(), this);
  }

  std::string name;
  std::string text;  ///< empty where the value is none

  bool key(std::string& key) override {
    name = key;
    return key == "form";
  }
  bool start_object(std::size_t) override { return std::exchange(is_outside_, false); }
  bool string(std::string& value) override {
    if (!name.empty()) text = value;
    return false;
  }
  // Anything else is no mask, or no name of a form.
  bool null() override { return false; }
  bool boolean(bool) override { return false; }
  bool number_integer(std::int64_t) override { return false; }
  bool number_unsigned(std::uint64_t) override { return false; }
  bool number_float(double, const std::string&) override { return false; }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool end_object() override { return false; }
  bool start_array(std::size_t) override { return false; }
  bool end_array() override { return false; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool is_outside_ = true;
};

}  // namespace

Value slice_rows(std::vector<BandSlice>& slices) {
  using Row = std::span<const std::int32_t>;
  Value value = json::table<BandSlice, 6>(
      slices, "[q0, q1, k0, k1, d_min, d_max]",
      {{{0, kMaxRows, {}},
        {0, kMaxRows, {}},
        {0, kMaxRows, {}},
        {0, kMaxRows, {}},
        {-kBandInfinity, kBandInfinity, -kBandInfinity},
        {-kBandInfinity, kBandInfinity, kBandInfinity}}},
      [](const BandSlice& s) {
        return std::array<std::int32_t, 6>{s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max};
      },
      [](Row v) { return BandSlice{v[0], v[1], v[2], v[3], v[4], v[5]}; });
  value.separator = ",\n";
  return value;
}

bool is_mask_json(std::string_view text) {
  const std::string key = FirstMember(text).name;
  return key == "form" || key == "slices" || key == "rows_q" || key == "rows_k";
}

Mask mask_from_json(std::string_view text) {
  const FirstMember first(text);
  Mask mask;
  if (first.name == "form") {
    mask = forms::mask_from_form(text, first.text);
  } else {
    json::read(text, "mask JSON", schema(mask));
  }
  validate(mask);
  return mask;
}

std::string mask_to_json(const Mask& mask) {
  std::ostringstream text = text_stream();
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
