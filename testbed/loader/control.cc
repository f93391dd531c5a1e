// SPDX-License-Identifier: Apache-2.0
//
// Registers a congestion control of BPF for as long as it runs (struct_ops.h).
//
//   swiftqueue-control check|hold OBJECT NAME      # as: hold dctcp.bpf.o sq_dctcp
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "serving/agent/io/one_line.h"
#include "struct_ops.h"

int main(int argc, char** argv) {
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  return swiftqueue::one_line_errors([&] {
    const std::string what = argc == 4 ? argv[1] : "";
    if (what != "check" && what != "hold") {
      throw std::invalid_argument("say: check OBJECT NAME | hold OBJECT NAME");
    }
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGTERM);
    sigaddset(&told, SIGINT);
    sigprocmask(SIG_BLOCK, &told, nullptr);
    swiftqueue::testbed::end_with_parent();
    const swiftqueue::testbed::Object loaded(argv[2]);
    loaded.load(argv[3]);
    if (what == "check") return 0;
    const swiftqueue::testbed::Descriptor link{loaded.link(argv[3])};
    std::printf("{\"event\": \"ready\", \"control\": \"%s\"}\n", argv[3]);
    std::fflush(stdout);
    int came = 0;
    sigwait(&told, &came);
    return 0;
  });
}
