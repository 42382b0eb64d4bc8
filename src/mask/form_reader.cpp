// SPDX-License-Identifier: Apache-2.0
#include "mask/form_reader.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "mask/json_text.hpp"

namespace magi::forms {
namespace {

using Json = nlohmann::json;

/// Takes the events of nlohmann's parser and keeps integers alone, so that a text costs no more
/// than they do.
class FormReader final : public nlohmann::json_sax<Json> {
 public:
  Mask make() const { return form_->make(values_); }

  bool null() override { return other("null"); }
  bool boolean(bool value) override;
  bool number_integer(std::int64_t value) override { return integer(value, std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
    return integer(static_cast<std::int64_t>(std::min(value, kMost)), std::to_string(value));
  }
  bool number_float(double, const std::string& digits) override {
    return other(printable(digits, 40));
  }
  bool string(std::string& value) override;
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
  const Field& field() const { return form_->fields[key_]; }
  Value& value() { return values_[key_]; }
  bool is_at_form() const { return form_ == nullptr; }
  /// Whether an integer of the field may stand here.
  bool is_at_integer() const {
    if (is_at_form()) return false;
    switch (field().kind) {
      case Kind::Integer:
        return depth_ == 0;
      case Kind::Flag:
        return false;
      case Kind::List:
        return depth_ == 1;
      case Kind::Table:
        return depth_ == 2;
    }
    return false;
  }
  /// The path of the value that comes next, such as ends[3][1].
  std::string where() const {
    if (is_at_form()) return "form";
    std::string path(field().name);
    const Value& given = values_[key_];
    const std::size_t num_read = given.numbers.size();
    if (field().kind == Kind::List && depth_ > 0) path += "[" + std::to_string(num_read) + "]";
    if (field().kind != Kind::Table || depth_ == 0) return path;
    path += "[" + std::to_string(given.num_rows()) + "]";
    const auto row_begin = static_cast<std::size_t>(given.offsets.back());
    return depth_ == 1 ? path : path + "[" + std::to_string(num_read - row_begin) + "]";
  }
  std::string allowed() const;
  bool integer(std::int64_t number, const std::string& shown);
  bool other(const std::string& shown) { throw invalid(where(), shown, allowed()); }
  std::string key_names(bool is_required_only) const;

  bool is_open_ = false;  ///< the text's own object is read
  const Form* form_ = nullptr;
  std::vector<Value> values_;
  std::size_t key_ = 0;
  int depth_ = 0;  ///< of arrays of the field at hand
};

std::string form_names() {
  std::string text;
  for (const Form& form : all_forms()) text += (text.empty() ? "" : ", ") + std::string(form.name);
  return text;
}

std::string FormReader::key_names(bool is_required_only) const {
  std::string text = "form";
  for (const Field& one : form_->fields) {
    if (one.is_required || !is_required_only) text += ", " + std::string(one.name);
  }
  return text;
}

std::string FormReader::allowed() const {
  if (is_at_form()) return form_names();
  if (is_at_integer()) return integer_text(field().low, field().high);
  if (field().kind == Kind::Flag) return "true, false";
  return field().kind == Kind::Table && depth_ == 0 ? "an array of arrays of integers"
                                                    : "an array of integers";
}

bool FormReader::boolean(bool given) {
  const bool is_flag = !is_at_form() && field().kind == Kind::Flag && depth_ == 0;
  const bool is_cell = is_at_integer() && field().kind == Kind::Table && field().high == 1;
  if (!is_flag && !is_cell) return other(given ? "true" : "false");
  value().numbers.push_back(given ? 1 : 0);
  return true;
}

bool FormReader::integer(std::int64_t number, const std::string& shown) {
  if (!is_at_integer() || number < field().low || number > field().high) return other(shown);
  value().numbers.push_back(static_cast<std::int32_t>(number));
  return true;
}

bool FormReader::string(std::string& text) {
  if (!is_at_form()) return other(quoted_text(text));
  const auto found = std::ranges::find(all_forms(), text, &Form::name);
  if (found == all_forms().end()) return other(quoted_text(text));
  form_ = &*found;
  values_.resize(form_->fields.size());
  return true;
}

bool FormReader::start_object(std::size_t) {
  if (is_open_) return other("an object");
  is_open_ = true;
  return true;
}

bool FormReader::key(std::string& name) {
  if (is_at_form()) return true;  // the caller has seen that it is "form"
  const auto fields = form_->fields;
  const auto found = std::ranges::find(fields, name, &Field::name);
  const bool is_form = name == "form";
  if (found == fields.end() && !is_form) {
    throw invalid("key of mask JSON", quoted_text(name), key_names(false));
  }
  key_ = static_cast<std::size_t>(found - fields.begin());
  if (is_form || value().is_given) {
    throw invalid("key " + quoted_text(name) + " of the mask JSON", "repeated", "each key once");
  }
  value().is_given = true;
  return true;
}

bool FormReader::end_object() {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const Field& one = form_->fields[i];
    if (one.is_required && !values_[i].is_given) {
      throw invalid("mask JSON", "without " + std::string(one.name), "all of " + key_names(true));
    }
  }
  return true;
}

bool FormReader::start_array(std::size_t) {
  const bool is_list = !is_at_form() && field().kind == Kind::List;
  const bool is_table = !is_at_form() && field().kind == Kind::Table;
  if (!(is_list && depth_ == 0) && !(is_table && depth_ < 2)) return other("an array");
  ++depth_;
  return true;
}

bool FormReader::end_array() {
  if (--depth_ == 1) {
    value().offsets.push_back(static_cast<std::int64_t>(value().numbers.size()));
  }
  return true;
}

}  // namespace

Mask mask_from_form(std::string_view text) {
  FormReader reader;
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.make();
}

}  // namespace magi::forms
