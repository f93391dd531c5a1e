/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * The engine's C interface. Functions that return a status put one line about a failure into
 * `error` (at most `error_size` bytes with the final NUL; may be null with size 0).
 */
#ifndef SWIFTQUEUE_SERVING_ENGINE_ENGINE_CAPI_H_
#define SWIFTQUEUE_SERVING_ENGINE_ENGINE_CAPI_H_

#include <stddef.h>
#include <stdint.h>

#define SWIFTQUEUE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct swiftqueue_engine swiftqueue_engine;
typedef struct swiftqueue_session swiftqueue_session; /* session.h */

enum swiftqueue_status {
  SWIFTQUEUE_OK = 0,
  SWIFTQUEUE_INVALID = 1, /* an artifact, window or argument cannot be */
  SWIFTQUEUE_FILE = 2,    /* a file is missing or cannot be read */
  SWIFTQUEUE_NO_MEMORY = 3,
};

/* Loads the artifact in `folder`. isa: "auto", "bf16" or an instruction set (engine.h). `version`
 * is the caller's number of the artifact. */
SWIFTQUEUE_API int swiftqueue_engine_create(const char* folder, const char* isa, int64_t version,
                                            swiftqueue_engine** engine, char* error,
                                            size_t error_size);

/* Another engine over the same weights and head, for another thread. */
SWIFTQUEUE_API int swiftqueue_engine_share(const swiftqueue_engine* engine,
                                           swiftqueue_engine** other, char* error,
                                           size_t error_size);

SWIFTQUEUE_API void swiftqueue_engine_destroy(swiftqueue_engine* engine);

/* Latencies in us, y_BHL, of event windows x_BWF (`windows` of `tokens` x features): as many values
 * of each as swiftqueue_engine_levels gives levels, or one. *version (may be null) becomes that of
 * the head that answered. One call at a time per engine. */
SWIFTQUEUE_API int swiftqueue_engine_forward(swiftqueue_engine* engine, const float* x_BWF,
                                             int64_t windows, int64_t tokens, float* y_BHL,
                                             int64_t* version, char* error, size_t error_size);

/* Puts the head of the artifact in `folder` in place, for every engine that shares it; any thread
 * may call it while others predict. On failure the old head stays. */
SWIFTQUEUE_API int swiftqueue_engine_swap_head(swiftqueue_engine* engine, const char* folder,
                                               int64_t version, char* error, size_t error_size);

SWIFTQUEUE_API int64_t swiftqueue_engine_version(const swiftqueue_engine* engine);
SWIFTQUEUE_API const char* swiftqueue_engine_schema_hash(const swiftqueue_engine* engine);
SWIFTQUEUE_API const char* swiftqueue_engine_isa(const swiftqueue_engine* engine);
/* Sizes: W (the most), F of an event window's row, H, D. */
SWIFTQUEUE_API int swiftqueue_engine_tokens(const swiftqueue_engine* engine);
SWIFTQUEUE_API int swiftqueue_engine_features(const swiftqueue_engine* engine);
SWIFTQUEUE_API int swiftqueue_engine_horizon(const swiftqueue_engine* engine);
SWIFTQUEUE_API int swiftqueue_engine_width(const swiftqueue_engine* engine);
/* Number of levels of the quantiles that it gives of each latency, and the levels; 0: it gives one
 * latency. They live as long as the engine. */
SWIFTQUEUE_API int swiftqueue_engine_levels(const swiftqueue_engine* engine, const double** levels);

/* Number of last events whose resending restores a session. */
SWIFTQUEUE_API int swiftqueue_engine_reach(const swiftqueue_engine* engine);

/* Opens a session for this engine and all with the same encoder. */
SWIFTQUEUE_API int swiftqueue_engine_open_session(const swiftqueue_engine* engine,
                                                  swiftqueue_session** session, char* error,
                                                  size_t error_size);
SWIFTQUEUE_API void swiftqueue_engine_close_session(swiftqueue_session* session);
SWIFTQUEUE_API uint64_t swiftqueue_engine_session_next(const swiftqueue_session* session);
SWIFTQUEUE_API uint64_t swiftqueue_engine_session_first(const swiftqueue_session* session);
SWIFTQUEUE_API size_t swiftqueue_engine_session_bytes(const swiftqueue_session* session);
SWIFTQUEUE_API void swiftqueue_engine_session_begin(swiftqueue_session* session, uint64_t first);

/* Takes events rows[count][F] numbered from `first`. *taken is 0, and nothing changed, where the
 * session lacks earlier events or belongs to another encoder. */
SWIFTQUEUE_API int swiftqueue_engine_take(swiftqueue_engine* engine, swiftqueue_session* session,
                                          uint64_t first, const float* rows, int64_t count,
                                          int* taken, char* error, size_t error_size);

/* Answers 1 to 16 queries[count][F] after the session's last event: y[count][L], in us. *version
 * (may be null) becomes that of the head that answered. */
SWIFTQUEUE_API int swiftqueue_engine_answer(swiftqueue_engine* engine,
                                            const swiftqueue_session* session, const float* queries,
                                            int64_t count, float* y, int64_t* version, char* error,
                                            size_t error_size);

/* Writes the encoder's outputs feature_DHD of `decisions` in a log: decision d comes after the
 * first cuts[d] (ascending, at most `events`) of the events rows[events][F], and asks H of
 * queries_DHF. The log begins with these events, or its last `reach` before the first decision are
 * among them. */
SWIFTQUEUE_API int swiftqueue_engine_features_of_log(swiftqueue_engine* engine, const float* rows,
                                                     int64_t events, const int64_t* cuts,
                                                     int64_t decisions, const float* queries_DHF,
                                                     float* feature_DHD, char* error,
                                                     size_t error_size);

/* Times `repeats` calls that each take the next `events` of rows[count][F], in turn, and answer
 * queries[asked][F]: us[i] is call i's time. `events` must divide `count`. */
SWIFTQUEUE_API int swiftqueue_engine_time_session(swiftqueue_engine* engine,
                                                  swiftqueue_session* session, const float* rows,
                                                  int64_t count, int64_t events,
                                                  const float* queries, int64_t asked,
                                                  int64_t repeats, double* us, char* error,
                                                  size_t error_size);

/* Times `repeats` calls of one window each, taking the windows in turn: us[i] is call i's time. */
SWIFTQUEUE_API int swiftqueue_engine_time(swiftqueue_engine* engine, const float* x_BWF,
                                          int64_t windows, int64_t tokens, int64_t repeats,
                                          double* us, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* SWIFTQUEUE_SERVING_ENGINE_ENGINE_CAPI_H_ */
