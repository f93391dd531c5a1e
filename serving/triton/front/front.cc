// SPDX-License-Identifier: Apache-2.0
//
// A library that runs before the main function of `tritonserver` (LD_PRELOAD; docs/SERVING.md, "Who
// may do what").
//
// - A secret stays out of sight. Triton takes one only as an argument, and every user may read the
//   arguments of a process. An argument that ends in `=@FILE` reaches Triton with the file's first
//   line instead, in a copy: the kernel still shows the file's name (/proc/PID/cmdline).
// - `--grpc-max-message-bytes=N` bounds the messages that gRPC keeps in memory. Triton's bound
//   is 2 GiB, and
//   it has no option for it. gRPC has a place for it: a plugin of the server's builder, which is
//   asked for the server's settings. Triton's program is linked with gRPC and exports none of it,
//   so two functions are looked up in its symbol table. The same plugin refuses compressed
//   messages: gRPC compares a message with the bound after it has inflated it, and 1 MB may become
//   1 GB.
// - `--max-waiting-bytes=N` bounds the inputs of requests that wait or are computed; requests
//   beyond it are refused at once. Triton has a bound for it only together with a batcher's thread.
// - `--open-ports=PORTS` keeps the door of its ports (common/door/door.cc).
//
// Where one of them fails the server ends, with one line: half a guard would look like a whole one.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/door/door.h"
#include "serving/triton/front/waiting.h"

// As declared in gRPC 1.54 (grpcpp/impl/server_builder_plugin.h): the functions' order matters.
namespace grpc {

class ChannelArguments;
class ServerBuilder;
class ServerInitializer;

class ServerBuilderPlugin {
 public:
  virtual ~ServerBuilderPlugin() = default;
  virtual std::string name() = 0;
  virtual void UpdateServerBuilder(ServerBuilder*) {}
  virtual void InitServer(ServerInitializer*) = 0;
  virtual void Finish(ServerInitializer*) = 0;
  virtual void ChangeArguments(const std::string&, void*) = 0;
  virtual void UpdateChannelArguments(ChannelArguments*) {}
  virtual bool has_sync_methods() const { return false; }
  virtual bool has_async_methods() const { return false; }
};

}  // namespace grpc

namespace {

// gRPC's C structures grpc_arg and grpc_channel_args (grpc/impl/grpc_types.h).
struct Argument {
  enum class Type { kString, kInteger, kPointer } type;
  const char* key;
  union {
    int integer;
    struct {
      void* address;
      const void* functions;
    } pointer;
  };
};
struct Arguments {
  std::size_t count;
  Argument* first;
};

using Main = int (*)(int, char**, char**);
using GetArguments = void (*)(const grpc::ChannelArguments*, struct Arguments*);
using SetInteger = void (*)(grpc::ChannelArguments*, const std::string&, int);
using AddPlugin = void (*)(std::unique_ptr<grpc::ServerBuilderPlugin> (*)());

constexpr std::string_view kMaxMessage = "--grpc-max-message-bytes=";
constexpr std::string_view kMaxWaiting = "--max-waiting-bytes=";
constexpr std::string_view kOpenPorts = "--open-ports=";
constexpr std::string_view kSize = "grpc.max_receive_message_length";
constexpr std::string_view kCompressions = "grpc.compression_enabled_algorithms_bitset";
constexpr int kNoCompression =
    1;  // a bit for each of grpc_compression_algorithm: none, deflate, gzip
// The window of a connection grows with its bandwidth, here to megabytes that wait in memory.
constexpr const char* kBandwidthProbe = "grpc.http2.bdp_probe";
constexpr const char* kGetArguments =
    "_ZNK4grpc16ChannelArguments14SetChannelArgsEP17grpc_channel_args";
constexpr const char* kSetInteger =
    "_ZN4grpc16ChannelArguments6SetIntERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEi";
constexpr const char* kAddPlugin =
    "_ZN4grpc13ServerBuilder24InternalAddPluginFactoryEPFSt10unique_ptrINS_"
    "19ServerBuilderPluginESt14"
    "default_deleteIS2_EEvE";

Main triton_main = nullptr;
GetArguments get_arguments = nullptr;
SetInteger set_new_integer = nullptr;
int max_message_bytes = 0;

[[noreturn]] void refuse(const std::string& line) {
  std::fprintf(stderr, "error: %s\n", line.c_str());
  std::_Exit(1);
}

class MessageBound final : public grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return "swiftqueue_bound"; }
  void InitServer(grpc::ServerInitializer*) override {}
  void Finish(grpc::ServerInitializer*) override {}
  void ChangeArguments(const std::string&, void*) override {}
  void UpdateChannelArguments(grpc::ChannelArguments* arguments) override {
    Arguments set{};
    get_arguments(arguments, &set);  // Triton's arguments, which have the size by now
    set_integer(set, kSize, max_message_bytes);
    set_integer(set, kCompressions, kNoCompression);
    set_new_integer(arguments, kBandwidthProbe, 0);
  }

 private:
  static void set_integer(const Arguments& among, std::string_view key, int value) {
    for (Argument& one : std::span(among.first, among.count)) {
      if (one.type == Argument::Type::kInteger && key == one.key) {
        one.integer = value;
        return;
      }
    }
    refuse("gRPC's server has no setting " + std::string(key) + " to be lowered");
  }
};

std::unique_ptr<grpc::ServerBuilderPlugin> make_bound() { return std::make_unique<MessageBound>(); }

// The program's own file, mapped into memory.
class Program {
 public:
  Program() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat found{};
    if (file < 0 || fstat(file, &found) != 0) refuse("the program's own file cannot be read");
    size_ = static_cast<std::size_t>(found.st_size);
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED) refuse("the program's own file cannot be mapped");
    bytes_ = static_cast<const char*>(mapped);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { munmap(const_cast<char*>(bytes_), size_); }

  // Returns the offset of a function from the program's base; 0 if the file does not name it.
  ElfW(Addr) function(std::string_view name) const {
    const auto header = at<ElfW(Ehdr)>(0, 1);
    for (const auto& table : at<ElfW(Shdr)>(header[0].e_shoff, header[0].e_shnum)) {
      if (table.sh_type != SHT_SYMTAB) continue;
      const auto& names = at<ElfW(Shdr)>(header[0].e_shoff, header[0].e_shnum)[table.sh_link];
      for (const auto& symbol : at<ElfW(Sym)>(table.sh_offset, table.sh_size / sizeof(ElfW(Sym)))) {
        const char* found = bytes_ + names.sh_offset + symbol.st_name;
        if (symbol.st_shndx != SHN_UNDEF && name == found) return symbol.st_value;
      }
    }
    return 0;
  }

 private:
  template <typename Part>
  std::span<const Part> at(std::size_t offset, std::size_t count) const {
    if (offset + count * sizeof(Part) > size_) refuse("the program's own file ends too early");
    return {reinterpret_cast<const Part*>(bytes_ + offset), count};
  }

  const char* bytes_ = nullptr;
  std::size_t size_ = 0;
};

// Returns the program's base: the first object of the list is the program itself.
ElfW(Addr) base() {
  ElfW(Addr) address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* found) {
        *static_cast<ElfW(Addr)*>(found) = object->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

int bytes_of(std::string_view argument, std::string_view option) {
  const std::string_view text = argument.substr(option.size());
  int bytes = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), bytes);
  if (error != std::errc() || end != text.end() || bytes < 1)
    refuse(std::string(argument) + ": not a number of bytes");
  return bytes;
}

void bound_messages(std::string_view text) {
  max_message_bytes = bytes_of(text, kMaxMessage);
  const Program program;
  const ElfW(Addr) add = program.function(kAddPlugin), get = program.function(kGetArguments),
                   set = program.function(kSetInteger);
  if (add == 0 || get == 0 || set == 0)
    refuse(std::string(text) +
           ": this tritonserver does not name gRPC's functions; requests cannot be bounded");
  get_arguments = reinterpret_cast<GetArguments>(base() + get);
  set_new_integer = reinterpret_cast<SetInteger>(base() + set);
  reinterpret_cast<AddPlugin>(base() + add)(make_bound);
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line.empty()) refuse(path + ": no secret can be read from it");
  return line;
}

// The server's children (the stubs of its Python backend) do not need us: our name is the first in
// the list, and is removed.
void leave_environment() {
  const char* listed = std::getenv("LD_PRELOAD");
  if (listed == nullptr) return;
  const char* rest = std::strchr(listed, ':');
  if (rest != nullptr) {
    setenv("LD_PRELOAD", std::string(rest + 1).c_str(), 1);
  } else {
    unsetenv("LD_PRELOAD");
  }
}

int guarded_main(int count, char** arguments, char**) {
  leave_environment();
  // Both live as long as the process.
  auto& texts = *new std::vector<std::string>;
  for (const char* argument : std::span(arguments, static_cast<std::size_t>(count))) {
    const std::string_view text = argument;
    const std::size_t place = text.rfind("=@");
    if (text.starts_with(kMaxMessage)) {
      bound_messages(text);
    } else if (text.starts_with(kMaxWaiting)) {
      if (!swiftqueue::front::bound_waiting(static_cast<std::size_t>(bytes_of(text, kMaxWaiting))))
        refuse(std::string(text) + ": this tritonserver does not call libtritonserver's functions");
    } else if (text.starts_with(kOpenPorts)) {
      swiftqueue::door::keep(text.substr(kOpenPorts.size()));
    } else if (place != std::string_view::npos) {
      texts.push_back(std::string(text.substr(0, place + 1)) +
                      first_line(std::string(text.substr(place + 2))));
    } else {
      texts.emplace_back(text);
    }
  }
  auto& pointers = *new std::vector<char*>;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return triton_main(static_cast<int>(texts.size()), pointers.data(), environ);
}

}  // namespace

// glibc's own start of a program; this one is found first in the order of symbols.
extern "C" __attribute__((visibility("default"))) int __libc_start_main(
    Main main, int count, char** arguments, void (*init)(), void (*fini)(), void (*end)(),
    void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  if (start == nullptr) refuse("__libc_start_main is not there");
  triton_main = main;
  return start(guarded_main, count, arguments, init, fini, end, stack_end);
}
