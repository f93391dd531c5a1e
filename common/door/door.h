// SPDX-License-Identifier: Apache-2.0
#ifndef SWIFTQUEUE_COMMON_DOOR_DOOR_H_
#define SWIFTQUEUE_COMMON_DOOR_DOOR_H_

#include <string_view>

namespace swiftqueue::door {

// Guards the ports of this process from now on; the given ports stay open to other users.
void keep(std::string_view open_ports);

}  // namespace swiftqueue::door

#endif  // SWIFTQUEUE_COMMON_DOOR_DOOR_H_
