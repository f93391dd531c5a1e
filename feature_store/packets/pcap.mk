# The capture decoder and the data-to-ACK matcher, a shared library that pcaplib.py loads.
EXTRACT_SOURCES := packets/decode.cc packets/pcap.cc packets/match.cc packets/sender_view.cc packets/extract_api.cc
EXTRACT_HEADERS := packets/segment.h packets/flow_key.h packets/trace_clock.h packets/decode.h packets/pcap.h \
  packets/match.h packets/sender_view.h packets/stamp_order.h packets/latency_stats.h
EXTRACT_FLAGS := -std=c++20 -Wall -Wextra -Werror -fPIC -shared -fvisibility=default

_build/libpcapdecode.so: $(EXTRACT_SOURCES) $(EXTRACT_HEADERS) packets/pcap.mk
	@mkdir -p _build
	$(CXX) -O2 $(EXTRACT_FLAGS) $(EXTRACT_SOURCES) -o $@.partial.$$$$ && mv $@.partial.$$$$ $@

# The same with run-time checks of addresses and undefined behaviour, for the tests.
_build/libpcapdecode-asan.so: $(EXTRACT_SOURCES) $(EXTRACT_HEADERS) packets/pcap.mk
	@mkdir -p _build
	$(CXX) $(FLAGS_address) $(EXTRACT_FLAGS) $(EXTRACT_SOURCES) -o $@.partial.$$$$ && mv $@.partial.$$$$ $@
