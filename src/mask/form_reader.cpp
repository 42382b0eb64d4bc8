// SPDX-License-Identifier: Apache-2.0
#include "mask/form_reader.hpp"

#include <algorithm>

#include "base/json.hpp"

namespace magi::forms {
namespace {

/// An array of integers within the field's bounds, which go to the end of `value`'s.
json::Value list(const Field& field, Value& value) {
  json::Value list{.allowed = json::integer_between_text(field.low, field.high)};
  list.add_integer = [&field, &value](std::int64_t number) {
    if (number < field.low || number > field.high) return false;
    value.numbers.push_back(static_cast<std::int32_t>(number));
    return true;
  };
  list.size = [&value] { return value.numbers.size(); };
  return list;
}

json::Value table(const Field& field, Value& value) {
  json::Value table{.allowed = "an array of arrays of integers"};
  table.element = [&field, &value](std::size_t) {
    json::Value row = list(field, value);
    row.has_flags = field.high == 1;
    row.close = [&value] {
      value.offsets.push_back(static_cast<std::int64_t>(value.numbers.size()));
    };
    return row;
  };
  table.size = [&value] { return value.num_rows(); };
  return table;
}

json::Value scalar(const Field& field, Value& value) {
  const bool is_flag = field.kind == Kind::Flag;
  json::Value scalar{.allowed = is_flag ? "true, false"
                                        : json::integer_between_text(field.low, field.high)};
  scalar.take = [&field, &value, is_flag](const json::Scalar& seen) {
    const auto kind = is_flag ? json::Scalar::Kind::Boolean : json::Scalar::Kind::Integer;
    if (seen.kind != kind) return false;
    if (!is_flag && (seen.integer < field.low || seen.integer > field.high)) return false;
    value.numbers.push_back(static_cast<std::int32_t>(seen.integer));
    value.is_given = true;
    return true;
  };
  return scalar;
}

json::Value field_value(const Field& field, Value& value) {
  if (field.kind == Kind::Integer || field.kind == Kind::Flag) return scalar(field, value);
  json::Value array = field.kind == Kind::List ? list(field, value) : table(field, value);
  array.begin = [&value] { value.is_given = true; };
  return array;
}

/// Refuses every name of a form.
json::Value unknown_form() {
  return json::object([names = names_of(all_forms())] {
    return std::vector<json::Field>{
        {"form", json::text(
                     names, [](std::string_view) { return false; }, [] { return std::string(); })}};
  });
}

}  // namespace

Mask mask_from_form(std::string_view text, std::string_view name) {
  const auto forms = all_forms();
  const auto form = std::ranges::find(forms, name, &Form::name);
  std::vector<Value> values;
  if (form == forms.end()) {
    json::read(text, "mask JSON", unknown_form());
    return {};  // it throws
  }
  values.resize(form->fields.size());
  json::read(text, "mask JSON", json::object([&form, &values] {
               std::vector<json::Field> fields{{"form", json::constant(form->name)}};
               for (std::size_t i = 0; i < values.size(); ++i) {
                 const Field& field = form->fields[i];
                 fields.push_back({.key = field.name, .value = field_value(field, values[i])});
                 if (!field.is_required) fields.back().is_default = true;
               }
               return fields;
             }));
  return form->make(values);
}

}  // namespace magi::forms
