# Flags of each sanitizer, for all C++ parts. With line tables only (-g1) reports still name lines, and the kernels
# compile a third faster.
SANITIZERS := address thread
FLAGS_address := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
FLAGS_thread := -O1 -g1 -fsanitize=thread
