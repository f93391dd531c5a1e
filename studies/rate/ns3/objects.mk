# SPDX-License-Identifier: GPL-2.0-only
# What the study's programs link besides; included by simulation/Makefile.
RATE := $(dir $(lastword $(MAKEFILE_LIST)))..
# The study has no kernel of bfloat16.
RATE_OBJECTS := $(patsubst %,$(RATE)/_build/%.o,rate_model $(patsubst %,kernel_%,$(filter-out amx,$(KERNELS))))

# Which packets an ACK covers.
$(BUILD)/rate-exchange: $(BUILD)/programs/laboratory/ack-tracker.o

# Forecasts by the network. Not $(MAKE): a dry run names what it would compile here.
$(BUILD)/rate: $(RATE_OBJECTS) $(ENGINE_OBJECTS)
$(RATE_OBJECTS) &: FORCE | $(BUILD)/ns3-path $(SCHEMA_HASH) $(ENGINE_OBJECTS)
	@MAKEFLAGS= make -s -j$(shell nproc) -C $(RATE) $(patsubst $(RATE)/%,%,$(RATE_OBJECTS))
