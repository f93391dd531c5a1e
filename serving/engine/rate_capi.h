/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * C interface of the network that forecasts rates (rate.h); statuses as in engine_capi.h.
 */
#ifndef SWIFTQUEUE_SERVING_ENGINE_RATE_CAPI_H_
#define SWIFTQUEUE_SERVING_ENGINE_RATE_CAPI_H_

#include "serving/engine/engine_capi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct swiftqueue_rate swiftqueue_rate;

/* Loads the artifact in `folder`. */
SWIFTQUEUE_API int swiftqueue_engine_rate_create(const char* folder, const char* isa,
                                                 swiftqueue_rate** model, char* error,
                                                 size_t error_size);
SWIFTQUEUE_API void swiftqueue_engine_rate_destroy(swiftqueue_rate* model);
SWIFTQUEUE_API const char* swiftqueue_engine_rate_isa(const swiftqueue_rate* model);

/* What the network says, whatever it is, after each of a flow's samples: rate_SH in bytes/s. */
SWIFTQUEUE_API int swiftqueue_engine_rate_forward(const swiftqueue_rate* model,
                                                  const int64_t* sample_SF, int64_t samples,
                                                  float* rate_SH, char* error, size_t error_size);

/* The forecast of a flow's samples, rate_H; SWIFTQUEUE_INVALID where there is none to be used. */
SWIFTQUEUE_API int swiftqueue_engine_rate_forecast(const swiftqueue_rate* model,
                                                   const int64_t* sample_SF, int64_t samples,
                                                   float* rate_H, char* error, size_t error_size);

/* Times `repeats` forecasts of one flow: of all its samples, and of the last one alone. */
SWIFTQUEUE_API int swiftqueue_engine_rate_time(const swiftqueue_rate* model,
                                               const int64_t* sample_SF, int64_t samples,
                                               int64_t repeats, double* whole_us, double* last_us,
                                               char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* SWIFTQUEUE_SERVING_ENGINE_RATE_CAPI_H_ */
