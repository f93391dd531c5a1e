# The capture decoder and the data-to-ACK matcher, a shared library that pcaplib.py loads.
EXTRACT_SOURCES := decode.cc pcap.cc match.cc sender_view.cc extract_api.cc
EXTRACT_HEADERS := segment.h flow_key.h trace_clock.h decode.h pcap.h match.h sender_view.h latency_stats.h
EXTRACT_FLAGS := -std=c++20 -Wall -Wextra -Werror -fPIC -shared -fvisibility=default

_build/libpcapdecode.so: $(EXTRACT_SOURCES) $(EXTRACT_HEADERS) pcap.mk
	@mkdir -p _build
	$(CXX) -O2 $(EXTRACT_FLAGS) $(EXTRACT_SOURCES) -o $@.partial.$$$$ && mv $@.partial.$$$$ $@

# The same with run-time checks of addresses and undefined behaviour, for the tests.
_build/libpcapdecode-asan.so: $(EXTRACT_SOURCES) $(EXTRACT_HEADERS) pcap.mk
	@mkdir -p _build
	$(CXX) $(FLAGS_address) $(EXTRACT_FLAGS) $(EXTRACT_SOURCES) -o $@.partial.$$$$ && mv $@.partial.$$$$ $@
