"""Generated from the .proto files beside it; `make proto` writes it anew, a test compares."""
