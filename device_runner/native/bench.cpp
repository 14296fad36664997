#include "bench.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "errors.h"
#include "events.h"
#include "lines.h"

namespace hyco {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// Plays a file's events to drafters, and prints the rounds.
class Player {
 public:
  Player(LoadedBundles& bundles, const std::string& path)
      : bundles_(bundles), file_(path), json_(Json::parse(file_.metadata("recording"))) {
    require_schema(json_, path);
    settings_ = round_settings(json_.at("config"));
  }

  std::size_t rounds_played() const { return number_; }
  const std::string& path() const { return file_.path(); }

  // All events once, with a fresh drafter, or up to `last` rounds in all.
  void play(std::optional<std::size_t> last) {
    drafter_ = bundles_.drafter(settings_);
    text_ = 0;
    drafted_.reset();
    for (const Json& event : json_.at("events").items()) {
      if (last && number_ >= *last) {
        return;
      }
      play(event);
    }
  }

 private:
  struct Drafted {
    DraftTree tree;
    Clock::time_point start;
    Clock::duration took;
    Json matched;
  };

  void play(const Json& event) {
    const std::string& what = event.at("event").text();
    if (what == "begin") {
      begin(event);
    } else if (what == "draft") {
      draft(event);
    } else if (what == "commit") {
      commit(event);
    } else {
      throw RunnerError(path() + " has an event \"" + what + "\"; known are begin, draft and commit");
    }
  }

  HeadUpdate update(const Json& event) const {
    return update_of(file_, event.at("update").count(), bundles_.head());
  }

  void begin(const Json& event) {
    if (event.has("text")) {
      text_ = event.at("text").count();
    }
    if (event.has("fresh") && event.at("fresh").boolean()) {
      drafter_ = bundles_.drafter(settings_);
    }
    drafted_.reset();
    drafter_->begin(event.at("token_ids").integers(), {{}, event.at("emitted").integers(), update(event)});
    drafter_->take_timing();
  }

  void draft(const Json& event) {
    const std::size_t max_depth = event.at("max_depth").count();
    const Clock::time_point start = Clock::now();
    DraftTree tree = drafter_->draft(max_depth);
    const Clock::duration took = Clock::now() - start;
    Json matched;
    if (event.has("truth")) {
      matched = Json(walk(tree, event.at("truth").integers()).size());
    }
    drafted_ = Drafted{std::move(tree), start, took, std::move(matched)};
  }

  void commit(const Json& event) {
    if (!drafted_) {
      throw RunnerError(path() + " commits a reply to which nothing was drafted; record it again");
    }
    Reply reply{{}, event.at("emitted").integers(), update(event)};
    reply.accepted = walk(drafted_->tree, reply.emitted);
    const Clock::time_point start = Clock::now();
    drafter_->commit(std::move(reply));
    print(drafted_->took + (Clock::now() - start));
    drafted_.reset();
  }

  void print(Clock::duration total) {
    const auto start = std::chrono::duration_cast<std::chrono::nanoseconds>(drafted_->start.time_since_epoch());
    print_line(Json::Object{{"round", Json::Object{{"number", number_},
                                                   {"text", text_},
                                                   {"start_ns", static_cast<std::int64_t>(start.count())},
                                                   {"total_ms", milliseconds(total)},
                                                   {"parts", drafter_->take_timing().parts()},
                                                   {"matched", drafted_->matched},
                                                   {"tree", tree_json(drafted_->tree)}}}});
    ++number_;
  }

  LoadedBundles& bundles_;
  SafetensorsFile file_;
  Json json_;
  RoundSettings settings_;
  std::unique_ptr<HybridDrafter> drafter_;
  std::optional<Drafted> drafted_;
  std::size_t text_ = 0;
  std::size_t number_ = 0;
};

}  // namespace

void bench(LoadedBundles& bundles, const std::string& rounds, std::optional<std::size_t> count) {
  Player player(bundles, rounds);
  do {
    const std::size_t before = player.rounds_played();
    player.play(count);
    if (player.rounds_played() == before && count != std::size_t{0}) {
      throw RunnerError(rounds + " holds no round; record one");
    }
  } while (count && player.rounds_played() < *count);
}

}  // namespace hyco
