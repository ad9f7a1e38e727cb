"""The dashboard in a real Chromium. Without one on this machine (apt install chromium) these tests are skipped."""
