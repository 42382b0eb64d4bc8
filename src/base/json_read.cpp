// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.hpp"
#include "base/json.hpp"

namespace magi::json {
namespace {

using Kind = Scalar::Kind;

/// Longest piece of the input in a message.
constexpr std::size_t kShown = 40;

/// Takes the events of nlohmann's parser, which recurses into nothing and keeps one token, and
/// hands them to the values of a schema.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(std::string_view text, std::string_view name, Value root)
      : text_(text), name_(name), root_(std::move(root)) {}

  bool null() override { return scalar({.shown = "null"}); }
  bool boolean(bool value) override {
    return scalar({.kind = Kind::Boolean, .integer = value, .shown = value ? "true" : "false"});
  }
  bool number_integer(std::int64_t value) override {
    const std::string digits = std::to_string(value);
    return scalar({.kind = Kind::Integer,
                   .integer = value,
                   .number = static_cast<double>(value),
                   .shown = digits});
  }
  bool number_unsigned(std::uint64_t value) override;
  bool number_float(double value, const std::string& digits) override {
    return scalar({.kind = Kind::Number, .number = value, .shown = digits});
  }
  bool string(std::string& value) override { return scalar({.kind = Kind::Text, .shown = value}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // no JSON text holds any
  bool start_object(std::size_t) override;
  bool key(std::string& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// An object or array that is open.
  struct Frame {
    Value value;
    std::vector<Field> fields;  ///< of an object
    std::vector<bool> seen;     ///< by field
    std::size_t index = kNone;  ///< of the field, element or row at hand
    bool is_in_row = false;     ///< of a table
    std::size_t num_cells = 0;  ///< of the row, read so far
    std::array<std::int32_t, kMaxColumns> cells{};
  };

  Value next();
  bool scalar(const Scalar& seen);
  bool cell(Frame& table, const Scalar& seen);
  bool finish_value();
  std::string path() const;
  [[noreturn]] void refuse(std::string_view seen, std::string_view allowed) const;
  [[noreturn]] void refuse(const Scalar& seen, std::string_view allowed) const {
    refuse(std::string_view(printable(seen.shown, kShown)), allowed);
  }

  std::string_view text_;
  std::string_view name_;
  Value root_;
  bool is_done_ = false;
  std::vector<Frame> frames_;
};

/// The tokens that may stand where a value does; `allowed` of a list is that of its integers.
std::string_view allowed_of(const Value& value) {
  return value.add_integer ? std::string_view("an array of integers") : value.allowed;
}

std::string keys_of(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) text += (text.empty() ? "" : ", ") + std::string(field.key);
  return text;
}

std::string Reader::path() const {
  std::string text;
  for (const Frame& frame : frames_) {
    if (frame.index == kNone) continue;
    if (frame.value.open) {
      text += (text.empty() ? "" : ".") + std::string(frame.fields[frame.index].key);
      continue;
    }
    text += "[" + std::to_string(frame.index) + "]";
    if (frame.is_in_row) text += "[" + std::to_string(frame.num_cells) + "]";
  }
  return text;
}

void Reader::refuse(std::string_view seen, std::string_view allowed) const {
  const std::string where = path();
  throw invalid(std::string(name_) + (where.empty() ? "" : ": ") + where, seen, allowed);
}

/// The value that the schema has for what comes next.
Value Reader::next() {
  if (frames_.empty()) return std::move(root_);
  Frame& frame = frames_.back();
  if (frame.value.open) return std::move(frame.fields[frame.index].value);
  if (frame.value.element) return frame.value.element(frame.index);
  return {.allowed = (frame.value.add_integer ? "" : "a row ") + frame.value.allowed};
}

bool Reader::finish_value() {
  if (frames_.empty()) {
    is_done_ = true;
  } else if (Frame& frame = frames_.back(); frame.value.open) {
    frame.index = kNone;
  } else {
    ++frame.index;
  }
  return true;
}

bool Reader::number_unsigned(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  const bool is_wide = value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return scalar({.kind = is_wide ? Kind::Unsigned : Kind::Integer,
                 .integer = is_wide ? 0 : static_cast<std::int64_t>(value),
                 .wide_integer = value,
                 .number = static_cast<double>(value),
                 .shown = digits});
}

bool Reader::scalar(const Scalar& seen) {
  if (!frames_.empty() && frames_.back().is_in_row) return cell(frames_.back(), seen);
  if (!frames_.empty() && frames_.back().value.add_integer) {
    const Value& list = frames_.back().value;
    const bool is_flag = list.has_flags && seen.kind == Kind::Boolean;
    const bool is_integer = seen.kind == Kind::Integer || is_flag;
    if (!is_integer || !list.add_integer(seen.integer)) refuse(seen, list.allowed);
    return finish_value();
  }
  const Value value = next();
  if (!value.take || !value.take(seen)) refuse(seen, allowed_of(value));
  return finish_value();
}

bool Reader::cell(Frame& table, const Scalar& seen) {
  if (table.num_cells == table.value.columns.size()) refuse("one too many", table.value.allowed);
  const Column& column = table.value.columns[table.num_cells];
  std::int32_t& target = table.cells[table.num_cells];
  if (seen.kind == Kind::Null && column.null) {
    target = *column.null;
  } else if (seen.kind == Kind::Integer && seen.integer >= column.low &&
             seen.integer <= column.high) {
    target = static_cast<std::int32_t>(seen.integer);
  } else {
    refuse(seen, integer_between_text(column.low, column.high));
  }
  ++table.num_cells;
  return true;
}

bool Reader::start_object(std::size_t) {
  if (!frames_.empty() && frames_.back().is_in_row) refuse("an object", "an integer");
  Frame frame{.value = next()};
  if (!frame.value.open) refuse("an object", allowed_of(frame.value));
  frame.fields = frame.value.open();
  frame.seen.assign(frame.fields.size(), false);
  frames_.push_back(std::move(frame));
  return true;
}

bool Reader::key(std::string& name) {
  Frame& frame = frames_.back();
  const auto found = std::ranges::find(frame.fields, name, &Field::key);
  if (found == frame.fields.end()) {
    refuse("holding key " + printable(name, kShown), keys_of(frame.fields));
  }
  const auto index = static_cast<std::size_t>(found - frame.fields.begin());
  if (frame.seen[index])
    refuse("holding key " + printable(name, kShown) + " twice", "each key once");
  frame.seen[index] = true;
  frame.index = index;
  return true;
}

bool Reader::end_object() {
  const Frame& frame = frames_.back();
  for (std::size_t index = 0; index < frame.seen.size(); ++index) {
    if (frame.seen[index] || frame.fields[index].is_default) continue;
    refuse("without key " + std::string(frame.fields[index].key),
           "all of " + keys_of(frame.fields));
  }
  if (frame.value.close) frame.value.close();
  frames_.pop_back();
  return finish_value();
}

bool Reader::start_array(std::size_t) {
  if (!frames_.empty() && frames_.back().value.add_row) {
    Frame& table = frames_.back();
    if (table.is_in_row) refuse("an array", "an integer");
    table.is_in_row = true;
    table.num_cells = 0;
    return true;
  }
  Frame frame{.value = next()};
  if (!frame.value.size) refuse("an array", frame.value.allowed);
  if (frame.value.begin) frame.value.begin();
  frame.index = 0;
  frames_.push_back(std::move(frame));
  return true;
}

bool Reader::end_array() {
  Frame& frame = frames_.back();
  if (!frame.is_in_row) {
    if (frame.value.close) frame.value.close();
    frames_.pop_back();
    return finish_value();
  }
  frame.is_in_row = false;
  const std::size_t num_columns = frame.value.columns.size();
  if (frame.num_cells != num_columns) refuse("too short", frame.value.allowed);
  frame.value.add_row(std::span(frame.cells).first(num_columns));
  return finish_value();
}

bool Reader::parse_error(std::size_t position, const std::string&,
                         const nlohmann::json::exception&) {
  // `position` counts the characters read, the one that fits nowhere included.
  const std::size_t begin = std::min(std::max<std::size_t>(position, 1) - 1, text_.size());
  const std::size_t end = text_.find_first_of(", \t\n]}", begin + 1);
  const std::string seen =
      begin == text_.size() ? "cut off" : printable(text_.substr(begin, end - begin), kShown);
  if (is_done_) refuse("followed by " + seen, "one JSON object");
  refuse(seen, frames_.empty() ? root_.allowed : "valid JSON");
}

}  // namespace

void read(std::string_view text, std::string_view name, Value value) {
  Reader reader(text, name, std::move(value));
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
}

}  // namespace magi::json
