// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/io/http_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/agent/io/clock.h"

namespace swiftqueue::agent {
namespace {

constexpr int kLookMs = 200;                // between looks at clients whose time is over
constexpr std::size_t kAcceptAtOnce = 256;  // then the accepted clients have their turn

std::string response(const char* status, const std::string& body) {
  return std::string("HTTP/1.1 ") + status +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

}  // namespace

HttpPage::HttpPage(const std::string& address, int port, std::string path,
                   std::function<std::string()> page)
    : path_(std::move(path)), page_(std::move(page)) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t bytes = sizeof place;
  const int yes = 1;
  listen_fd_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listen_fd_ < 0 || inet_pton(AF_INET, address.c_str(), &place.sin_addr) != 1 ||
      setsockopt(listen_fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(listen_fd_, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0 ||
      listen(listen_fd_, SOMAXCONN) != 0 ||
      getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&place), &bytes) != 0 ||
      (stop_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
    if (listen_fd_ >= 0) close(listen_fd_);
    throw std::runtime_error("cannot listen at " + address + ':' + std::to_string(port));
  }
  port_ = ntohs(place.sin_port);
  thread_ = std::thread([this] { serve(); });
}

HttpPage::~HttpPage() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_fd_, &one, sizeof one);
  thread_.join();
  for (const Client& each : clients_) close(each.fd);
  close(listen_fd_);
  close(stop_fd_);
}

void HttpPage::serve() {
  std::vector<pollfd> waiting;
  while (true) {
    waiting.assign({{stop_fd_, POLLIN, 0}, {listen_fd_, POLLIN, 0}});
    for (const Client& each : clients_) {
      const auto event = static_cast<short>(each.answer.empty() ? POLLIN : POLLOUT);
      waiting.push_back({each.fd, event, 0});
    }
    if (poll(waiting.data(), waiting.size(), clients_.empty() ? -1 : kLookMs) < 0) continue;
    if (waiting[0].revents != 0) return;
    const std::int64_t now_ns = monotonic_ns();
    std::size_t i = 2;
    for (auto each = clients_.begin(); each != clients_.end(); ++i) {
      const bool late = now_ns - each->since_ns > kMostNs;
      if (late || (waiting[i].revents != 0 && !go_on(*each))) {
        close(each->fd);
        each = clients_.erase(each);
      } else {
        ++each;
      }
    }
    if (waiting[1].revents != 0) accept_all();
  }
}

void HttpPage::accept_all() {
  for (std::size_t i = 0; i < kAcceptAtOnce; ++i) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && !clients_.empty()) {
      close(clients_.front().fd);
      clients_.pop_front();
      continue;
    }
    if (fd < 0) return;
    Client client{fd, monotonic_ns(), {}, {}};
    if (!go_on(client)) {  // a client that asks at once is answered at once, whatever the others do
      close(fd);
      continue;
    }
    if (clients_.size() == kMostClients) {
      close(clients_.front().fd);
      clients_.pop_front();
    }
    clients_.push_back(std::move(client));
  }
}

bool HttpPage::go_on(Client& client) {
  if (client.answer.empty()) {
    std::array<char, kMostRequestBytes> buffer;
    const ssize_t got = recv(client.fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    client.request.append(buffer.data(), static_cast<std::size_t>(got));
    if (client.request.find("\r\n\r\n") == std::string::npos) {
      return client.request.size() < kMostRequestBytes;
    }
    client.answer = answer_to(client.request);
  }
  const ssize_t put =
      send(client.fd, client.answer.data(), client.answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put < 0) return errno == EAGAIN || errno == EINTR;
  client.answer.erase(0, static_cast<std::size_t>(put));
  return !client.answer.empty();
}

std::string HttpPage::answer_to(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  const std::size_t end = line.find(' ', 4);
  if (line.substr(0, 4) != "GET " || end == std::string_view::npos) {
    return response("405 Method Not Allowed", "only GET is answered\n");
  }
  const std::string_view target = line.substr(4, end - 4);
  if (target.substr(0, target.find('?')) != path_) {
    return response("404 Not Found", "the page is " + path_ + "\n");
  }
  return response("200 OK", page_());
}

}  // namespace swiftqueue::agent
