// SPDX-License-Identifier: Apache-2.0
#ifndef SWIFTQUEUE_FEATURE_STORE_DOOR_DOOR_H_
#define SWIFTQUEUE_FEATURE_STORE_DOOR_DOOR_H_

#include <string_view>

namespace swiftqueue::door {

// Keeps the door of this process from now on, with these ports open to others.
void keep(std::string_view open_ports);

}  // namespace swiftqueue::door

#endif  // SWIFTQUEUE_FEATURE_STORE_DOOR_DOOR_H_
