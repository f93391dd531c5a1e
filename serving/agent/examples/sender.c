/* Sends 800 datagrams, each marked for the queue that the agent decides, and prints the decisions.
 * The receiver is `swiftqueue udp echo --port 4433`; then: ./sender var/agent.sock 4433 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <swiftqueue.h>

int main(int argc, char** argv) {
  swiftqueue_agent* agent = argc == 3 ? swiftqueue_open(argv[1], "example") : NULL;
  if (!agent) return fprintf(stderr, "sender SOCKET PORT: %s\n", swiftqueue_error(NULL)), 2;
  struct sockaddr_in to = {AF_INET, htons(atoi(argv[2])), {htonl(INADDR_LOOPBACK)}, {0}};
  const int udp = socket(AF_INET, SOCK_DGRAM, 0);
  connect(udp, (struct sockaddr*)&to, sizeof to);
  int64_t now_ns, sent_ns[800], out[150] = {0x31555153}, ack[150]; /* SQU1, then the packet */
  swiftqueue_packet batch[8];
  for (int i = 0; i < 8; ++i) batch[i] = (swiftqueue_packet){1228, 0, 0, SWIFTQUEUE_L4S, 0, 0, 0};
  for (int64_t first = 0; first < 800; first += 8) {
    const int64_t due_ns = swiftqueue_now_ns() + 10000000;
    swiftqueue_decision decision = {.version = -1, .queue = {1, 1, 1, 1, 1, 1, 1, 1}}, each;
    if (swiftqueue_ask(agent, first, batch, due_ns) < 1) puts(swiftqueue_error(agent));
    while ((now_ns = swiftqueue_now_ns()) < due_ns) { /* decisions and ACKs until it is due */
      while (swiftqueue_next(agent, &each) == 1)
        if (each.first_packet == first) decision = each;
      while (recv(udp, ack, sizeof ack, MSG_DONTWAIT) > 0 && ack[1] >= 0 && ack[1] < first)
        swiftqueue_acked(agent, ack[1], now_ns, (now_ns - sent_ns[ack[1]]) / 1e3f);
      poll((struct pollfd[]){{swiftqueue_fd(agent), POLLIN, 0}, {udp, POLLIN, 0}}, 2, 1);
    }
    for (int i = 0; i < 8; ++i, ++out[1]) {
      const int ecn = decision.queue[i] == SWIFTQUEUE_L4S ? SWIFTQUEUE_ECT1 : SWIFTQUEUE_ECT0;
      const swiftqueue_packet sent = {1228, 0, 0, decision.queue[i], ecn, 0, 0};
      setsockopt(udp, IPPROTO_IP, IP_TOS, &ecn, sizeof ecn);
      sent_ns[out[1]] = swiftqueue_now_ns();
      send(udp, out, sizeof out, 0);
      swiftqueue_sent(agent, out[1], sent_ns[out[1]], &sent);
      printf("packet %d: queue %d by version %d\n", (int)out[1], sent.queue, (int)decision.version);
    }
  }
  swiftqueue_close(agent);
}
