// SPDX-License-Identifier: Apache-2.0
// fake_cuda_play SESSION [NAME=VALUE]...: plays a session file, one thread for each of its threads.
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/play/player.h"

using fakecuda::Player;
using fakecuda::Stage;
using fakecuda::ThreadSpec;

namespace {

struct Arguments {
  Stage* stage;
  const ThreadSpec* thread;
};

}  // namespace

extern "C" __attribute__((noinline)) void* session_thread(void* argument) {
  const auto* mine = static_cast<const Arguments*>(argument);
  Player player(*mine->stage, *mine->thread, "session_thread");
  player.play();
  return nullptr;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: fake_cuda_play SESSION [NAME=VALUE]...\n");
    return 2;
  }
  std::map<std::string, std::string> set;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) set[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  struct sigaction action {};
  action.sa_handler = [](int) { fakecuda::stop_playing(); };
  sigaction(SIGTERM, &action, nullptr);
  Stage* stage = fakecuda::set_stage(argv[1], set);
  std::vector<pthread_t> threads;
  std::vector<Arguments> arguments;
  arguments.reserve(stage->session.threads.size());
  for (const ThreadSpec& thread : stage->session.threads) {
    if (thread.on_main) continue;
    arguments.push_back({stage, &thread});
    threads.emplace_back();
    pthread_create(&threads.back(), nullptr, session_thread, &arguments.back());
  }
  for (const ThreadSpec& thread : stage->session.threads) {
    if (!thread.on_main) continue;
    Player player(*stage, thread, "main");
    player.play();
  }
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  fake_cuda_drain();
  return 0;
}
