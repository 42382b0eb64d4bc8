// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/tensor.hpp"

// The table of mistakes in the arguments of attention, as calls by a mask and by a plan.
namespace magi::capi_test {
namespace {

struct Mistake {
  std::string pass, change, by_mask, by_plan;
};

std::vector<Mistake> read_mistakes() {
  std::ifstream file(MAGI_ATTENTION_MISTAKES);
  std::vector<Mistake> mistakes;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    Mistake read;
    for (std::string* cell : {&read.pass, &read.change, &read.by_mask, &read.by_plan}) {
      std::getline(cells, *cell, '\t');
    }
    if (read.by_plan.empty()) read.by_plan = read.by_mask;
    mistakes.push_back(read);
  }
  return mistakes;
}

std::int32_t dtype_named(const std::string& name) {
  for (std::int32_t dtype = 0; dtype < 6; ++dtype) {
    if (name == dtype_name(static_cast<DType>(dtype))) return dtype;
  }
  throw std::invalid_argument(name);
}

void set_field(magi_tensor& tensor, const std::string& field, const std::string& value) {
  if (field == "dtype") {
    tensor.dtype = dtype_named(value);
  } else if (field == "data") {
    tensor.data = nullptr;
  } else if (field == "rank") {
    tensor.rank = std::stoi(value);
  } else if (field == "device") {
    tensor.device = std::stoi(value);
  } else {  // shape[0] or stride[0]
    const auto axis = static_cast<std::size_t>(field.at(field.size() - 2) - '0');
    (field[1] == 'h' ? tensor.shape : tensor.stride)[axis] = std::stoll(value);
  }
}

/// Makes one change such as "q.shape[0]=39" or "softcap=-1".
void make(const std::string& change, Problem& problem) {
  const std::size_t equals = change.find('='), dot = change.find('.');
  const std::string value = change.substr(equals + 1);
  if (dot > equals) {
    const std::string name = change.substr(0, equals);
    if (name == "sink_layout") problem.inputs.sink_layout = std::stoi(value);
    if (name == "softmax_scale") problem.inputs.softmax_scale = std::stod(value);
    if (name == "softcap") problem.inputs.softcap = std::stod(value);
    return;
  }
  const std::string name = change.substr(0, dot);
  for (const auto& [known, array] : {std::pair{"q", &problem.q},
                                     {"k", &problem.k},
                                     {"v", &problem.v},
                                     {"out", &problem.out},
                                     {"lse", &problem.lse},
                                     {"max_logits", &problem.max_logits},
                                     {"sink", &problem.sink},
                                     {"dout", &problem.dout},
                                     {"dlse", &problem.dlse},
                                     {"dq", &problem.dq},
                                     {"dk", &problem.dk},
                                     {"dv", &problem.dv},
                                     {"dsink", &problem.dsink}}) {
    if (name == known) set_field(array->tensor, change.substr(dot + 1, equals - dot - 1), value);
  }
}

std::string told(magi_status status) {
  return status == MAGI_OK ? "accepted" : magi_last_error_message();
}

class AttentionMistakes : public ::testing::Test {
 protected:
  std::string by_mask(Problem& problem, bool is_backward) {
    return told(
        is_backward
            ? magi_flex_attention_backward(mask.get(), &problem.inputs, &problem.result,
                                           &problem.gradients, nullptr)
            : magi_flex_attention_forward(mask.get(), &problem.inputs, &problem.result, nullptr));
  }
  std::string by_plan(Problem& problem, bool is_backward) {
    return told(is_backward ? magi_attention_backward(attention.get(), &problem.inputs,
                                                      &problem.result, &problem.gradients, nullptr)
                            : magi_attention_forward(attention.get(), &problem.inputs,
                                                     &problem.result, nullptr));
  }

  Owned<magi_mask> mask =
      mask_from({kRows, kRows, {band_slice({0, kRows}, {0, kRows}, MaskType::Full)}});
  LoneRank rank{mask.get()};
  Owned<magi_attention> attention = made<magi_attention>(
      [&](auto** a) { return magi_attention_create(rank.plan.get(), rank.group.get(), a); });
};

TEST_F(AttentionMistakes, AreNamedInOneSentence) {
  const std::vector<Mistake> mistakes = read_mistakes();
  ASSERT_GT(mistakes.size(), 50U);
  for (const bool is_backward : {false, true}) {
    for (const Mistake& mistake : mistakes) {
      if (mistake.pass == (is_backward ? "forward" : "backward")) continue;
      SCOPED_TRACE(mistake.change + (is_backward ? ", backward" : ", forward"));
      Problem problem;
      std::istringstream changes(mistake.change);
      for (std::string change; changes >> change;) make(change, problem);
      EXPECT_EQ(by_mask(problem, is_backward), mistake.by_mask);
      EXPECT_EQ(by_plan(problem, is_backward), mistake.by_plan);
    }
    Problem sound;
    EXPECT_EQ(by_mask(sound, is_backward), "accepted");
    EXPECT_EQ(by_plan(sound, is_backward), "accepted") << "after all refusals";
  }
}

}  // namespace
}  // namespace magi::capi_test
