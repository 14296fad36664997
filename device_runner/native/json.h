// JSON values. nlohmann's header is included by json.cpp alone: it takes seconds to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hyco {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;

  // Out of line, all of them: inlined, they are most of the time that their users take to compile.
  Json();
  Json(bool value);
  Json(std::int64_t value);
  Json(std::size_t value);
  Json(int value);
  Json(double value);
  Json(const char* value);
  Json(std::string value);
  Json(Array value);
  Json(Object value);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  template <typename Element>
  static Json array(const std::vector<Element>& values) {
    return Array(values.begin(), values.end());
  }

  // Throws RunnerError for a text that is no JSON.
  static Json parse(const std::string& text);
  // One line; throws RunnerError for a number that JSON does not have.
  std::string dump() const;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool has(const std::string& name) const;
  // The accessors throw RunnerError where the value is of another type or the field is absent.
  const Json& at(const std::string& name) const;
  const Array& items() const;
  const Object& fields() const;
  const std::string& text() const;
  bool boolean() const;
  double number() const;
  std::int64_t integer() const;
  std::size_t count() const;
  std::vector<std::int64_t> integers() const;
  std::vector<std::size_t> counts() const;

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace hyco
