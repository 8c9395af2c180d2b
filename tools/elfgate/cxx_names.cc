// SPDX-License-Identifier: Apache-2.0
//
// Which names belong to the C++ runtime, by the mangling of the Itanium C++ ABI.
#include <algorithm>
#include <array>
#include <string_view>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// <call-offset> of a thunk: h NUMBER _, or v NUMBER _ NUMBER _.
void take_offset(std::string_view& name) {
  const int numbers = take(name, "v") ? 2 : take(name, "h") ? 1 : 0;
  for (int i = 0; i < numbers; ++i) {
    const size_t end = name.find('_');
    name.remove_prefix(end == std::string_view::npos ? name.size() : end + 1);
  }
}

// What stands before the name of an entity where the symbol is a guard, a table, a thunk, a
// transactional clone, ... of it, or something local to it.
bool take_special(std::string_view& name) {
  for (const std::string_view prefix :
       {"GV", "GR", "GTt", "GTn", "TV", "TT", "TC", "TW", "TH", "Z"}) {
    if (take(name, prefix)) return true;
  }
  if (take(name, "Tc")) {
    take_offset(name);
    take_offset(name);
    return true;
  }
  if (!name.starts_with("Th") && !name.starts_with("Tv")) return false;
  name.remove_prefix(1);
  take_offset(name);
  return true;
}

// The runtime alone has the type information of these, of pointers to them and to const ones.
bool is_builtin_type(std::string_view type) {
  constexpr std::string_view kOneLetter = "vwbcahstijlmxynofdegz";
  return type.size() == 1 ? kOneLetter.find(type[0]) != std::string_view::npos
                          : type.starts_with("D") || type.starts_with("u");
}

// std::, its short forms (std::string, std::allocator, ...) and what libstdc++ has beside it.
bool is_in_runtime(std::string_view name) {
  if (take(name, "N")) name.remove_prefix(std::min(name.find_first_not_of("rVKRO"), name.size()));
  for (const std::string_view begin :
       {"St", "Sa", "Sb", "Ss", "Si", "So", "Sd", "10__cxxabiv1", "9__gnu_cxx", "11__gnu_debug"}) {
    if (name.starts_with(begin)) return true;
  }
  return false;
}

}  // namespace

bool is_cxx_runtime_name(std::string_view name) {
  constexpr std::array kOfLibc = {"__cxa_atexit", "__cxa_finalize", "__cxa_at_quick_exit",
                                  "__cxa_thread_atexit_impl"};
  if (name.starts_with("__cxa_")) {
    return std::find(kOfLibc.begin(), kOfLibc.end(), name) == kOfLibc.end();
  }
  for (const std::string_view plain : {"__gxx_personality_v0", "__dynamic_cast", "__once_proxy"}) {
    if (name == plain) return true;
  }
  if (!take(name, "_Z")) return false;
  while (take_special(name)) {
  }
  if (take(name, "TI") || take(name, "TS")) {
    name.remove_prefix(std::min(name.find_first_not_of("PROrVK"), name.size()));
    return is_builtin_type(name) || is_in_runtime(name);
  }
  for (const std::string_view op : {"nw", "na", "dl", "da"}) {
    if (name.starts_with(op)) return true;
  }
  return is_in_runtime(name);
}

}  // namespace gpuprof::elfgate
