// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "magi/attention.hpp"
#include "magi/attention_backend.h"

// A caller's table of C functions, in C++.
namespace magi {

/// The table and its context, which ends with the last owner.
class SuppliedTable {
 public:
  explicit SuppliedTable(const magi_attention_backend& given)
      : functions(given), name(given.name) {}
  ~SuppliedTable();
  SuppliedTable(const SuppliedTable&) = delete;
  SuppliedTable& operator=(const SuppliedTable&) = delete;

  /// Throws what a status of its functions stands for, with the table's own words.
  void check(std::int32_t status) const;

  const magi_attention_backend functions;
  const std::string name;
};

/// The problem that a handle is made for.
struct SuppliedProblem {
  const TensorView &q, &k, &v;
  std::span<const BandSlice> slices;
  bool is_backward = false;
  bool is_deterministic = true;
  std::int32_t sm_margin = 0;
};

/// The plan of a table for a problem.
class SuppliedHandle {
 public:
  SuppliedHandle(std::shared_ptr<const SuppliedTable> table, const SuppliedProblem& problem);
  ~SuppliedHandle();
  SuppliedHandle(const SuppliedHandle&) = delete;
  SuppliedHandle& operator=(const SuppliedHandle&) = delete;

  /// Plain attention; see magi/attention_backend.h.
  void forward(const ForwardArgs& args, void* stream) const;
  void backward(const BackwardArgs& args, void* stream) const;

 private:
  std::shared_ptr<const SuppliedTable> table_;
  void* handle_ = nullptr;
};

}  // namespace magi
