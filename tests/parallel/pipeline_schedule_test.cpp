#include "parallel/pipeline_schedule.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "base/error.h"

using namespace fp8train;

namespace {

template <typename Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string refusal_of(const std::string& text, const PipelineShape& shape) {
  return refusal([&] { check_schedule(read_schedule(text), shape); });
}

double bubble(ScheduleKind kind, const PipelineShape& shape) {
  return check_schedule(make_schedule(kind, shape), shape).bubble;
}

/// 1F1B as it is described: as many forward passes as stages follow, then one of each.
std::vector<PipelineAction> alternating(int stage, const PipelineShape& shape) {
  std::vector<PipelineAction> actions;
  const int64_t first = std::min<int64_t>(shape.stages - stage, shape.micro_batches);
  for (int64_t i = 0; i < first; ++i) {
    actions.push_back({ActionKind::forward, 0, i});
  }
  for (int64_t i = 0; i < shape.micro_batches; ++i) {
    actions.push_back({ActionKind::backward, 0, i});
    if (first + i < shape.micro_batches) {
      actions.push_back({ActionKind::forward, 0, first + i});
    }
  }
  return actions;
}

}  // namespace

TEST_CASE("schedules of one chunk are complete, and 1F1B has the bubble and memory of its paper") {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const PipelineShape shape = {stages, 1, micro_batches};
      const PipelineSchedule schedule =
          make_schedule(ScheduleKind::one_forward_one_backward, shape);
      const ScheduleCost cost = check_schedule(schedule, shape);
      CHECK(cost.bubble == Approx((stages - 1.0) / static_cast<double>(micro_batches)));
      const ScheduleCost split =
          check_schedule(make_schedule(ScheduleKind::zero_bubble, shape), shape);
      CHECK(split.bubble <= cost.bubble);
      for (int s = 0; s < stages; ++s) {
        const auto stage = static_cast<size_t>(s);
        CHECK(schedule.of_stage[stage] == alternating(s, shape));
        CHECK(cost.held[stage] == std::min<int64_t>(stages - s, micro_batches));
        CHECK(split.held[stage] <= stages);
      }
    }
  }
}

TEST_CASE("interleaved schedules are complete, with the bubble and memory of their paper") {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int64_t micro_batches = stages; micro_batches <= 16; micro_batches += stages) {
        const PipelineShape shape = {stages, chunks, micro_batches};
        const ScheduleCost cost =
            check_schedule(make_schedule(ScheduleKind::interleaved, shape), shape);
        CHECK(cost.bubble == Approx((stages - 1.0) / static_cast<double>(chunks * micro_batches)));
        for (int s = 0; s < stages; ++s) {
          CHECK(cost.held[static_cast<size_t>(s)] ==
                std::min<int64_t>(2 * (stages - s - 1) + (chunks - 1) * stages + 1,
                                  chunks * micro_batches));
        }
      }
    }
  }
}

TEST_CASE("weight gradients that wait leave half of the bubble at most") {
  using enum ScheduleKind;
  CHECK(bubble(one_forward_one_backward, {8, 1, 32}) == Approx(0.21875));
  CHECK(bubble(zero_bubble, {8, 1, 32}) == Approx(0.09375));
  CHECK(bubble(zero_bubble, {8, 1, 16}) == Approx(0.1875));
  CHECK(bubble(zero_bubble, {16, 1, 64}) == Approx(0.109375));
  CHECK(bubble(interleaved, {8, 2, 32}) == Approx(0.109375));
}

TEST_CASE("a schedule of uneven times is run on paper") {
  const PipelineShape shape = {2, 1, 2};
  const PipelineSchedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, shape);
  CHECK(text_of(schedule) == "stage 0: F0 F1 B0 B1\nstage 1: F0 B0 F1 B1\n");
  // Stage 1 ends at 13, after F0 1-2, B0 2-7, F1 7-8 and B1; stage 0 runs B1 from then on.
  const std::vector<ActionTimes> times(2, {.forward = 1, .backward = 3, .weight_gradient = 2});
  CHECK(check_schedule(schedule, shape, times).bubble == Approx((18.0 - 12.0) / 12.0));
}

TEST_CASE("each part of the model has times of its own") {
  const PipelineShape shape = {2, 1, 2};
  const PipelineSchedule schedule = make_schedule(ScheduleKind::one_forward_one_backward, shape);
  // Stage 0: F0 0-1, F1 1-2, B0 12-13, B1 23-24. Stage 1: F0 1-4, B0 4-12, F1 12-15, B1 15-23.
  const ScheduleCost cost =
      check_schedule(schedule, shape, std::vector<ActionTimes>{{1, 1, 0}, {3, 5, 3}});
  CHECK(cost.work == std::vector<double>{4, 22});
  CHECK(cost.ends == std::vector<double>{24, 23});
  // A stage has a part in each of its chunks.
  const PipelineShape halves = {2, 2, 2};
  CHECK(check_schedule(make_schedule(ScheduleKind::interleaved, halves), halves,
                       std::vector<ActionTimes>{{1, 0, 0}, {2, 0, 0}, {4, 0, 0}, {8, 0, 0}})
            .work == std::vector<double>{10, 20});
}

TEST_CASE("weight gradients that wait are never slower than 1F1B, whatever passes take") {
  std::mt19937 draws(1);
  const auto drawn = [&] { return 0.05 + static_cast<double>(draws()) / 4294967296.0; };
  for (int trial = 0; trial < 300; ++trial) {
    const PipelineShape shape = {1 + trial % 8, 1, 1 + trial / 8 % 24};
    std::vector<ActionTimes> times(static_cast<size_t>(shape.stages));
    for (ActionTimes& of_part : times) {
      of_part = {drawn(), drawn(), trial % 5 == 0 ? 0.0 : drawn()};
    }
    times.back().backward += trial % 3 == 0 ? 2 * drawn() : 0.0;
    const auto cost = [&](ScheduleKind kind) {
      return check_schedule(make_schedule(kind, shape, times), shape, times);
    };
    const ScheduleCost split = cost(ScheduleKind::zero_bubble);
    const ScheduleCost at_once = cost(ScheduleKind::one_forward_one_backward);
    CAPTURE(trial, shape.stages, shape.micro_batches);
    CHECK(*std::ranges::max_element(split.ends) <=
          *std::ranges::max_element(at_once.ends) * (1 + 1e-12));
    CHECK(*std::ranges::max_element(split.held) <= shape.stages);
  }
}

TEST_CASE("the times of passes decide the order") {
  // Short weight gradients, as with long sequences: made as if all passes took as long, the order
  // is slower than 1F1B.
  const PipelineShape shape = {4, 1, 16};
  const std::vector<ActionTimes> times(4, {.forward = 1, .backward = 2, .weight_gradient = 0.3});
  const auto end = [&](ScheduleKind kind, const std::vector<ActionTimes>& of_order) {
    return std::ranges::max(
        check_schedule(make_schedule(kind, shape, of_order), shape, times).ends);
  };
  const double at_once = end(ScheduleKind::one_forward_one_backward, {});
  CHECK(at_once == Approx(3.3 * (16 + 3)));
  CHECK(end(ScheduleKind::zero_bubble, {}) > at_once);
  // A stage waits for (p - 1) (F + B - W), as in ZB-H1 (arXiv 2401.10241, section 2.3).
  CHECK(end(ScheduleKind::zero_bubble, times) == Approx(3.3 * 16 + 3 * 2.7));
}

TEST_CASE("the text of each schedule is read back") {
  using enum ScheduleKind;
  const auto check_text = [](ScheduleKind kind, const PipelineShape& shape) {
    const PipelineSchedule schedule = make_schedule(kind, shape);
    const PipelineSchedule read = read_schedule(text_of(schedule));
    CHECK(read == schedule);
    CHECK(read.splits() == (kind == zero_bubble));
    CHECK(check_schedule(read, shape).held == check_schedule(schedule, shape).held);
  };
  for (int stages = 1; stages <= 8; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      check_text(one_forward_one_backward, {stages, 1, micro_batches});
      check_text(zero_bubble, {stages, 1, micro_batches});
      for (int chunks = 1; chunks <= 4 && micro_batches % stages == 0; ++chunks) {
        check_text(interleaved, {stages, chunks, micro_batches});
      }
    }
  }
  const PipelineSchedule read = read_schedule("# two\n\nstage 0:  F0.1 W2 # and more\r\n");
  CHECK(read.of_stage.front() == std::vector<PipelineAction>{{ActionKind::forward, 1, 0},
                                                             {ActionKind::weight_gradient, 0, 2}});
  CHECK(read.lines == std::vector<size_t>{3});
}

TEST_CASE("a schedule that does not work is refused by stage and action") {
  const PipelineShape shape = {2, 1, 2};
  const std::string first = "stage 0: F0 F1 B0 B1\n";
  CHECK(refusal_of(first, shape) == "the pipeline schedule has 1 stage, and the run has 2");
  CHECK(refusal_of(first + "stage 1: F0 B0 F1", shape) == "line 2, stage 1: B1 is missing");
  CHECK(refusal_of(first + "stage 1: F1 B1 F0 B0", shape) ==
        "line 2, stage 1: F0 is missing before F1");
  CHECK(refusal_of(first + "stage 1: F0 F0 B0 F1 B1", shape) ==
        "line 2, stage 1: F0 comes twice, or after a later one");
  CHECK(refusal_of(first + "stage 1: F0 B0 F1 B1 F2", shape) ==
        "line 2, stage 1: there is no F2 among 2 micro-batches and 1 chunk");
  CHECK(refusal_of(first + "stage 1: F0 B0 F1 B1 W0 W1", shape) ==
        "line 1, stage 0: W0 is missing; either all stages have actions W, or none has");
  CHECK(refusal_of("stage 0: F0 B0 F1 B1\nstage 1: F0 B0 F1 B1", shape).empty());
  CHECK(refusal_of("stage 0: F0 B0 F1 B1\nstage 1: F0 F1 B0 B1", shape) ==
        "line 1, stage 0: B0 waits for what comes after it");
  CHECK(refusal_of("stage 0: F0 B0 F1 B1\nstage 1: F0 F1 B0 B1\n", {2, 1, 3}) ==
        "line 1, stage 0: F2 is missing");
  CHECK(refusal_of("stage 0: B0 F0 F1 B1\nstage 1: F0 B0 F1 B1", shape) ==
        "line 1, stage 0: B0 waits for what comes after it");
  CHECK(refusal_of("# order\n\n" + first + "stage 1: F0 F1 B0 B2", shape) ==
        "line 4, stage 1: there is no B2 among 2 micro-batches and 1 chunk");
  CHECK(refusal_of(first + "stage 1: F0 F1 B1 B0", shape) ==
        "line 2, stage 1: B0 is missing before B1");
  CHECK(refusal([&] {
          check_schedule({{{{ActionKind::forward, 0, 0}}, {}}}, shape);
        }) == "stage 0: F1 is missing");
  CHECK(refusal_of("stage 0: F0 X1", shape) ==
        "line 1, stage 0: \"X1\" is no action like F3, B3, W3 or F3.1");
  CHECK(refusal_of("stage 1: F0", shape) ==
        "line 1: \"stage 1: F0\" does not begin with \"stage 0:\"");
  CHECK(refusal([] {
          make_schedule(ScheduleKind::interleaved, {4, 2, 6});
        }) ==
        "parallelism.schedule: interleaved takes a multiple of 4 micro-batches with as many "
        "stages, and a step has 6 (training.gradient_accumulation_steps); the next number that "
        "works is 8");
  CHECK(refusal([] {
          make_schedule(ScheduleKind::zero_bubble, {4, 2, 8});
        }) ==
        "parallelism.virtual_stages is 2, and with parallelism.schedule: zero_bubble each stage "
        "has one; set it to 1, or take interleaved");
}
