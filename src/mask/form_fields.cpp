// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "mask/form_masks.hpp"

namespace magi {
namespace {

using forms::Field;
using forms::Form;
using forms::Kind;
using forms::Value;

template <typename Named>
const Named& find_named(std::span<const Named> all, std::string_view name, std::string_view what) {
  const auto found = std::ranges::find(all, name, &Named::name);
  if (found == all.end()) throw invalid(what, std::string(name), forms::names_of(all));
  return *found;
}

void check_shape(const Field& field, const FormField& given) {
  if (field.kind == Kind::Integer || field.kind == Kind::Flag) {
    forms::check_count("entries of " + std::string(field.name), given.numbers.size(), 1, "a value");
  }
  const auto offsets = given.offsets;
  const bool is_table = !offsets.empty() && offsets.front() == 0 &&
                        offsets.back() == static_cast<std::int64_t>(given.numbers.size()) &&
                        std::ranges::is_sorted(offsets);
  if (field.kind == Kind::Table ? !is_table : !offsets.empty()) {
    throw invalid("offsets of " + std::string(field.name), offsets.size(),
                  "those of the rows of a table, from 0 to its numbers; none of other fields");
  }
}

/// Throws for the first number outside of the field's bounds, by its place.
void check_numbers(const Field& field, const FormField& given) {
  const std::int32_t high = field.kind == Kind::Flag ? 1 : field.high;
  const auto found = std::ranges::find_if(
      given.numbers, [&](std::int32_t number) { return number < field.low || number > high; });
  if (found == given.numbers.end()) return;
  auto place = static_cast<std::size_t>(found - given.numbers.begin());
  std::string path(field.name);
  if (field.kind == Kind::Table) {
    const auto next = std::ranges::upper_bound(given.offsets, static_cast<std::int64_t>(place));
    path = element_name(path, static_cast<std::size_t>(next - given.offsets.begin()) - 1);
    place -= static_cast<std::size_t>(next[-1]);
  }
  if (field.kind == Kind::Table || field.kind == Kind::List) path = element_name(path, place);
  throw invalid(path, *found, std::to_string(field.low) + " to " + std::to_string(high));
}

}  // namespace

Mask mask_from_form(std::string_view form, std::span<const FormField> fields) {
  const Form& known = find_named(forms::all_forms(), form, "form");
  std::vector<Value> values(known.fields.size());
  for (const FormField& given : fields) {
    const Field& field = find_named(known.fields, given.name, "field of the form");
    Value& value = values[static_cast<std::size_t>(&field - known.fields.data())];
    if (value.is_given) throw invalid("field " + std::string(given.name), "repeated", "once");
    check_shape(field, given);
    check_numbers(field, given);
    value.is_given = true;
    value.numbers.assign(given.numbers.begin(), given.numbers.end());
    if (field.kind == Kind::Table) value.offsets.assign(given.offsets.begin(), given.offsets.end());
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (known.fields[i].is_required && !values[i].is_given) {
      throw invalid("field " + std::string(known.fields[i].name), "missing", "a value");
    }
  }
  return known.make(values);
}

}  // namespace magi
