#include "json.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "errors.h"

namespace hyco {

namespace {

// Deeper than any file of ours, shallow enough for the stack.
constexpr std::size_t kDeepest = 64;

// Builds a value from the parser's events; an object's open field is the last of `names`.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(number_integer_t value) override { return put(Json(static_cast<std::int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return put(Json(static_cast<double>(value)));
    }
    return put(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(Json(value)); }
  bool string(string_t& value) override { return put(Json(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(false); }
  bool start_array(std::size_t /*size*/) override { return open(true); }
  bool key(string_t& value) override {
    open_.back().name = value;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/, const nlohmann::detail::exception& error) override {
    problem = error.what();
    return false;
  }

  std::optional<Json> result;
  std::string problem = "nested too deeply";

 private:
  struct Open {
    bool is_array = false;
    std::string name;
    Json::Array array;
    Json::Object object;
  };

  bool open(bool is_array) {
    open_.emplace_back();
    open_.back().is_array = is_array;
    return open_.size() <= kDeepest;
  }

  bool close() {
    Open last = std::move(open_.back());
    open_.pop_back();
    return put(last.is_array ? Json(std::move(last.array)) : Json(std::move(last.object)));
  }

  bool put(Json value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().is_array) {
      open_.back().array.push_back(std::move(value));
    } else {
      open_.back().object[open_.back().name] = std::move(value);
    }
    return true;
  }

  std::vector<Open> open_;
};

void write_text(const std::string& text, std::string& out) {
  out += '"';
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      out += escaped;
    } else {
      out += letter;
    }
  }
  out += '"';
}

struct Writer {
  std::string& out;

  void operator()(std::nullptr_t /*null*/) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(std::int64_t value) const { out += std::to_string(value); }
  void operator()(double value) const {
    if (!std::isfinite(value)) {
      throw RunnerError("a result is not a finite number; look upstream");
    }
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.17g", value);
    out += digits;
  }
  void operator()(const std::string& value) const { write_text(value, out); }
  void operator()(const Json::Array& values) const {
    out += '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      out += (i > 0 ? ", " : "") + values[i].dump();
    }
    out += ']';
  }
  void operator()(const Json::Object& values) const {
    out += '{';
    bool first = true;
    for (const auto& [name, value] : values) {
      out += first ? "" : ", ";
      first = false;
      write_text(name, out);
      out += ": " + value.dump();
    }
    out += '}';
  }
};

template <typename Kind, typename Value>
const Kind& as(const Value& value, const char* wanted) {
  if (const Kind* found = std::get_if<Kind>(&value)) {
    return *found;
  }
  throw RunnerError(std::string("JSON has something else where ") + wanted + " is needed");
}

}  // namespace

Json::Json() : value_(nullptr) {}
Json::Json(bool value) : value_(value) {}
Json::Json(std::int64_t value) : value_(value) {}
Json::Json(std::size_t value) : value_(static_cast<std::int64_t>(value)) {}
Json::Json(int value) : value_(static_cast<std::int64_t>(value)) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* value) : value_(std::string(value)) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(Array value) : value_(std::move(value)) {}
Json::Json(Object value) : value_(std::move(value)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::parse(const std::string& text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text, &builder) || !builder.result) {
    throw RunnerError("not JSON: " + builder.problem);
  }
  return std::move(*builder.result);
}

std::string Json::dump() const {
  std::string out;
  std::visit(Writer{out}, value_);
  return out;
}

bool Json::has(const std::string& name) const {
  const auto* object = std::get_if<Object>(&value_);
  const auto found = object == nullptr ? Object::const_iterator() : object->find(name);
  return object != nullptr && found != object->end() && !found->second.is_null();
}

const Json& Json::at(const std::string& name) const {
  const Object& object = fields();
  const auto found = object.find(name);
  if (found == object.end()) {
    throw RunnerError("JSON lacks the field " + name);
  }
  return found->second;
}

const Json::Array& Json::items() const { return as<Array>(value_, "an array"); }
const Json::Object& Json::fields() const { return as<Object>(value_, "an object"); }
const std::string& Json::text() const { return as<std::string>(value_, "a text"); }
bool Json::boolean() const { return as<bool>(value_, "true or false"); }
std::int64_t Json::integer() const { return as<std::int64_t>(value_, "a whole number"); }

double Json::number() const {
  if (const auto* whole = std::get_if<std::int64_t>(&value_)) {
    return static_cast<double>(*whole);
  }
  return as<double>(value_, "a number");
}

std::size_t Json::count() const {
  const std::int64_t value = integer();
  if (value < 0) {
    throw RunnerError("JSON has " + std::to_string(value) + " where a count is needed");
  }
  return static_cast<std::size_t>(value);
}

std::vector<std::int64_t> Json::integers() const {
  std::vector<std::int64_t> values;
  for (const Json& item : items()) {
    values.push_back(item.integer());
  }
  return values;
}

std::vector<std::size_t> Json::counts() const {
  std::vector<std::size_t> values;
  for (const Json& item : items()) {
    values.push_back(item.count());
  }
  return values;
}

}  // namespace hyco
