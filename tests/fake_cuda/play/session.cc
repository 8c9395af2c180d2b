// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/play/session.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace fakecuda {
namespace {

class Reader {
 public:
  Reader(const char* path, const std::map<std::string, std::string>& set)
      : path_(path), in_(path), values_(set) {
    if (!in_) fail("cannot be read");
  }

  Session read() {
    while (next_line()) {
      if (thread_ == nullptr || is_top(words_[0])) {
        top();
      } else {
        operation();
      }
    }
    close_thread();
    if (session_.threads.empty()) fail("has no thread");
    return std::move(session_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    fprintf(stderr, "%s:%d: %s\n", path_, line_, problem.c_str());
    exit(2);
  }

  static bool is_top(const std::string& word) {
    return word == "thread" || word == "kernel" || word == "module" || word == "graph" ||
           word == "seed" || word == "pcs" || word == "let";
  }

  bool next_line() {
    std::string text;
    while (std::getline(in_, text)) {
      ++line_;
      std::istringstream stream(text.substr(0, text.find('#')));
      words_.clear();
      for (std::string word; stream >> word;) words_.push_back(expand(word));
      if (!words_.empty()) return true;
    }
    return false;
  }

  /// $NAME at the end of a word is the value of a `let` line.
  std::string expand(const std::string& word) const {
    const size_t dollar = word.find('$');
    if (dollar == std::string::npos) return word;
    const auto found = values_.find(word.substr(dollar + 1));
    if (found == values_.end()) fail("nothing is called " + word.substr(dollar));
    return word.substr(0, dollar) + found->second;
  }

  const std::string& word(size_t i) const {
    if (i >= words_.size()) fail("a word is missing");
    return words_[i];
  }

  /// 10, 1k, 2M; times: 5us, 3ms, 1s.
  uint64_t number(const std::string& text) const {
    char* end = nullptr;
    const uint64_t value = strtoull(text.c_str(), &end, 0);
    const std::string unit = end;
    if (end == text.c_str()) fail("not a number: " + text);
    if (unit.empty() || unit == "ns") return value;
    if (unit == "k" || unit == "us") return value * 1000;
    if (unit == "M" || unit == "ms") return value * 1'000'000;
    if (unit == "s") return value * 1'000'000'000;
    fail("unknown unit: " + text);
  }

  /// Value of `name=` on this line, or the default.
  std::string option(const std::string& name, const std::string& otherwise) const {
    for (const std::string& w : words_) {
      if (w.rfind(name + "=", 0) == 0) return w.substr(name.size() + 1);
    }
    return otherwise;
  }

  void top() {
    const std::string& verb = word(0);
    if (verb == "set") {
      session_.settings.emplace_back(word(1), word(2));
    } else if (verb == "let") {
      values_.try_emplace(word(1), word(2));
    } else if (verb == "seed") {
      session_.seed = number(word(1));
    } else if (verb == "module") {
      module();
    } else if (verb == "kernel") {
      kernel();
    } else if (verb == "pcs") {
      need_kernel(word(1));
      for (size_t i = 2; i < words_.size(); ++i) session_.kernels[word(1)].pcs += words_[i] + " ";
    } else if (verb == "graph") {
      graph();
    } else if (verb == "thread") {
      close_thread();
      session_.threads.push_back({word(1),
                                  option("on", "") == "main",
                                  static_cast<int>(number(option("device", "0"))),
                                  {}});
      thread_ = &session_.threads.back();
    } else {
      fail("unknown word: " + verb);
    }
  }

  void module() {
    ModuleSpec spec;
    spec.file = option("file", "");
    const std::string path = path_;
    if (!spec.file.empty() && spec.file[0] != '/' && path.find('/') != std::string::npos)
      spec.file = path.substr(0, path.rfind('/') + 1) + spec.file;
    spec.bytes = number(option("size", "4096"));
    spec.foreign = option("key", "") == "foreign";
    spec.later = option("loaded", "") == "later";
    session_.modules[word(1)] = spec;
    session_.module_order.push_back(word(1));
  }

  /// T, T..T, or SUM/COUNT.
  Duration duration(const std::string& time) const {
    Duration result;
    if (const size_t slash = time.find('/'); slash != std::string::npos) {
      result.sum_ns = number(time.substr(0, slash));
      result.count = number(time.substr(slash + 1));
      if (result.count == 0) fail("a duration of no launches");
      result.low_ns = result.high_ns = result.sum_ns / result.count;
      return result;
    }
    const size_t dots = time.find("..");
    result.low_ns = number(time.substr(0, dots));
    result.high_ns = dots == std::string::npos ? result.low_ns : number(time.substr(dots + 2));
    if (result.high_ns < result.low_ns) fail("the range of durations is empty");
    return result;
  }

  void kernel() {
    KernelSpec spec;
    spec.function = option("function", word(1));
    spec.module = option("module", "default");
    spec.duration = duration(option("duration", "5us"));
    if (spec.module != "default" && session_.modules.count(spec.module) == 0)
      fail("no module " + spec.module);
    session_.kernels[word(1)] = spec;
  }

  void graph() {
    GraphSpec spec;
    for (size_t i = 2; i < words_.size(); ++i) {
      const size_t times = words_[i].find('*');
      need_kernel(words_[i].substr(0, times));
      const uint64_t n = times == std::string::npos ? 1 : number(words_[i].substr(times + 1));
      for (uint64_t k = 0; k < n; ++k) spec.nodes.push_back(words_[i].substr(0, times));
    }
    if (spec.nodes.empty()) fail("a graph needs nodes");
    session_.graphs[word(1)] = spec;
  }

  void need_kernel(const std::string& name) const {
    if (session_.kernels.count(name) == 0) fail("no kernel " + name);
  }

  void operation() {
    static const std::map<std::string, Verb> kVerbs = {{"launch", Verb::kLaunch},
                                                       {"cooperate", Verb::kCooperate},
                                                       {"memcpy", Verb::kMemcpy},
                                                       {"memset", Verb::kMemset},
                                                       {"run-graph", Verb::kGraph},
                                                       {"capture", Verb::kCapture},
                                                       {"capture-begin", Verb::kCaptureBegin},
                                                       {"capture-end", Verb::kCaptureEnd},
                                                       {"sleep", Verb::kSleep},
                                                       {"loop", Verb::kLoop},
                                                       {"end", Verb::kEnd},
                                                       {"rate", Verb::kRate},
                                                       {"path", Verb::kPath},
                                                       {"set", Verb::kSet},
                                                       {"load", Verb::kLoad},
                                                       {"unload", Verb::kUnload},
                                                       {"fork", Verb::kFork},
                                                       {"exit", Verb::kExit},
                                                       {"_exit", Verb::kExitNow},
                                                       {"kill", Verb::kKill},
                                                       {"terminate", Verb::kTerminate},
                                                       {"cancel", Verb::kCancel},
                                                       {"drain", Verb::kDrain},
                                                       {"await-window", Verb::kAwaitWindow},
                                                       {"step-clock", Verb::kStep}};
    const auto found = kVerbs.find(word(0));
    if (found == kVerbs.end()) fail("unknown word: " + word(0));
    Op op;
    op.verb = found->second;
    op.line = line_;
    op.count = number(option("count", "1"));
    fill(op);
    thread_->ops.push_back(op);
  }

  void fill(Op& op) {
    switch (op.verb) {
      case Verb::kLaunch:
      case Verb::kCooperate:
      case Verb::kCapture:
        op.name = word(1);
        need_kernel(op.name);
        break;
      case Verb::kGraph:
        op.name = word(1);
        if (session_.graphs.count(op.name) == 0) fail("no graph " + op.name);
        break;
      case Verb::kMemcpy:
        op.name = word(1);
        if (op.name != "htod" && op.name != "dtoh" && op.name != "dtod") fail("htod, dtoh or dtod");
        op.number = number(word(2));
        break;
      case Verb::kLoad:
      case Verb::kUnload:
        op.name = word(1);
        if (session_.modules.count(op.name) == 0) fail("no module " + op.name);
        break;
      case Verb::kSet:
        op.name = word(1);
        op.value = word(2);
        break;
      case Verb::kPath:
        op.number = call_path(word(1));
        break;
      case Verb::kLoop:
        op.number = number(word(1));
        loops_.push_back(thread_->ops.size());
        break;
      case Verb::kEnd:
        if (loops_.empty()) fail("end without loop");
        op.jump = loops_.back();
        thread_->ops[op.jump].jump = thread_->ops.size() + 1;
        loops_.pop_back();
        break;
      case Verb::kStep:
        op.value = word(1);  // may be negative
        break;
      case Verb::kAwaitWindow:
        op.number = words_.size() > 1 ? number(word(1)) : 1;
        break;
      case Verb::kMemset:
      case Verb::kSleep:
      case Verb::kRate:
      case Verb::kExit:
      case Verb::kExitNow:
        op.number = number(word(1));
        break;
      default:
        break;
    }
  }

  uint64_t call_path(const std::string& text) {
    std::vector<char> path;
    for (size_t i = 0; i < text.size(); i += 2) {
      if (text[i] < 'a' || text[i] > 'p' || (i + 1 < text.size() && text[i + 1] != '/'))
        fail("a path is a/b/c, a to p");
      path.push_back(text[i]);
    }
    session_.paths.push_back(path);
    return session_.paths.size();  // 0: no path
  }

  void close_thread() {
    if (!loops_.empty()) fail("loop without end");
    thread_ = nullptr;
  }

  const char* path_;
  std::ifstream in_;
  std::map<std::string, std::string> values_;
  int line_ = 0;
  std::vector<std::string> words_;
  Session session_;
  ThreadSpec* thread_ = nullptr;
  std::vector<size_t> loops_;
};

}  // namespace

Session read_session(const char* path, const std::map<std::string, std::string>& set) {
  return Reader(path, set).read();
}

}  // namespace fakecuda
