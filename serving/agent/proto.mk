# The agent's Triton client and what it needs of gRPC; included by Makefile. The KServe protocol is
# generated at build time from the tritonclient package (predictors/kserve_descriptors.py).
#   HAVE_GRPC       yes, or empty: then NO_GRPC_REASON lists the packages that are missing
#   TRITON_OBJECTS  objects of make_triton_predictor()
#   TRITON_LIBS     libraries to link with them
GRPC_HEADER := $(firstword $(wildcard /usr/include/grpcpp/grpcpp.h /usr/local/include/grpcpp/grpcpp.h))
PROTOBUF_HEADER := $(firstword $(wildcard $(addsuffix /include/google/protobuf/port_def.inc,/usr /usr/local)))
PROTOC := $(shell command -v protoc)
GRPC_PLUGIN := $(shell command -v grpc_cpp_plugin)
PROTO_PYTHON := $(firstword $(wildcard ../../.venv/bin/python) python3)

NO_GRPC_REASON := $(strip $(if $(GRPC_HEADER),,libgrpc++-dev) $(if $(PROTOBUF_HEADER),,libprotobuf-dev) \
  $(if $(PROTOC),,protobuf-compiler) $(if $(GRPC_PLUGIN),,protobuf-compiler-grpc))
HAVE_GRPC := $(if $(NO_GRPC_REASON),,yes)

KSERVE := _build/kserve
KSERVE_OBJECTS := $(addprefix $(KSERVE)/,grpc_service.pb.o grpc_service.grpc.pb.o model_config.pb.o)
KSERVE_HEADERS := $(addprefix $(KSERVE)/,grpc_service.pb.h grpc_service.grpc.pb.h model_config.pb.h)
TRITON_SOURCES := triton_predictor triton_server triton_channel triton_request
TRITON_HEADERS := $(wildcard */*.h) $(WINDOW) $(RULE) $(SCHEMA_HASH)
TRITON_OBJECTS := $(TRITON_SOURCES:%=_build/%.o) $(KSERVE_OBJECTS)
# gRPC's headers use its own libraries (Abseil), which differ by release: the linker follows them.
TRITON_LIBS := -Wl,--copy-dt-needed-entries -lgrpc++ -lgrpc -lgpr -lprotobuf -lpthread

# Looked at again when the packages change; compiled again only if the protocol did.
$(KSERVE)/checked: predictors/kserve_descriptors.py ../../requirements.lock
	@mkdir -p $(KSERVE)
	@$(PROTO_PYTHON) $< $(KSERVE)/kserve.pb
	@touch $@

$(KSERVE)/kserve.pb: $(KSERVE)/checked ;

$(KSERVE)/generated: $(KSERVE)/kserve.pb
	$(PROTOC) --descriptor_set_in=$< --cpp_out=$(KSERVE) --grpc_out=$(KSERVE) \
	  --plugin=protoc-gen-grpc=$(GRPC_PLUGIN) grpc_service.proto model_config.proto
	@touch $@

$(KSERVE_OBJECTS:.o=.cc) $(KSERVE_HEADERS): $(KSERVE)/generated ;

# -O1: half the time of -O2 to compile, and no difference to a round trip.
$(KSERVE)/%.pb.o: $(KSERVE)/%.pb.cc $(KSERVE)/generated
	$(CXX) -O1 -std=c++20 -fPIC -isystem $(KSERVE) -c -o $@ $<

$(TRITON_SOURCES:%=_build/%.o) _build/round_trip.o: _build/%.o: %.cc $(TRITON_HEADERS) $(KSERVE)/generated proto.mk
	$(CXX) $(CXXFLAGS) -isystem $(KSERVE) -c -o $@ $<

# Times one window's round trip: `swiftqueue bench serving`.
_build/round_trip: _build/round_trip.o $(TRITON_OBJECTS)
	$(CXX) -o $@.partial.$$$$ $^ $(TRITON_LIBS) && mv $@.partial.$$$$ $@
