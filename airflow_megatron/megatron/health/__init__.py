"""Health of a running training: detectors that follow the lines of its log."""
