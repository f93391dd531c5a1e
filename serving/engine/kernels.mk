# The engine's forward passes, one by instruction set: a program chooses among them when it starts.
KERNELS := portable
ifeq ($(shell uname -m),x86_64)
KERNELS += avx2 avx512 amx
FLAGS_avx2 := -march=x86-64-v3
FLAGS_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
FLAGS_amx := $(FLAGS_avx512) -mavx512bf16 -mamx-tile -mamx-bf16
endif
# -O3: register tiles must be unrolled completely. -fno-math-errno lets square roots become instructions. Fused
# multiply-adds are wanted here (-ffp-contract=fast, the default).
KERNEL_FLAGS := -O3 -fno-math-errno -Wno-psabi
# What a program links that computes with the engine.
ENGINE_NAMES := json safetensors artifact weights engine $(KERNELS:%=kernel_%)
