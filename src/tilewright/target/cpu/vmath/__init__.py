"""Vector math: functions of floats as LLVM IR, with bounds on their error."""
