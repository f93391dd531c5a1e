// SPDX-License-Identifier: Apache-2.0
//
// One page over HTTP. A client costs its place and no more: there are kMostClients places, each for
// kMostNs, and a client that comes when all are taken gets the place of the one that has been there
// longest. So slow clients, idle ones and many of them cannot keep the page from others.
// prometheus-cpp's own server gives each client a thread, and stops answering when three are slow.
#ifndef SWIFTQUEUE_SERVING_AGENT_HTTP_PAGE_H_
#define SWIFTQUEUE_SERVING_AGENT_HTTP_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

namespace swiftqueue::agent {

class HttpPage {
 public:
  static constexpr std::size_t kMostClients = 64;
  static constexpr std::size_t kMostRequestBytes = 4096;
  static constexpr std::int64_t kMostNs = 3'000'000'000;  // from connecting to the answer's end

  // Answers GET of `path` at an IPv4 address with the result of `page`, by a thread of its own.
  // Port 0 takes a free one. Throws std::runtime_error if it cannot listen there.
  HttpPage(const std::string& address, int port, std::string path,
           std::function<std::string()> page);
  ~HttpPage();
  HttpPage(const HttpPage&) = delete;
  HttpPage& operator=(const HttpPage&) = delete;

  int port() const { return port_; }

 private:
  struct Client {
    int fd;
    std::int64_t since_ns;
    std::string request;
    std::string answer;  // unwritten part of the answer
  };

  void serve();
  void accept_all();
  bool go_on(Client& client);  // false: it is finished
  std::string answer_to(const std::string& request) const;

  const std::string path_;
  const std::function<std::string()> page_;
  int listen_fd_ = -1;
  int stop_fd_ = -1;
  int port_ = 0;
  std::list<Client> clients_;  // the oldest connection first
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_HTTP_PAGE_H_
