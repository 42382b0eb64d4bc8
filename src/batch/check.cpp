// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <tuple>

#include "base/math.hpp"
#include "base/words.hpp"
#include "batch/work.hpp"
#include "magi/batch.hpp"
#include "magi/error.hpp"

namespace magi {
namespace {

constexpr std::size_t kMostProblems = 32;

class Checker {
 public:
  explicit Checker(const BatchPlan& plan) : plan_(plan), micro_batch_of_(plan.samples.size(), -1) {}

  std::vector<std::string> run() {
    for (std::size_t m = 0; m < plan_.micro_batches.size(); ++m) {
      check_micro_batch(static_cast<std::int32_t>(m), plan_.micro_batches[m].parts);
    }
    for (std::size_t i = 0; i < plan_.samples.size(); ++i) {
      if (plan_.samples[i].rows > 0 && micro_batch_of_[i] < 0) {
        add("sample " + std::to_string(i) + " is in no micro-batch");
      }
    }
    const std::int32_t asked = plan_.config.num_micro_batches;
    if (asked > 0 && plan_.micro_batches.size() != static_cast<std::size_t>(asked)) {
      add(std::to_string(plan_.micro_batches.size()) + " micro-batches, not " +
          std::to_string(asked) + " as asked for");
    }
    if (problems_.empty()) check_report();
    return std::move(problems_);
  }

 private:
  void add(std::string problem) {
    if (problems_.size() < kMostProblems) problems_.push_back(std::move(problem));
  }

  /// Whether indices are of this batch; else nothing more can be said.
  bool has_sound_indices(std::int32_t micro_batch, const std::vector<BatchPart>& parts) {
    for (const BatchPart& part : parts) {
      const bool is_sound = part.sample >= 0 &&
                            part.sample < static_cast<std::int32_t>(plan_.samples.size()) &&
                            part.rank >= 0 && part.rank < plan_.config.num_ranks && part.rows > 0;
      if (!is_sound) {
        add("micro-batch " + std::to_string(micro_batch) + " gives " + counted(part.rows, "row") +
            " of sample " + std::to_string(part.sample) + " to rank " + std::to_string(part.rank));
        return false;
      }
    }
    return true;
  }

  void check_micro_batch(std::int32_t micro_batch, const std::vector<BatchPart>& parts) {
    if (!has_sound_indices(micro_batch, parts)) return;
    std::vector<std::int64_t> rows(static_cast<std::size_t>(plan_.config.num_ranks), 0);
    std::tuple last{false, -1, -1};  // of the sample before: whether it spreads, rank, index
    for (const std::span<const BatchPart> sample : batch::samples_of(parts)) {
      check_sample(micro_batch, sample);
      for (const BatchPart& part : sample) rows[static_cast<std::size_t>(part.rank)] += part.rows;
      const auto key =
          std::tuple(sample.size() > 1, sample.size() > 1 ? 0 : sample[0].rank, sample[0].sample);
      if (key <= last) add("sample " + std::to_string(sample[0].sample) + " is out of order");
      last = key;
    }
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      const std::int64_t held = align_up<std::int64_t>(rows[rank], plan_.config.chunk_size);
      if (held > plan_.config.rows_per_rank) {
        add("rank " + std::to_string(rank) + " holds " + std::to_string(held) +
            " rows of micro-batch " + std::to_string(micro_batch) + ", more than " +
            std::to_string(plan_.config.rows_per_rank));
      }
    }
  }

  void check_sample(std::int32_t micro_batch, std::span<const BatchPart> parts) {
    const auto index = static_cast<std::size_t>(parts.front().sample);
    const std::string name = "sample " + std::to_string(index);
    if (micro_batch_of_[index] >= 0) {
      add(name + " is in micro-batch " + std::to_string(micro_batch_of_[index]) +
          ", and again in " + std::to_string(micro_batch));
    }
    micro_batch_of_[index] = micro_batch;
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      rows += parts[i].rows;
      const bool is_cut_well = parts.size() == 1 || parts[i].rows % plan_.config.chunk_size == 0;
      if (!is_cut_well || (i > 0 && parts[i].rank <= parts[i - 1].rank)) {
        add(name + " has no whole chunks on rank " + std::to_string(parts[i].rank) +
            ", or ranks out of order");
      }
    }
    const std::int64_t expected =
        parts.size() == 1
            ? plan_.samples[index].rows
            : align_up<std::int64_t>(plan_.samples[index].rows, plan_.config.chunk_size);
    if (rows != expected) {
      add(name + " has " + std::to_string(rows) + " rows on its ranks, not " +
          std::to_string(expected));
    }
  }

  void check_report() {
    if (batch::make_report(plan_, batch::work_of(plan_.samples, plan_.config)) != plan_.report) {
      add("the report has other figures than the parts");
    }
    constexpr double kRounding = 1e-9;
    if (plan_.report.step_seconds < plan_.report.lower_bound_seconds * (1.0 - kRounding)) {
      add("the step is shorter than its bound");
    }
  }

  const BatchPlan& plan_;
  std::vector<std::int32_t> micro_batch_of_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_batch(const BatchPlan& plan) {
  try {
    static_cast<void>(batch::work_of(plan.samples, plan.config));
  } catch (const InvalidArgument& error) {
    return {error.what()};
  }
  return Checker(plan).run();
}

}  // namespace magi
