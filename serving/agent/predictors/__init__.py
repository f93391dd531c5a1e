"""The predictors that answer a question: the engine in the agent's process, or Triton."""
