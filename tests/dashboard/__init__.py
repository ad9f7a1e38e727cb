"""The dashboard in a real Chromium, which `make test` installs on Linux. Without one these tests are skipped."""
