"""The train loop: set-up, steps, optimizer, schedule, evaluation, logs."""
