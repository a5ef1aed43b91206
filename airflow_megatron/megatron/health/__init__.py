"""Whether a training that runs does well: detectors that follow the lines of its log."""
