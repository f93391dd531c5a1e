// SPDX-License-Identifier: Apache-2.0
//
// Puts mark.bpf.c on a device, takes it off, says what it did, and writes decisions. Whoever wants
// to mark attaches once; the filter and its maps live until they are detached, and are found
// through the device: there is no file to keep.
//
//   swiftqueue-mark attach DEV OBJECT [--dscp=A,B] | detach DEV | status DEV
//   swiftqueue-mark set DEV COOKIE CODEPOINTS FOR_MS          as: set lo 17 12121212 50
//   swiftqueue-mark forget DEV COOKIE
//   swiftqueue-mark follow DEV AGENT [--port=P ...] [--plain-port=P ...] [--cookie=C ...]
//       [--name=N] [--ahead=PACKETS] [--for-ms=MS] [--seconds=S] [--log=FILE]
//   swiftqueue-mark follow DEV "" --last-latency-ms=MS [--stale-ms=MS] --port=P ...
//   swiftqueue-mark bench OBJECT RUNS
//
// Prints a JSON object; a failure is one line and exit code 1 or 2.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "follow.h"
#include "serving/agent/io/one_line.h"
#include "serving/agent/marking/dscp.h"

namespace {

using namespace swiftqueue::testbed;  // NOLINT(build/namespaces): its own program
namespace agent = swiftqueue::agent;

constexpr const char* kConstants = "mark.rodata";  // libbpf's name of the map of sq_constants

struct Loaded {
  bpf_object* object = nullptr;
  Loaded(const std::string& path, std::uint32_t header_bytes, const agent::DscpPair& dscp,
         std::uint64_t cookie) {
    object = bpf_object__open_file(path.c_str(), nullptr);
    if (object == nullptr) fail(path);
    bpf_map* constants = nullptr;
    bpf_map* map;
    bpf_object__for_each_map(map, object) {
      if (std::strstr(bpf_map__name(map), ".rodata") != nullptr) constants = map;
    }
    const sq_constants values{header_bytes, dscp.set, {dscp.of[0], dscp.of[1]}, 0, cookie};
    if (constants == nullptr ||
        bpf_map__set_initial_value(constants, &values, sizeof values) != 0) {
      throw std::runtime_error(path + ": not our program");
    }
    if (const int error = bpf_object__load(object)) {
      fail("the kernel does not take " + path +
               " (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN, are needed)",
           error);
    }
  }
  ~Loaded() { bpf_object__close(object); }
  int program(const char* name) const {
    return bpf_program__fd(bpf_object__find_program_by_name(object, name));
  }
  int map(const char* name) const { return bpf_object__find_map_fd_by_name(object, name); }
};

// Also true where that cannot be said, as without `tc`.
bool has_filters(const std::string& device) {
  for (const char* where : {"ingress", "egress"}) {
    const std::string command = "tc filter show dev '" + device + "' " + where + " 2>/dev/null";
    FILE* const out = ::popen(command.c_str(), "r");
    if (out == nullptr) return true;
    const bool said = std::fgetc(out) != EOF;
    if (::pclose(out) != 0 || said) return true;
  }
  return false;
}

// Takes our filters off, and clsact if we made it and nobody else uses it. Without our marker
// nobody knows who made it: what an attachment leaves that is killed before that, stays; it does
// nothing by itself, and the next one takes it.
void take_off(const std::string& device, unsigned index, const sq_settings& settings,
              const std::vector<bpf_tc_attach_point>& from) {
  for (const bpf_tc_attach_point where : from) {
    bpf_tc_hook hook = hook_of(index, where);
    bpf_tc_opts options = ours();
    const int error = bpf_tc_detach(&hook, &options);
    if (error != 0 && error != -ENOENT && error != -EINVAL) {
      fail("device " + device + ": tc", error);
    }
  }
  if (settings.made_clsact == 0 || has_filters(device)) return;
  bpf_tc_hook hook =
      hook_of(index, static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS));
  bpf_tc_hook_destroy(&hook);
}

int attach(const std::string& device, const std::string& object, const agent::DscpPair& dscp) {
  const unsigned index = index_of(device);
  if (attached(index) != 0)
    throw std::runtime_error("device " + device + ": a marker is attached already");
  const std::uint32_t former = gso_max_segs(index);
  Loaded loaded(object, link_header_bytes(device), dscp, 0);
  // The program does not use this map, so it is told to keep it.
  if (const int error =
          bpf_prog_bind_map(loaded.program("sq_mark"), loaded.map("sq_attachment"), nullptr)) {
    fail("map", error);
  }
  bpf_tc_hook hook = hook_of(index);
  const int made = bpf_tc_hook_create(&hook);
  if (made == -EEXIST && qdisc_of_filters(index) != "clsact") {
    throw std::runtime_error("device " + device +
                             ": its qdisc `ingress` takes no filters at egress, where packets are "
                             "marked; `tc qdisc del dev " +
                             device + " ingress` removes it with its filters, and clsact has both");
  }
  if (made != 0 && made != -EEXIST) fail("device " + device + ": clsact", made);
  const sq_settings settings{former, made == 0};
  std::vector<bpf_tc_attach_point> done;
  try {
    const std::uint32_t zero = 0;
    if (bpf_map_update_elem(loaded.map("sq_attachment"), &zero, &settings, BPF_ANY) != 0)
      fail("map");
    // The marker first: it knows what to put back, whenever this program ends.
    for (const auto& [where, name] :
         {std::pair{BPF_TC_EGRESS, "sq_mark"}, std::pair{BPF_TC_INGRESS, "sq_acknowledged"}}) {
      bpf_tc_opts options = ours();
      options.prog_fd = loaded.program(name);
      bpf_tc_hook at = hook_of(index, where);
      if (const int error = bpf_tc_attach(&at, &options)) {
        fail("device " + device + ": tc", error);
      }
      done.push_back(where);
    }
    set_gso_max_segs(index, 1);
  } catch (...) {
    take_off(device, index, settings, done);
    throw;
  }
  std::printf("{\"device\": \"%s\", \"attached\": true}\n", device.c_str());
  return 0;
}

int detach(const std::string& device) {
  const unsigned index = index_of(device);
  const std::uint32_t program = required(device, index);
  const int map = map_of(program, "sq_attachment", sizeof(sq_settings));
  sq_settings settings{};
  const std::uint32_t zero = 0;
  if (bpf_map_lookup_elem(map, &zero, &settings) != 0) fail("map");
  ::close(map);
  if (gso_max_segs(index) == 1) set_gso_max_segs(index, settings.former_gso_max_segs);
  take_off(device, index, settings, {BPF_TC_INGRESS, BPF_TC_EGRESS});
  std::printf("{\"device\": \"%s\", \"attached\": false}\n", device.c_str());
  return 0;
}

int status(const std::string& device) {
  const unsigned index = index_of(device);
  const std::uint32_t program = attached(index);
  if (program == 0) {
    std::printf("{\"device\": \"%s\", \"attached\": false}\n", device.c_str());
    return 0;
  }
  const int counted = map_of(program, "sq_flow_counts", sizeof(sq_counts));
  sq_constants constants{};
  const std::uint32_t at = 0;
  const int of_program = map_of(program, kConstants, sizeof constants);
  if (bpf_map_lookup_elem(of_program, &at, &constants) != 0) fail("map");
  ::close(of_program);
  std::string dscp = "null";
  if (constants.sets_dscp != 0)
    dscp = "[" + std::to_string(constants.dscp[0]) + ", " + std::to_string(constants.dscp[1]) + "]";
  std::printf(
      "{\"device\": \"%s\", \"attached\": true, \"gso_max_segs\": %u, \"dscp\": %s, \"flows\": [",
      device.c_str(), gso_max_segs(index), dscp.c_str());
  const char* comma = "";
  const FollowedFlows maps(program);
  const auto print = [](__u64 value) { return static_cast<unsigned long long>(value); };
  for (const bool followed : {false, true}) {
    const int flows = followed ? maps.followed : maps.decisions;
    std::uint64_t cookie = 0, next = 0;
    for (bool first = true; bpf_map_get_next_key(flows, first ? nullptr : &cookie, &next) == 0;
         first = false) {
      cookie = next;
      sq_decision decision{};
      sq_counts counts{};
      sq_followed other{};
      if (!followed && bpf_map_lookup_elem(maps.followed, &cookie, &other) == 0) continue;
      if (!followed && bpf_map_lookup_elem(flows, &cookie, &decision) != 0) continue;
      bpf_map_lookup_elem(counted, &cookie, &counts);
      const char* valid = decision.valid_until_ns > now_ns() ? "true" : "false";
      std::printf(
          "%s{\"cookie\": %llu, \"followed\": %s, \"valid\": %s, \"packets\": %llu, \"not_ect\": "
          "%llu, \"ect1\": %llu, \"ect0\": %llu, \"alternative_0\": %llu, "
          "\"alternative_1\": %llu, \"decided\": %llu, \"stale\": %llu, \"left_alone\": %llu, "
          "\"gso\": %llu, \"unsaid\": %llu}",
          comma, print(cookie), followed ? "true" : "false", followed ? "null" : valid,
          print(counts.packets), print(counts.by_codepoint[0]), print(counts.by_codepoint[1]),
          print(counts.by_codepoint[2]), print(counts.by_alternative[0]),
          print(counts.by_alternative[1]), print(counts.decided), print(counts.stale),
          print(counts.left_alone), print(counts.gso), print(counts.unsaid));
      comma = ", ";
    }
  }
  sq_follower said{};
  const std::uint32_t zero = 0;
  bpf_map_lookup_elem(map_of(program, "sq_follower", sizeof said), &zero, &said);
  std::printf("], \"plain_ports\": [");
  for (std::uint32_t i = 0; i < said.plain_ports; ++i)
    std::printf("%s%u", i == 0 ? "" : ", ", said.plain_port[i]);
  std::printf("]}\n");
  return 0;
}

sq_decision decision_of(const std::string& codepoints, std::uint64_t for_ms) {
  sq_decision decision{now_ns() + for_ms * 1'000'000, {}};
  const bool well = std::all_of(codepoints.begin(), codepoints.end(),
                                [](char c) { return c >= '0' && c <= '2'; });
  if (codepoints.size() != SWIFTQUEUE_HORIZON || !well) {
    throw std::invalid_argument("codepoints " + codepoints +
                                ": must be 8 digits, each 0 (Not-ECT), 1 (ECT(1)) or 2 (ECT(0))");
  }
  for (std::size_t i = 0; i < SWIFTQUEUE_HORIZON; ++i) {
    decision.codepoints[i] = static_cast<__u8>(codepoints[i] - '0');
  }
  return decision;
}

// Takes the flow over from a follower that was killed; refused while one is at work, who would not
// know of it.
void take_over(std::uint32_t program, std::uint64_t cookie) {
  const FollowedFlows maps(program);
  sq_followed flow{};
  if (bpf_map_lookup_elem(maps.followed, &cookie, &flow) != 0) return;
  sq_follower said{};
  const std::uint32_t zero = 0;
  const int follower = map_of(program, "sq_follower", sizeof said);
  if (bpf_map_lookup_elem(follower, &zero, &said) != 0) fail("map");
  ::close(follower);
  if (said.listens_until_ns > now_ns()) {
    throw std::runtime_error("cookie " + std::to_string(cookie) +
                             ": `mark follow` follows it, or did a second ago");
  }
  maps.release(cookie);
}

int set(const std::string& device, std::uint64_t cookie, const sq_decision& decision) {
  if (cookie == 0)
    throw std::invalid_argument("cookie 0 is no socket's; ask getsockopt(SO_COOKIE)");
  const std::uint32_t program = required(device, index_of(device));
  take_over(program, cookie);
  const int map = map_of(program, "sq_decisions", sizeof(sq_decision));
  if (bpf_map_update_elem(map, &cookie, &decision, BPF_ANY) != 0) fail("map");
  std::printf("{\"cookie\": %llu}\n", static_cast<unsigned long long>(cookie));
  return 0;
}

int forget(const std::string& device, std::uint64_t cookie) {
  const std::uint32_t program = required(device, index_of(device));
  take_over(program, cookie);
  for (const int map : {map_of(program, "sq_decisions", sizeof(sq_decision)),
                        map_of(program, "sq_flow_counts", sizeof(sq_counts))}) {
    if (bpf_map_delete_elem(map, &cookie) != 0 && errno != ENOENT) fail("map");
  }
  std::printf("{\"cookie\": %llu}\n", static_cast<unsigned long long>(cookie));
  return 0;
}

// --- the program by itself, on packets of our own making ---

std::uint16_t checksum(const unsigned char* bytes, std::size_t count) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < count; i += 2)
    sum += static_cast<std::uint32_t>(bytes[i] << 8 | bytes[i + 1]);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

constexpr unsigned kKernelsDscp = 0x28;

std::vector<unsigned char> packet_of(bool v4, unsigned ecn, bool data,
                                     unsigned dscp = kKernelsDscp) {
  const std::size_t ip = v4 ? 20 : 40, payload = data ? 1400 : 0;
  std::vector<unsigned char> out(14 + ip + 20 + payload, 0x51);
  std::fill_n(out.begin(), 14 + ip + 20, 0);
  out[12] = v4 ? 0x08 : 0x86;
  out[13] = v4 ? 0x00 : 0xdd;
  unsigned char* h = &out[14];
  const std::size_t total = ip + 20 + payload;
  if (v4) {
    h[0] = 0x45;
    h[1] = static_cast<unsigned char>(dscp << 2 | ecn);
    h[2] = static_cast<unsigned char>(total >> 8);
    h[3] = static_cast<unsigned char>(total);
    h[8] = 64;
    h[9] = 6;
    h[12] = h[16] = 127;
    h[15] = h[19] = 1;
    const std::uint16_t sum = checksum(h, 20);
    h[10] = static_cast<unsigned char>(sum >> 8);
    h[11] = static_cast<unsigned char>(sum);
  } else {
    h[0] = static_cast<unsigned char>(0x60 | dscp >> 2);
    h[1] = static_cast<unsigned char>(dscp << 6 | ecn << 4 | 0x7);
    h[4] = static_cast<unsigned char>((20 + payload) >> 8);
    h[5] = static_cast<unsigned char>(20 + payload);
    h[6] = 6;
    h[7] = 64;
    h[23] = h[39] = 1;
  }
  h[ip + 12] = 0x50;
  return out;
}

// Runs the program on packets of our own, for one flow.
class Bench {
 public:
  Bench(const std::string& object, const agent::DscpPair& dscp)
      : loaded_(object, 14, dscp, kCookie), dscp_(dscp) {}

  void decide(const std::string& codepoints, std::uint64_t for_ms) const {
    const sq_decision decision = decision_of(codepoints, for_ms);
    if (bpf_map_update_elem(loaded_.map("sq_decisions"), &kCookie, &decision, BPF_ANY) != 0)
      fail("map");
  }
  void forget() const {
    bpf_map_delete_elem(loaded_.map("sq_decisions"), &kCookie);
    bpf_map_delete_elem(loaded_.map("sq_flow_counts"), &kCookie);
  }

  // Returns the packet as it left, and the time that each of so many runs took.
  std::vector<unsigned char> run(const std::vector<unsigned char>& packet, std::uint64_t repeat,
                                 std::uint32_t& ns) const {
    std::vector<unsigned char> out(packet.size() + 64);
    LIBBPF_OPTS(bpf_test_run_opts, options);
    options.data_in = packet.data();
    options.data_size_in = static_cast<std::uint32_t>(packet.size());
    options.data_out = out.data();
    options.data_size_out = static_cast<std::uint32_t>(out.size());
    options.repeat = static_cast<int>(repeat);
    if (const int error = bpf_prog_test_run_opts(loaded_.program("sq_mark"), &options))
      fail("test run", error);
    ns = options.duration;
    out.resize(options.data_size_out);
    return out;
  }

  // Tries every codepoint as sent by every codepoint wanted, both families, valid and stale, with
  // and without data; counts the packets that left as they must.
  void try_all(std::uint64_t& tried, std::uint64_t& right) const {
    std::uint32_t ns = 0;
    for (const bool v4 : {true, false}) {
      for (unsigned sent = 0; sent < 4; ++sent) {
        for (unsigned wanted = 0; wanted < 3; ++wanted) {
          for (const bool valid : {true, false}) {
            for (const bool data : {true, false}) {
              decide(std::string(8, static_cast<char>('0' + wanted)), valid ? 60'000 : 0);
              const std::vector<unsigned char> out = run(packet_of(v4, sent, data), 1, ns);
              const unsigned touched = valid ? wanted : 1;
              const unsigned ecn = sent == 0 || sent == 3 || !data ? sent : touched;
              const unsigned dscp = dscp_.set && data ? dscp_.of[touched & 1] : kKernelsDscp;
              ++tried;
              right +=
                  out == packet_of(v4, ecn, data, dscp) && (!v4 || checksum(&out[14], 20) == 0);
            }
          }
        }
      }
    }
  }

  // Returns the median time of five rounds.
  std::uint32_t measure(std::uint64_t runs) const {
    std::array<std::uint32_t, 5> each{};
    for (std::uint32_t& ns : each) run(packet_of(true, 2, true), runs, ns);
    std::sort(each.begin(), each.end());
    return each[2];
  }

 private:
  static constexpr std::uint64_t kCookie = 0x5157;
  const Loaded loaded_;
  const agent::DscpPair dscp_;
};

int bench(const std::string& object, std::uint64_t runs) {
  const Bench plain(object, {}), both(object, agent::dscp_pair("dscp", 0, 46)),
      other(object, agent::dscp_pair("dscp", 63, 1));
  std::uint64_t tried = 0, right = 0;
  for (const Bench* each : {&plain, &both, &other}) each->try_all(tried, right);
  const auto measure = [&](const Bench& bench, const char* codepoints, std::uint64_t for_ms) {
    bench.decide(codepoints, for_ms);
    return bench.measure(runs);
  };
  const std::uint32_t rewritten = measure(plain, "12121212", 600'000),
                      kept = measure(plain, "22222222", 600'000),
                      stale = measure(plain, "12121212", 0),
                      with_dscp = measure(both, "12121212", 600'000);
  plain.forget();
  const std::uint32_t unregistered = plain.measure(runs);
  std::printf(
      "{\"tried\": %llu, \"right\": %llu, \"rewritten_ns\": %u, \"kept_ns\": %u, \"stale_ns\": %u, "
      "\"with_dscp_ns\": %u, \"unregistered_ns\": %u, \"runs\": %llu}\n",
      static_cast<unsigned long long>(tried), static_cast<unsigned long long>(right), rewritten,
      kept, stale, with_dscp, unregistered, static_cast<unsigned long long>(runs));
  return tried == right ? 0 : 1;
}

FollowOptions follow_options(const std::vector<std::string>& a) {
  FollowOptions options;
  options.device = a[1];
  options.agent = a[2];
  for (std::size_t i = 3; i < a.size(); ++i) {
    const std::size_t at = a[i].find('=');
    const std::string name = a[i].substr(0, at);
    const std::string given = at == std::string::npos ? "" : a[i].substr(at + 1);
    if (name == "--port" || name == "--plain-port") {
      auto& ports = name == "--port" ? options.ports : options.plain_ports;
      if (ports.size() == SWIFTQUEUE_PORTS)
        throw std::invalid_argument(name + ": at most " + std::to_string(SWIFTQUEUE_PORTS));
      ports.push_back(static_cast<std::uint16_t>(swiftqueue::number(name, given, 1, 65535)));
    } else if (name == "--cookie") {
      options.cookies.push_back(number(name, given, UINT64_MAX));
    } else if (name == "--name") {
      options.name = given;
    } else if (name == "--log") {
      options.log = given;
    } else if (name == "--ahead") {
      options.ahead = static_cast<int>(
          swiftqueue::number(name, given, 1, SWIFTQUEUE_HORIZON * (SWIFTQUEUE_BATCHES - 1)));
    } else if (name == "--for-ms") {
      options.for_ms = swiftqueue::number(name, given, 1, 60'000);
    } else if (name == "--last-latency-ms") {
      options.threshold_ms = swiftqueue::number(name, given, 0.001, 60'000);
    } else if (name == "--stale-ms") {
      options.stale_ms = swiftqueue::number(name, given, 1, 60'000);
    } else if (name == "--seconds") {
      options.seconds = swiftqueue::number(name, given, 0, 1e6);
    } else {
      throw std::invalid_argument(a[i] + ": not an option of follow");
    }
  }
  const bool followed = !options.ports.empty() || !options.cookies.empty();
  if (!followed && options.plain_ports.empty()) {
    throw std::invalid_argument(
        "follow: say --port, --plain-port or --cookie, or nothing is followed");
  }
  for (const std::uint16_t port : options.plain_ports) {
    if (std::find(options.ports.begin(), options.ports.end(), port) != options.ports.end())
      throw std::invalid_argument("port " + std::to_string(port) +
                                  " is a --port and a --plain-port");
  }
  if (followed && options.agent.empty() == (options.threshold_ms == 0))
    throw std::invalid_argument("follow: an agent decides, or --last-latency-ms; say one of them");
  return options;
}

int run(const std::vector<std::string>& a) {
  const std::string what = a.empty() ? "" : a[0];
  if (what == "attach" && a.size() == 3) return attach(a[1], a[2], {});
  if (what == "attach" && a.size() == 4 && a[3].rfind("--dscp=", 0) == 0)
    return attach(a[1], a[2], agent::dscp_pair("--dscp", a[3].substr(7)));
  if (what == "detach" && a.size() == 2) return detach(a[1]);
  if (what == "status" && a.size() == 2) return status(a[1]);
  if (what == "forget" && a.size() == 3) return forget(a[1], number("cookie", a[2], UINT64_MAX));
  if (what == "follow" && a.size() >= 3) return follow(follow_options(a));
  if (what == "bench" && a.size() == 3) return bench(a[1], number("runs", a[2], 100'000'000));
  if (what == "set" && a.size() == 5) {
    const std::uint64_t for_ms = number("milliseconds", a[4], 3'600'000);
    return set(a[1], number("cookie", a[2], UINT64_MAX), decision_of(a[3], for_ms));
  }
  throw std::invalid_argument(
      "say: attach DEV OBJECT [--dscp=A,B] | detach DEV | status DEV | set DEV COOKIE CODEPOINTS "
      "FOR_MS | "
      "forget DEV COOKIE | follow DEV AGENT --port=P... | bench OBJECT RUNS");
}

}  // namespace

int main(int argc, char** argv) {
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  return swiftqueue::one_line_errors([&] { return run({argv + 1, argv + argc}); });
}
