// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/rust_demangle.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "daemon/symbolize/punycode.h"

namespace gpuprof::symbolize {
namespace {

constexpr int kMaxDepth = 200;
constexpr int kMaxSteps = 100'000;
constexpr uint64_t kMaxBoundLifetimes = 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// By lower-case letter.
constexpr std::string_view kBasicTypes[26] = {
    "i8",   "bool", "char", "f64", "str", "f32", "",    "u8", "isize", "usize", "",    "i32", "u32",
    "i128", "u128", "_",    "",    "",    "i16", "u16", "()", "...",   "",      "i64", "u64", "!"};

struct Identifier {
  std::string_view text;
  bool is_punycode = false;
  uint64_t disambiguator = 0;
};

// Reads and prints in one pass; a failure sticks, and then nothing is read any more.
class V0Printer {
 public:
  V0Printer(std::string_view text, size_t max_bytes) : text_(text), max_bytes_(max_bytes) {}

  std::optional<std::string> run() {
    path(true);
    if (!failed_ && is_upper(peek())) silently([&] { path(false); });  // the instantiating crate
    if (failed_) return std::nullopt;
    const std::string_view rest = text_.substr(at_);
    if (!rest.empty() && rest.front() != '.' && rest.front() != '$') return std::nullopt;
    if (!rest.starts_with(".llvm.")) print(rest);
    return failed_ ? std::nullopt : std::optional(std::move(out_));
  }

 private:
  // Counts nesting and steps for as long as it lives.
  class Level {
   public:
    explicit Level(V0Printer& of) : of_(of) {
      if (++of_.depth_ > kMaxDepth || ++of_.steps_ > kMaxSteps) of_.failed_ = true;
    }
    ~Level() { --of_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    V0Printer& of_;
  };

  [[nodiscard]] char peek() const { return !failed_ && at_ < text_.size() ? text_[at_] : '\0'; }
  char next() {
    const char c = peek();
    if (c == '\0') failed_ = true;
    ++at_;
    return c;
  }
  bool eat(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  // Whether a list goes on.
  bool more() { return !failed_ && !eat('E'); }

  void print(std::string_view text) {
    if (silent_ || failed_) return;
    if (text.size() > max_bytes_ - out_.size()) {
      failed_ = true;
      return;
    }
    out_ += text;
  }
  template <class Do>
  void silently(Do what) {
    const bool before = silent_;
    silent_ = true;
    what();
    silent_ = before;
  }

  // "_" is 0, "0_" is 1.
  uint64_t base62() {
    if (eat('_')) return 0;
    uint64_t value = 0;
    while (!failed_) {
      const char c = next();
      if (c == '_') break;
      uint64_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<uint64_t>(c - '0');
      } else if (is_lower(c)) {
        digit = static_cast<uint64_t>(c - 'a' + 10);
      } else if (is_upper(c)) {
        digit = static_cast<uint64_t>(c - 'A' + 36);
      } else {
        failed_ = true;
      }
      if (value > (UINT64_MAX - 62) / 62) failed_ = true;
      value = value * 62 + digit;
    }
    return value + 1;
  }
  uint64_t optional_base62(char tag) { return eat(tag) ? base62() + 1 : 0; }

  Identifier identifier(bool with_disambiguator) {
    Identifier out;
    if (with_disambiguator) out.disambiguator = optional_base62('s');
    out.is_punycode = eat('u');
    size_t length = 0;
    if (!is_digit(peek())) failed_ = true;
    if (!eat('0')) {
      while (is_digit(peek()) && length <= text_.size())
        length = length * 10 + static_cast<size_t>(next() - '0');
    }
    eat('_');
    if (failed_ || length > text_.size() - std::min(at_, text_.size())) {
      failed_ = true;
      return out;
    }
    out.text = text_.substr(at_, length);
    at_ += length;
    return out;
  }
  void print(const Identifier& name) {
    if (!name.is_punycode) return print(name.text);
    const auto decoded = decode_punycode(name.text);
    if (!decoded) failed_ = true;
    if (decoded) print(*decoded);
  }

  // Reads what lies at an earlier place, and comes back.
  template <class Do>
  void back_reference(Do what) {
    const size_t tag = at_ - 1;
    const uint64_t place = base62();
    if (failed_ || place >= tag) {
      failed_ = true;
      return;
    }
    if (silent_) return;  // what is not printed need not be read twice
    const size_t after = at_;
    at_ = static_cast<size_t>(place);
    what();
    at_ = after;
  }

  void path(bool in_value) {
    const Level level(*this);
    switch (next()) {
      case 'C':
        print(identifier(true));
        break;
      case 'N':
        nested(in_value);
        break;
      case 'M':
        impl_path();
        print("<");
        type();
        print(">");
        break;
      case 'X':
        impl_path();
        [[fallthrough]];
      case 'Y':
        print("<");
        type();
        print(" as ");
        path(false);
        print(">");
        break;
      case 'I':
        path(in_value);
        if (in_value) print("::");
        generic_args();
        print(">");
        break;
      case 'B':
        back_reference([&] { path(in_value); });
        break;
      default:
        failed_ = true;
    }
  }
  void impl_path() {
    silently([&] {
      optional_base62('s');
      path(false);
    });
  }
  void nested(bool in_value) {
    const char name_space = next();
    path(in_value);
    const Identifier name = identifier(true);
    if (is_upper(name_space)) {
      print("::{");
      if (name_space == 'C') {
        print("closure");
      } else if (name_space == 'S') {
        print("shim");
      } else {
        print(std::string_view(&name_space, 1));
      }
      if (!name.text.empty()) print(":");
      print(name);
      print("#" + std::to_string(name.disambiguator) + "}");
    } else if (!is_lower(name_space)) {
      failed_ = true;
    } else if (!name.text.empty()) {
      print("::");
      print(name);
    }
  }
  // Without the closing bracket.
  void generic_args() {
    print("<");
    for (bool first = true; more(); first = false) {
      if (!first) print(", ");
      if (eat('L')) {
        lifetime(base62());
      } else if (eat('K')) {
        constant();
      } else {
        type();
      }
    }
  }

  void lifetime(uint64_t index) {
    if (index > bound_lifetimes_) {
      failed_ = true;
      return;
    }
    if (index == 0) return print("'_");
    const uint64_t depth = bound_lifetimes_ - index;
    if (depth < 26) {
      const char name[2] = {'\'', static_cast<char>('a' + depth)};
      return print(std::string_view(name, 2));
    }
    print("'_" + std::to_string(depth));
  }
  // "for<'a, 'b> " of an optional binder; its lifetimes hold while `what` is read.
  template <class Do>
  void with_binder(Do what) {
    const uint64_t count = optional_base62('G');
    if (count > kMaxBoundLifetimes) failed_ = true;
    const uint64_t before = bound_lifetimes_;
    for (uint64_t i = 0; i < count && !failed_; ++i) {
      print(i == 0 ? "for<" : ", ");
      ++bound_lifetimes_;
      lifetime(1);
    }
    if (count > 0) print("> ");
    what();
    bound_lifetimes_ = before;
  }

  void reference(std::string_view before, std::string_view between) {
    print(before);
    if (eat('L')) {
      if (const uint64_t index = base62(); index != 0) {
        lifetime(index);
        print(" ");
      }
    }
    print(between);
    type();
  }
  void tuple() {
    print("(");
    int count = 0;
    for (; more(); ++count) {
      if (count > 0) print(", ");
      type();
    }
    print(count == 1 ? ",)" : ")");
  }
  void type() {
    const Level level(*this);
    const char tag = next();
    if (is_lower(tag)) {
      const std::string_view name = kBasicTypes[tag - 'a'];
      if (name.empty()) failed_ = true;
      return print(name);
    }
    switch (tag) {
      case 'A':
      case 'S':
        print("[");
        type();
        if (tag == 'A') {
          print("; ");
          constant();
        }
        return print("]");
      case 'T':
        return tuple();
      case 'R':
        return reference("&", "");
      case 'Q':
        return reference("&", "mut ");
      case 'P':
        print("*const ");
        return type();
      case 'O':
        print("*mut ");
        return type();
      case 'F':
        return with_binder([&] { function(); });
      case 'D':
        return dynamic();
      case 'B':
        return back_reference([&] { type(); });
      default:
        --at_;
        path(false);
    }
  }
  void function() {
    if (eat('U')) print("unsafe ");
    if (eat('K')) {
      print("extern \"");
      if (eat('C')) {
        print("C");
      } else {
        std::string abi(identifier(false).text);
        std::replace(abi.begin(), abi.end(), '_', '-');
        print(abi);
      }
      print("\" ");
    }
    print("fn(");
    for (bool first = true; more(); first = false) {
      if (!first) print(", ");
      type();
    }
    print(")");
    if (eat('u')) return;
    print(" -> ");
    type();
  }
  void dynamic() {
    print("dyn ");
    with_binder([&] {
      for (bool first = true; more(); first = false) {
        if (!first) print(" + ");
        dynamic_trait();
      }
    });
    if (!eat('L')) failed_ = true;
    if (const uint64_t index = base62(); index != 0) {
      print(" + ");
      lifetime(index);
    }
  }
  void dynamic_trait() {
    bool is_open = path_left_open();
    while (eat('p')) {
      print(is_open ? ", " : "<");
      is_open = true;
      print(identifier(false));
      print(" = ");
      type();
    }
    if (is_open) print(">");
  }
  // Whether generic arguments were printed, whose bracket is to be closed.
  bool path_left_open() {
    const Level level(*this);
    bool is_open = false;
    if (eat('B')) {
      back_reference([&] { is_open = path_left_open(); });
    } else if (eat('I')) {
      path(false);
      generic_args();
      is_open = true;
    } else {
      path(false);
    }
    return is_open;
  }

  void constant() {
    const Level level(*this);
    const char tag = next();
    if (tag == 'B') return back_reference([&] { constant(); });
    if (tag == 'p') return print("_");
    constexpr std::string_view kNumbers = "ahijlmnostxy";
    const bool is_number = kNumbers.find(tag) != std::string_view::npos;
    if (!is_number && tag != 'b' && tag != 'c') failed_ = true;
    const bool is_negative = is_number && eat('n');
    const size_t from = at_;
    while (!failed_ && peek() != '_') {
      const char digit = next();
      if (!is_digit(digit) && (digit < 'a' || digit > 'f')) failed_ = true;
    }
    if (failed_) return;
    std::string_view digits = text_.substr(from, at_ - from);
    ++at_;
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    if (is_negative) print("-");
    if (digits.size() > 16) return print("0x" + std::string(digits));
    uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (is_number) return print(std::to_string(value));
    if (tag == 'b') return value > 1 ? fail() : print(value == 1 ? "true" : "false");
    character(value);
  }
  void character(uint64_t value) {
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return fail();
    std::string text;
    append_utf8(text, static_cast<uint32_t>(value));
    if (value == '\'' || value == '\\') text.insert(0, "\\");
    if (value < 0x20 || value == 0x7f) {
      constexpr std::string_view kNamed = "\t\n\r";
      constexpr std::string_view kLetters = "tnr";
      const size_t known = kNamed.find(static_cast<char>(value));
      constexpr char kDigits[] = "0123456789abcdef";
      text = known != std::string_view::npos
                 ? std::string("\\") + kLetters[known]
                 : std::string("\\u{") + (value > 15 ? std::string(1, kDigits[value >> 4]) : "") +
                       kDigits[value & 15] + "}";
    }
    print("'" + text + "'");
  }
  void fail() { failed_ = true; }

  std::string_view text_;
  size_t max_bytes_;
  size_t at_ = 0;
  std::string out_;
  uint64_t bound_lifetimes_ = 0;
  int depth_ = 0;
  int steps_ = 0;
  bool silent_ = false;
  bool failed_ = false;
};

}  // namespace

std::optional<std::string> demangle_rust_v0(std::string_view name, size_t max_bytes) {
  if (!name.starts_with("_R") || name.size() < 4 || !is_upper(name[2])) return std::nullopt;
  return V0Printer(name.substr(2), max_bytes).run();
}

}  // namespace gpuprof::symbolize
