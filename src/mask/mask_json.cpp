// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/text_stream.hpp"
#include "magi/mask_builders.hpp"
#include "mask/form_reader.hpp"
#include "mask/json_text.hpp"

// What is refused is named by a path such as slices[3].k[1], so that a message says where it
// stands.
namespace magi {
namespace {

using Json = nlohmann::json;

/// A mask nests three deep; more is refused while reading.
constexpr int kMaxDepth = 4;

/// A number, word or string. What is no integer of 64 bits has none.
struct Scalar {
  std::optional<std::int64_t> integer;
  bool is_null = false;
  std::optional<MaskType> type;  ///< of a string that names one
  std::string shown;             ///< for messages; of an integer made when it is needed

  std::string text() const { return integer ? std::to_string(*integer) : shown; }
};

/// Not mask_type_from_name: a name may hold anything, which is no mistake yet.
std::optional<MaskType> type_of(std::string_view name) {
  for (const MaskType type :
       {MaskType::Full, MaskType::Causal, MaskType::InverseCausal, MaskType::BidirectionalCausal}) {
    if (name == mask_type_name(type)) return type;
  }
  return std::nullopt;
}

/// Takes the events of nlohmann's parser, and keeps the slice at hand and those before it: no tree
/// of the text, whose size would be many times the text's and whose destructor takes memory.
class MaskReader final : public nlohmann::json_sax<Json> {
 public:
  Mask take() { return std::move(mask_); }

  bool null() override { return scalar({.is_null = true, .shown = "null"}); }
  bool boolean(bool value) override { return scalar({.shown = value ? "true" : "false"}); }
  bool number_integer(std::int64_t value) override { return scalar({.integer = value}); }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= std::uint64_t{kBandInfinity}) {
      return scalar({.integer = static_cast<std::int64_t>(value)});
    }
    return scalar({.shown = std::to_string(value)});
  }
  bool number_float(double, const std::string& digits) override {
    return scalar({.shown = printable(digits, 40)});
  }
  bool string(std::string& value) override {
    return scalar({.type = type_of(value), .shown = quoted_text(value)});
  }
  bool binary(Json::binary_t&) override { return false; }  // no JSON text holds any
  bool start_object(std::size_t) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    throw not_well_formed(error);
  }

 private:
  /// What the next value belongs to.
  enum class Place { Text, Mask, Slices, Band, TypedSlice, Range };

  /// An array that stands where none may. It is counted to its end, for the message.
  struct Refusal {
    std::string where;
    std::string allowed;
    int depth = 0;
    std::size_t size = 0;
  };

  using Names = std::array<std::string_view, 3>;
  const Names& names() const {
    static constexpr Names kMask = {"rows_q", "rows_k", "slices"};
    static constexpr Names kSlice = {"q", "k", "type"};
    return place_ == Place::Mask ? kMask : kSlice;
  }
  std::string allowed_names() const {
    std::string text;
    for (const std::string_view name : names()) {
      text += (text.empty() ? "" : ", ") + std::string(name);
    }
    return text;
  }

  bool scalar(const Scalar& value);
  bool count_if_refused() {
    if (refusal_ && depth_ == refusal_->depth) ++refusal_->size;
    return refusal_.has_value();
  }
  /// Goes one deeper; whether that is inside what is refused.
  bool enter_refused() {
    const bool is_refused = count_if_refused();
    if (++depth_ > kMaxDepth) {
      throw invalid("depth of the mask JSON", depth_, "at most " + std::to_string(kMaxDepth));
    }
    return is_refused;
  }
  std::string where() const;
  std::string allowed() const;
  /// Bounds of the integer that stands here; none where none may.
  std::optional<std::pair<std::int32_t, std::int32_t>> bounds() const;
  void take_integer(std::int32_t value);
  void take_slice(const BandSlice& slice) {
    mask_.slices.push_back(slice);
    place_ = Place::Slices;
  }

  Mask mask_;
  Place place_ = Place::Text;
  int depth_ = 0;
  std::optional<Refusal> refusal_;
  std::size_t key_ = 0;             ///< of names(), of the member at hand
  std::array<bool, 3> has_mask{};   ///< members that were read, of the mask
  std::array<bool, 3> has_slice{};  ///< and of the slice
  std::size_t num_cells_ = 0;       ///< of the band or range at hand
  std::array<std::int32_t, 6> band_{};
  std::array<Range, 2> ranges_{};  ///< of a typed slice
  MaskType type_ = MaskType::Full;
};

/// The path of the value that comes next.
std::string MaskReader::where() const {
  if (place_ == Place::Text) return "mask JSON";
  if (place_ == Place::Mask) return std::string(names()[key_]);
  std::string slice = "slices[" + std::to_string(mask_.slices.size()) + "]";
  if (place_ == Place::Slices) return slice;
  const std::string cell = "[" + std::to_string(num_cells_) + "]";
  if (place_ == Place::Band) return slice + cell;
  return slice + "." + std::string(names()[key_]) + (place_ == Place::Range ? cell : "");
}

std::optional<std::pair<std::int32_t, std::int32_t>> MaskReader::bounds() const {
  if (place_ == Place::Mask && key_ < 2) return {{0, kMaxRows}};
  if (place_ == Place::Band && num_cells_ < 4) return {{0, kMaxRows}};
  if (place_ == Place::Band) return {{-kBandInfinity, kBandInfinity}};
  if (place_ == Place::Range) return {{num_cells_ == 0 ? 0 : ranges_[key_].begin, kMaxRows}};
  return std::nullopt;
}

/// What may stand where the next value does.
std::string MaskReader::allowed() const {
  if (const auto range = bounds()) return integer_text(range->first, range->second);
  if (place_ == Place::Text) return "an object with rows_q, rows_k, slices";
  if (place_ == Place::Mask) return "an array of slices";
  if (place_ == Place::Slices) return "an object with q, k, type";
  return key_ < 2 ? "[begin, end]" : "full, causal, inv_causal, bi_causal";
}

bool MaskReader::scalar(const Scalar& value) {
  if (count_if_refused()) return true;
  // What is too much is counted, for the message at the end.
  const bool is_row = place_ == Place::Band || place_ == Place::Range;
  if (is_row && num_cells_ >= (place_ == Place::Band ? 6u : 2u)) {
    ++num_cells_;
    return true;
  }
  const auto range = bounds();
  if (range && value.integer && *value.integer >= range->first && *value.integer <= range->second) {
    take_integer(static_cast<std::int32_t>(*value.integer));
  } else if (place_ == Place::Band && num_cells_ >= 4 && value.is_null) {
    take_integer(num_cells_ == 4 ? -kBandInfinity : kBandInfinity);
  } else if (place_ == Place::TypedSlice && key_ == 2 && value.type) {
    type_ = *value.type;
  } else {
    throw invalid(where(), value.text(), allowed());
  }
  return true;
}

void MaskReader::take_integer(std::int32_t value) {
  if (place_ == Place::Mask) {
    (key_ == 0 ? mask_.rows_q : mask_.rows_k) = value;
  } else if (place_ == Place::Band) {
    band_[num_cells_++] = value;
  } else {
    (num_cells_++ == 0 ? ranges_[key_].begin : ranges_[key_].end) = value;
  }
}

bool MaskReader::start_object(std::size_t) {
  if (enter_refused()) return true;
  if (place_ == Place::Text) {
    place_ = Place::Mask;
  } else if (place_ == Place::Slices) {
    place_ = Place::TypedSlice;
    has_slice = {};
  } else {
    throw invalid(where(), "an object", allowed());
  }
  return true;
}

bool MaskReader::key(std::string& name) {
  if (refusal_) return true;
  const auto found = std::ranges::find(names(), name);
  if (found == names().end()) {
    const std::string object =
        place_ == Place::Mask ? "mask JSON" : "slices[" + std::to_string(mask_.slices.size()) + "]";
    if (place_ == Place::Mask && name == "form") {
      throw invalid("key \"form\" of the mask JSON", "behind others", "the first key");
    }
    throw invalid("key of " + object, quoted_text(name), allowed_names());
  }
  key_ = static_cast<std::size_t>(found - names().begin());
  bool& has = (place_ == Place::Mask ? has_mask : has_slice)[key_];
  if (has)
    throw invalid("key " + quoted_text(name) + " of the mask JSON", "repeated", "each key once");
  has = true;
  return true;
}

bool MaskReader::end_object() {
  --depth_;
  if (refusal_) return true;
  const auto& has = place_ == Place::Mask ? has_mask : has_slice;
  const auto missing = std::ranges::find(has, false);
  if (missing != has.end()) {
    const std::string name(names()[static_cast<std::size_t>(missing - has.begin())]);
    const std::string allowed = "all of " + allowed_names();
    if (place_ == Place::TypedSlice) place_ = Place::Slices;
    throw invalid(place_ == Place::Mask ? "mask JSON" : where(), "without " + name, allowed);
  }
  if (place_ == Place::TypedSlice) take_slice(band_slice(ranges_[0], ranges_[1], type_));
  return true;
}

bool MaskReader::start_array(std::size_t) {
  if (enter_refused()) return true;
  if (place_ == Place::Mask && key_ == 2) {
    place_ = Place::Slices;
  } else if (place_ == Place::Slices) {
    place_ = Place::Band;
    num_cells_ = 0;
  } else if (place_ == Place::TypedSlice && key_ < 2) {
    place_ = Place::Range;
    num_cells_ = 0;
  } else {
    refusal_ = Refusal{.where = where(), .allowed = allowed(), .depth = depth_};
  }
  return true;
}

bool MaskReader::end_array() {
  const int depth = depth_--;
  if (refusal_) {
    if (depth > refusal_->depth) return true;
    throw invalid(refusal_->where, "an array of " + std::to_string(refusal_->size),
                  refusal_->allowed);
  }
  if (place_ == Place::Slices) {
    place_ = Place::Mask;
    return true;
  }
  const bool is_band = place_ == Place::Band;
  place_ = is_band ? Place::Slices : Place::TypedSlice;
  if (num_cells_ != (is_band ? 6u : 2u)) {
    throw invalid(where(), "an array of " + std::to_string(num_cells_),
                  is_band ? "[q0, q1, k0, k1, d_min, d_max]" : "[begin, end]");
  }
  if (is_band) take_slice({band_[0], band_[1], band_[2], band_[3], band_[4], band_[5]});
  return true;
}

/// Reads as far as the first key of a text: all of a long one as a tree would take many times its
/// memory.
class FirstKey final : public nlohmann::json_sax<Json> {
 public:
  std::string name;

  bool key(std::string& key) override {
    name = key;
    return false;
  }
  bool start_object(std::size_t) override { return true; }
  // Anything else before a key is no mask.
  bool null() override { return false; }
  bool boolean(bool) override { return false; }
  bool number_integer(std::int64_t) override { return false; }
  bool number_unsigned(std::uint64_t) override { return false; }
  bool number_float(double, const std::string&) override { return false; }
  bool string(std::string&) override { return false; }
  bool binary(Json::binary_t&) override { return false; }
  bool end_object() override { return false; }
  bool start_array(std::size_t) override { return false; }
  bool end_array() override { return false; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }
};

std::string first_key(std::string_view text) {
  FirstKey first;
  Json::sax_parse(text.begin(), text.end(), &first);
  return first.name;
}

}  // namespace

bool is_mask_json(std::string_view text) {
  const std::string key = first_key(text);
  return key == "form" || key == "slices" || key == "rows_q" || key == "rows_k";
}

Mask mask_from_json(std::string_view text) {
  if (first_key(text) == "form") {
    Mask mask = forms::mask_from_form(text);
    validate(mask);
    return mask;
  }
  MaskReader reader;
  Json::sax_parse(text.begin(), text.end(), &reader);
  Mask mask = reader.take();
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
