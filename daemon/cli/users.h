// SPDX-License-Identifier: Apache-2.0
//
// Users: who the users of this system are, those of a directory service (SSSD, LDAP) included.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/base/result.h"

namespace gpuprof::cli {

struct User {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string home;
  bool was_asked_for = false;  // of getent
};

// A static glibc cannot load the NSS modules of another one: a static binary reads /etc/passwd and
// /etc/group itself. Whom that does not find getent(1) and id(1) are asked for, which each take
// `patience` at most. Their answers are checked.
class Users {
 public:
  static constexpr std::chrono::milliseconds kPatience{5000};

  // `folders`: where getent and id are looked for, absolute paths.
  explicit Users(std::vector<std::string> folders = {"/usr/bin", "/bin",
                                                     "/run/current-system/sw/bin"},
                 std::chrono::milliseconds patience = kPatience)
      : folders_(std::move(folders)), patience_(patience) {}

  // kNotFound: there is none; kUnavailable: nobody could be asked. The message says who was.
  [[nodiscard]] Result<User> find(const std::string& name) const;
  [[nodiscard]] Result<User> find(uid_t uid) const;
  // Supplementary ones, and `gid`. Errors as above.
  [[nodiscard]] Result<std::vector<gid_t>> groups_of(const User& user, gid_t gid) const;

 private:
  [[nodiscard]] Result<std::string> ask(const std::string& program,
                                        std::vector<std::string> arguments) const;
  [[nodiscard]] Result<User> ask_for(const std::string& key) const;

  std::vector<std::string> folders_;
  std::chrono::milliseconds patience_;
};

}  // namespace gpuprof::cli
