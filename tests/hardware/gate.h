// SPDX-License-Identifier: Apache-2.0
//
// A rendezvous by files, so that fixed work happens while a profiler is attached and at no other
// time. The workload launches `beat` until DIR/go exists (the shim arms inside a launch), works,
// writes DIR/done, and beats again until DIR/stop exists. Without a directory it does nothing.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace hardware {

class Gate {
 public:
  explicit Gate(const char* directory) : directory_(directory == nullptr ? "" : directory) {}

  template <class Beat>
  void open(Beat beat) const {
    if (directory_.empty()) return;
    touch("ready");
    beat_until("go", beat);
  }

  template <class Beat>
  void close(Beat beat) const {
    if (directory_.empty()) return;
    touch("done");
    beat_until("stop", beat);
  }

 private:
  template <class Beat>
  void beat_until(const char* name, Beat beat) const {
    const std::string path = directory_ + "/" + name;
    while (access(path.c_str(), F_OK) != 0) {
      beat();
      usleep(5000);
    }
  }

  void touch(const char* name) const {
    const std::string path = directory_ + "/" + name;
    if (FILE* file = fopen(path.c_str(), "w")) fclose(file);
  }

  std::string directory_;
};

}  // namespace hardware
