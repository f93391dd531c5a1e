// Matches data packets of one sender with the ACKs that come back, which gives the packet table's
// rows.
//
// A packet's latency ends at the first ACK that covers its last byte: a cumulative one, or one of
// either kind where selective ones count. If that byte was sent again before, neither sending has a
// latency (Karn). Rows leave in send order (docs/PACKETS.md).
#ifndef FEATURE_STORE_MATCH_H_
#define FEATURE_STORE_MATCH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "flow_key.h"
#include "latency_stats.h"
#include "segment.h"
#include "trace_clock.h"

namespace swiftqueue {

// Columns of the packet table that Drain fills, each at least as long as asked for.
struct Columns {
  std::int64_t* sent_ns;
  std::int64_t* acked_ns;  // -1: not acknowledged
  float* latency_us;       // NaN: unknown
  std::int32_t* flow_id;
  std::int32_t* receiver_id;
  std::int32_t* size_bytes;
  std::uint8_t* ecn;
  std::uint8_t* retransmitted;
  std::uint8_t* lost;
};

class Matcher {
 public:
  // The ACKs that count, and the view of the segments: with kReceiver they come from a SenderView,
  // in the order in which the receiver got them.
  enum class Mode { kCumulative, kSelective, kReceiver };

  Matcher(const Address& sender, Mode mode, std::int64_t sharp_ns, double sharp_share)
      : sender_(sender),
        at_receiver_(mode == Mode::kReceiver),
        selective_(mode == Mode::kSelective),
        stats_(sharp_ns, sharp_share),
        clock_(!at_receiver_),
        recent_(kRecent) {}

  // Leaves a flow out of the table; call it before the first Push.
  void LeaveOut(const FlowKey& flow) { left_out_.insert(flow); }

  // Takes the next segments. `captured` are the capture's own where `segments` are a SenderView's:
  // the ends of a handshake show in its stamps alone.
  void Push(std::span<const Segment> segments, std::span<const Segment> captured = {});
  void Finish();  // no more segments: what is unacknowledged stays so

  // Moves up to `capacity` finished rows, in send order, into `columns`.
  std::size_t Drain(const Columns& columns, std::size_t capacity);

  // Control connections: the flows of fewer than kShortFlow data packets, if all of them together
  // carry less than kControlShare of the sender's payload; else none.
  std::vector<FlowKey> ControlFlows() const;

  // Reasons why drained rows have no latency, and signs of the place of the capture.
  struct Evidence {
    std::int64_t unacknowledged = 0;  // rows without an ACK
    std::int64_t sent_again = 0;      // rows whose last byte was sent again before its ACK (Karn)
    std::int64_t off_clock = 0;       // rows whose ACK the clock does not place behind them
    std::int64_t silent_packets = 0;  // packets of flows to which no ACK comes back
    std::int64_t midway_flows = 0;    // flows that begin without a SYN
    std::int64_t new_acks = 0;        // ACKs that acknowledge something new
    std::int64_t full_acks = 0;       // new ACKs after which nothing is in flight
    std::int64_t handshakes_near_sender = 0, handshakes_near_receiver = 0;
    std::int64_t span_ns = 0;  // time between the first and the last stamp
  };
  Evidence evidence() const;

  const LatencyStats& stats() const { return stats_; }
  std::int64_t clock_steps() const { return clock_.steps(); }
  std::int64_t acks() const { return acks_; }
  std::int64_t copies() const { return copies_; }
  std::int64_t cut_sacks() const { return cut_sacks_; }  // ACKs whose options were cut
  std::int64_t left_out() const { return left_out_packets_; }
  std::int64_t retransmitted() const { return retransmitted_; }
  std::int64_t flows() const { return static_cast<std::int64_t>(flows_.size()); }
  std::int64_t receivers() const { return static_cast<std::int64_t>(receivers_.size()); }

 private:
  struct Row {
    std::int64_t sent_ns;
    std::int64_t stamp_ns;  // as read; sent_ns if the clock did not run backwards
    std::int64_t acked_ns = -1;
    std::int64_t end;  // sequence number behind its last byte, unwrapped
    std::int32_t flow_id;
    std::int32_t size_bytes;
    std::int32_t steps;  // clock steps when it was sent
    std::uint8_t ecn;
    bool in_order;  // whether it is in Flow::first, else in again or lost
    bool retransmitted;
    bool lost = false;
    bool ambiguous = false;  // its last byte was sent again before an ACK covered it
    bool early_ack = false;  // the ACK's stamp lies before the send's
    bool done = false;
  };
  struct Outstanding {
    std::int64_t start;
    std::int64_t end;
    std::int64_t row;  // row; kSacked: it was acknowledged before earlier ones
  };
  static constexpr std::int64_t kSacked = -1;
  struct Resent {
    std::int64_t start;
    std::int64_t row;
  };
  struct Flow {
    std::int32_t id;
    std::int32_t receiver_id;
    std::uint32_t first_number;  // the sequence number of the SYN, seen or not
    bool opened = false;         // its SYN was seen
    std::int64_t began_ns = 0;
    std::int64_t packets = 0;  // data packets
    std::int64_t payload_bytes = 0;
    std::int64_t acks = 0;
    std::int64_t acked = 0;      // highest byte acknowledged, unwrapped, if any `acks`
    std::int64_t acked_ns = -1;  // when the newest ACK came
    // An ACK of bytes whose record comes later with the same stamp, and its stamp.
    std::int64_t ahead = 0;
    std::int64_t ahead_ns = -1;
    std::int64_t ahead_steps = 0;        // clock steps
    std::int64_t newest = -1;            // number in recent_
    std::int64_t sent_end = 0;           // highest sequence number sent, unwrapped
    std::uint32_t newest_timestamp = 0;  // TSval that came with sent_end
    // Packets sent once without a cumulative ACK, ordered by start and by row.
    std::vector<Outstanding> first;
    std::size_t first_head = 0;                 // number of acknowledged ones at the front
    std::multimap<std::int64_t, Resent> again;  // packets below sent_end when sent, by end
    // Packets of `again` whose last byte was sent yet again: only an ACK can change them.
    std::multimap<std::int64_t, Resent> again_lost;
    // Ranges covered by selective ACKs, apart, from each key on and before its value.
    std::map<std::int64_t, std::int64_t> sacked;
    void Compact();                      // frees what is acknowledged, in amortised constant time
    void SentAgainTo(std::int64_t end);  // a selective ACK may cover such a packet anew
    std::vector<Outstanding>::iterator FirstFrom(std::int64_t end);  // ends there or beyond
  };

  // A packet sent a moment ago, to tell a copy of it from a retransmission.
  struct Recent {
    std::int64_t start;
    std::int64_t end;
    std::int64_t time_ns;
    std::int64_t previous;  // previous packet of its flow
    std::uint32_t acknowledgment;
    std::uint32_t timestamp_value;
    std::uint32_t timestamp_echo;
    std::uint32_t link;
    std::uint16_t ip_id;
    std::uint16_t vlan;
    bool in_order;
  };
  static constexpr std::size_t kRecent = 1 << 13;  // packets over all flows; 0.5 MB

  // A connection that has begun: when its SYN and the answer to it were seen.
  struct Handshake {
    std::int64_t syn_ns = 0;
    std::int64_t answer_ns = -1;
    bool from_sender = false;
    bool done = false;
  };
  static constexpr std::size_t kMostHandshakes = 1 << 12;

  bool IsOpening(const Segment& segment, TraceClock::Reading now) const {
    return segment.flags & kSyn || now.time_ns < opening_until_ns_;
  }
  void Open(const Segment& segment, TraceClock::Reading now);
  std::uint16_t VlanOf(const Segment& segment);
  Flow* Acknowledged(const Segment& segment);
  void Restart(Flow& flow, std::uint32_t first_number, std::int64_t now_ns);
  void Data(const Segment& segment, TraceClock::Reading now);
  void Ack(const Segment& segment, TraceClock::Reading now);
  void Sack(Flow& flow, const SackBlock& block, TraceClock::Reading now);
  bool Covered(Flow& flow, std::int64_t left, std::int64_t right, TraceClock::Reading now);
  void Cumulative(Flow& flow, std::int64_t acked, TraceClock::Reading now);
  bool IsCopy(const Flow& flow, const Segment& segment, std::int64_t start, std::int64_t end,
              TraceClock::Reading now) const;
  bool IsCopyElsewhere(FlowKey& key, const Segment& segment, TraceClock::Reading now);
  static bool Shows(const Recent& recent, const Flow& flow, const Segment& segment,
                    std::int64_t start, std::int64_t age_ns);
  static bool Reordered(const Flow& flow, const Segment& segment);
  void SentAgain(Flow& flow, std::int64_t start, std::int64_t end);
  void Acknowledge(std::int64_t row, TraceClock::Reading now);
  void Abandon(Flow& flow);
  void ForgetOldest(std::int64_t now_ns);
  Flow& FlowFor(const FlowKey& key, const Segment& segment, std::int64_t now_ns);
  Row& At(std::int64_t row) { return rows_[static_cast<std::size_t>(row - first_row_)]; }

  Address sender_;
  bool at_receiver_;
  bool selective_;
  LatencyStats stats_;
  TraceClock clock_;
  TraceClock captures_clock_{true};  // at the receiver, where `clock_` is the sender's
  std::deque<Row> rows_;             // not yet drained, in send order
  std::int64_t first_row_ = 0;       // number of rows_.front()
  std::int64_t oldest_ = 0;          // rows before it are done
  std::unordered_map<FlowKey, Flow, FlowKeyHash> flows_;
  std::vector<Flow*> flow_of_id_;
  std::unordered_map<Address, std::int32_t, AddressHash> receivers_;
  std::int64_t acks_ = 0;
  std::int64_t copies_ = 0;
  std::unordered_set<FlowKey, FlowKeyHash> left_out_;
  std::int64_t left_out_packets_ = 0;
  std::int64_t retransmitted_ = 0;
  std::int64_t cut_sacks_ = 0;
  Evidence evidence_;
  std::int64_t first_ns_ = -1;  // stamp of the first segment
  std::vector<Recent> recent_;  // a ring
  std::int64_t sent_ = 0;       // number of packets ever in it
  // Handshakes by the sender's flow, whoever began it.
  std::unordered_map<FlowKey, Handshake, FlowKeyHash> handshakes_;
  std::int64_t opening_until_ns_ = 0;
  // Flows in another VLAN than the capture's first, and whether they continue those in the first.
  struct Elsewhere {
    std::uint16_t vlan;
    bool same;
  };
  std::unordered_map<FlowKey, std::vector<Elsewhere>, FlowKeyHash> elsewhere_;
  std::int32_t first_vlan_ = -1;
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_MATCH_H_
