#include "serve.h"

#include <chrono>
#include <memory>
#include <utility>

#include "errors.h"
#include "events.h"
#include "frames.h"
#include "lines.h"

namespace hyco {

namespace {

using Clock = std::chrono::steady_clock;

class Service {
 public:
  explicit Service(LoadedBundles& bundles) : bundles_(bundles) {}

  std::string answer(std::vector<std::uint8_t> payload) {
    const SafetensorsFile request(std::move(payload), "the request");
    const Json event = Json::parse(request.metadata("event"));
    const std::string& what = event.at("event").text();
    if (what == "open") {
      require_schema(event, "the request");
      drafter_ = bundles_.drafter(round_settings(event.at("config")));
      return answered(Clock::duration::zero(), {{"ok", true}});
    }
    if (!drafter_) {
      throw RunnerError("the first request must be open, not " + what);
    }
    if (what == "draft") {
      return draft(event.at("max_depth").count());
    }
    if (what == "begin") {
      const std::vector<Token> tokens = event.at("token_ids").integers();
      Reply reply{{}, event.at("emitted").integers(), update_of(request, 0, bundles_.head())};
      const Clock::time_point start = Clock::now();
      drafter_->begin(tokens, std::move(reply));
      return answered(Clock::now() - start, {{"ok", true}});
    }
    if (what == "commit") {
      Reply reply{event.at("accepted").counts(), event.at("emitted").integers(),
                  update_of(request, 0, bundles_.head())};
      const Clock::time_point start = Clock::now();
      drafter_->commit(std::move(reply));
      return answered(Clock::now() - start, {{"ok", true}});
    }
    throw RunnerError("the event \"" + what + "\" is unknown; known are open, begin, draft and commit");
  }

 private:
  std::string draft(std::size_t max_depth) {
    const Clock::time_point start = Clock::now();
    const DraftTree tree = drafter_->draft(max_depth);
    const Clock::duration took = Clock::now() - start;
    return answered(took, {{"tree", tree_json(tree)}});
  }

  std::string answered(Clock::duration took, Json::Object fields) {
    fields["total_ms"] = std::chrono::duration<double, std::milli>(took).count();
    fields["parts"] = drafter_->take_timing().parts();
    return Json(std::move(fields)).dump();
  }

  LoadedBundles& bundles_;
  std::unique_ptr<HybridDrafter> drafter_;
};

void tell(const Socket& client, const std::string& problem) {
  try {
    write_frame(client, Json(Json::Object{{"error", problem}}).dump());
  } catch (const RunnerError&) {
    // the client has gone; the caller reports the problem itself
  }
}

}  // namespace

void serve(LoadedBundles& bundles, std::uint16_t port, std::chrono::seconds client_timeout) {
  const Listener listener(port);
  print_line(Json::Object{{"listening", Json::Object{{"port", static_cast<int>(listener.port())}}}});
  const Socket client = listener.accept(client_timeout);
  Service service(bundles);
  try {
    while (auto payload = read_frame(client)) {
      write_frame(client, service.answer(std::move(*payload)));
    }
  } catch (const std::exception& error) {
    tell(client, error.what());
    throw;
  }
}

}  // namespace hyco
