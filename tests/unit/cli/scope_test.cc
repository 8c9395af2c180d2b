// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <vector>

#include "daemon/cli/scope_filter.h"

namespace gpuprof::cli {
namespace {

std::string own_executable() {
  char path[PATH_MAX] = {};
  EXPECT_GT(::readlink("/proc/self/exe", path, sizeof path - 1), 0);
  return path;
}

bool has_us(std::vector<std::string> exclude, const char* comm = "python3") {
  Options options;
  options.exclude = std::move(exclude);
  auto scope = Scope::create(options);
  EXPECT_TRUE(scope.has_value());
  return scope && scope->has(static_cast<uint32_t>(::getpid()), comm, false);
}

TEST(Scope, ExclusionsByNameNumberAndPath) {
  EXPECT_TRUE(has_us({}));
  EXPECT_FALSE(has_us({"comm:python3"}));
  EXPECT_FALSE(has_us({"comm:ruby", "comm:py*"}));
  EXPECT_TRUE(has_us({"comm:python"})) << "the whole name";
  EXPECT_FALSE(has_us({"comm:a b: c"}, "a b: c"));
  EXPECT_FALSE(has_us({"pid:" + std::to_string(::getpid())}));
  EXPECT_TRUE(has_us({"pid:1"}));
  EXPECT_FALSE(has_us({"exe:" + own_executable()}));
  EXPECT_FALSE(has_us({"exe:/*/cli_tes?"})) << "a star matches slashes too";
  EXPECT_TRUE(has_us({"exe:cli_test"})) << "the whole path";
}

TEST(Scope, AWrongExclusionSaysWhatIsMeant) {
  for (const char* text :
       {"python3", "comm:", "comm", "pid:x", "pid:0", "pid:-1", "pid:99999999999", "name:x", ""}) {
    auto rule = Exclusion::parse(text);
    ASSERT_FALSE(rule.has_value()) << text;
    EXPECT_EQ(rule.error().code, Code::kInvalidArgument);
    EXPECT_EQ(rule.error().message.rfind("--exclude: '", 0), 0u) << rule.error().message;
  }
}

TEST(Scope, AProcessThatIsGoneIsInNoCgroup) {
  Options options;
  auto scope = Scope::create(options);
  ASSERT_TRUE(scope.has_value());
  EXPECT_FALSE(scope->has(0x7fffffff));
  EXPECT_FALSE(scope->in_cgroups(0x7fffffff).has_value());
  EXPECT_EQ(scope->in_cgroups(static_cast<uint32_t>(::getpid())), true);
  EXPECT_FALSE(scope->may_change());
  EXPECT_TRUE(scope->all());
}

class Counter : public probe::EventSink {
 public:
  void on_process(const probe::EventSource& source, const gpuprof_process_v1&) override {
    EXPECT_TRUE(source.watched);
    ++processes;
  }
  void on_launch(const probe::EventSource&, const gpuprof_launch_v1&, const StackSample*) override {
    ++others;
  }
  void on_execs(const probe::EventSource&, std::span<const gpuprof_exec_v1> all) override {
    execs += all.size();
  }
  void on_pc_samples(const probe::EventSource&, std::span<const gpuprof_pc_sample_v1>) override {
    ++others;
  }
  void on_name(const probe::EventSource&, uint32_t, uint64_t, std::string_view) override {
    ++others;
  }
  void on_modules(const probe::EventSource&, std::span<const gpuprof_module_v1>) override {
    ++others;
  }
  void on_device(const probe::EventSource&, const gpuprof_device_v1&) override { ++others; }
  void on_window(const probe::EventSource&, const gpuprof_window_v1&) override { ++others; }
  void on_drop(const probe::EventSource&, const gpuprof_drop_v1&) override { ++others; }
  void on_loss(ProcessId, uint32_t, uint64_t records, probe::LossReason) override {
    lost += records;
  }
  size_t processes = 0, execs = 0, others = 0, lost = 0;
};

class ScopeFilterTest : public testing::Test {
 protected:
  static probe::EventSource from(uint32_t pid, uint32_t exec_id = 1, bool watched = true) {
    probe::EventSource out;
    out.process = {pid, 5, 0};
    out.exec_id = exec_id;
    out.watched = watched;
    return out;
  }
  // Every callback once, the executions two.
  void send(const probe::EventSource& source) {
    const std::vector<gpuprof_exec_v1> execs(2);
    filter.on_process(source, {});
    filter.on_launch(source, {}, nullptr);
    filter.on_execs(source, execs);
    filter.on_pc_samples(source, std::vector<gpuprof_pc_sample_v1>(1));
    filter.on_name(source, 0, 0, "");
    filter.on_modules(source, std::vector<gpuprof_module_v1>(1));
    filter.on_device(source, {});
    filter.on_window(source, {});
    filter.on_drop(source, {});
  }
  Counter counter;
  std::vector<uint32_t> asked;
  bool outsiders_meant = false;
  ScopeFilter filter{counter, [this](const probe::EventSource& source) {
                       asked.push_back(source.process.pid);
                       return source.process.pid < 100 && (source.watched || outsiders_meant);
                     }};
};

TEST_F(ScopeFilterTest, WhoIsMeantGoesThroughAndIsAskedAboutOnce) {
  send(from(1));
  send(from(1));
  EXPECT_EQ(counter.processes, 2u);
  EXPECT_EQ(counter.execs, 4u);
  EXPECT_EQ(counter.others, 14u);
  EXPECT_EQ(asked.size(), 1u);
  EXPECT_EQ(filter.records_refused(), 0u);
}

TEST_F(ScopeFilterTest, WhoIsNotIsCountedToTheRecord) {
  send(from(100));
  filter.on_loss({100, 5, 0}, GPUPROF_PROBE_EXEC, 3, probe::LossReason::kGap);
  filter.on_loss({7, 5, 0}, GPUPROF_PROBE_EXEC, 4, probe::LossReason::kGap);
  EXPECT_EQ(counter.processes + counter.execs + counter.others, 0u);
  EXPECT_EQ(counter.lost, 4u) << "of one that is not known";
  EXPECT_EQ(filter.records_refused(), 10u);
  EXPECT_EQ(filter.programs_refused(), 1u);
}

TEST_F(ScopeFilterTest, AnotherProgramOfTheProcessIsJudgedAnew) {
  send(from(100, 1));
  send(from(100, 2));
  EXPECT_EQ(asked, (std::vector<uint32_t>{100, 100}));
  EXPECT_EQ(filter.programs_refused(), 2u);
}

TEST_F(ScopeFilterTest, AStrangersFirstWordIsForgotten) {
  filter.on_process(from(3, 1, false), {});
  EXPECT_EQ(counter.processes, 0u);
  EXPECT_EQ(filter.programs_refused(), 0u);
  EXPECT_EQ(filter.records_refused(), 0u);
  send(from(3));  // it moved into the cgroup
  EXPECT_EQ(counter.execs, 2u);
  outsiders_meant = true;  // of a hierarchy that eBPF does not know
  filter.on_process(from(4, 1, false), {});
  EXPECT_EQ(counter.processes, 2u);
}

TEST_F(ScopeFilterTest, AFloodOfProcessesIsForgotten) {
  for (uint32_t pid = 1000; pid < 1000 + ScopeFilter::kMaxPrograms; ++pid) send(from(pid));
  send(from(1000));
  EXPECT_EQ(asked.size(), ScopeFilter::kMaxPrograms);
  send(from(1));
  send(from(1000));
  EXPECT_EQ(asked.size(), ScopeFilter::kMaxPrograms + 2) << "asked again";
  EXPECT_EQ(counter.execs, 2u);
}

}  // namespace
}  // namespace gpuprof::cli
