// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What a sender with BBR does with a forecast of its rate, and what it does not: plain integers, so
 * that the simulator and a BPF program can include it. Rates in bytes/s, times in us; 0: unknown.
 *
 * A forecast is used while BBR is in STARTUP, above BBR's own estimate, and never above the
 * dispersion of the first ACKs. It is paced at 5/4 of that, with as much in flight as a round trip
 * then takes. So no forecast sends more than 5/4 of what the first ACKs showed, or makes a queue
 * longer than a quarter of a round trip. BBR's own filter never sees it: what it estimates was
 * delivered.
 */
#ifndef SWIFTQUEUE_FEEDBACK_H
#define SWIFTQUEUE_FEEDBACK_H

typedef unsigned long long sq_u64;

enum sq_verdict {
  SQ_USED,
  SQ_NOT_A_RATE,   /* 0, NaN, infinite, negative, or from 1 Tbit/s on */
  SQ_STALE,        /* older than a round trip: the window has turned over */
  SQ_TOO_LATE,     /* BBR has left STARTUP */
  SQ_NOTHING_SEEN, /* no dispersion, or no round trip, to hold it against */
  SQ_NOTHING_NEW,  /* BBR's own estimate is as high */
};

/* Why a forecast is no longer followed. */
enum sq_end {
  SQ_GOES_ON,
  SQ_LOST,      /* a packet was lost */
  SQ_QUEUED,    /* a packet that was sent by the forecast waited too long */
  SQ_CONFIRMED, /* BBR's estimate is what the forecast said */
  SQ_EXCEEDED,  /* the path gives more than the forecast said */
};

struct sq_seen {
  sq_u64 own;        /* BBR's estimate */
  sq_u64 dispersion; /* of the first ACKs: what came, over the gap before; the median */
  sq_u64 age_us;     /* since the sample that the forecast was made from */
  sq_u64 min_rtt_us;
  int in_startup;
};

#define SQ_LARGEST_RATE 125000000000ULL /* 1 Tbit/s */
#define SQ_US_PER_S 1000000ULL

static inline enum sq_verdict sq_judge(sq_u64 forecast, const struct sq_seen* seen) {
  if (forecast == 0 || forecast >= SQ_LARGEST_RATE) return SQ_NOT_A_RATE;
  if (seen->dispersion == 0 || seen->min_rtt_us == 0) return SQ_NOTHING_SEEN;
  if (seen->age_us > seen->min_rtt_us) return SQ_STALE;
  if (!seen->in_startup) return SQ_TOO_LATE;
  return forecast > seen->own ? SQ_USED : SQ_NOTHING_NEW;
}

/* What is followed of a forecast. */
static inline sq_u64 sq_bounded(sq_u64 forecast, sq_u64 dispersion) {
  return forecast < dispersion ? forecast : dispersion;
}

/* What to pace at; a receive window (bytes) that is less than a round trip of it rules. */
static inline sq_u64 sq_pace(sq_u64 bounded, sq_u64 window, sq_u64 min_rtt_us) {
  const sq_u64 wanted = bounded / 4 * 5, most = window * SQ_US_PER_S / min_rtt_us;
  return window != 0 && most < wanted ? most : wanted;
}

/*
 * At each ACK. `round` is 0 while what is acknowledged was sent before the forecast was followed, 1
 * for the first round trip that was sent by it, and so on; `whole` counts those since the receive
 * window ruled last. BBR's estimate is whole in the second of them.
 */
static inline enum sq_end sq_follow(sq_u64 bounded, sq_u64 own, int round, int whole, int lost,
                                    sq_u64 rtt_us, sq_u64 min_rtt_us) {
  if (lost) return SQ_LOST;
  if (own / 23 * 20 >= bounded) return SQ_EXCEEDED; /* own >= 1.15 of it: the path gives more */
  if (round >= 2 && rtt_us > min_rtt_us / 8 * 9) return SQ_QUEUED;
  return whole >= 2 ? SQ_CONFIRMED : SQ_GOES_ON;
}

#ifdef __cplusplus
/* A forecast as it came, as a rate: 0 where it is none. */
inline sq_u64 sq_rate_of(double forecast) {
  return forecast >= 1 && forecast < static_cast<double>(SQ_LARGEST_RATE) /* false for NaN */
             ? static_cast<sq_u64>(forecast)
             : 0;
}
#endif

#endif /* SWIFTQUEUE_FEEDBACK_H */
