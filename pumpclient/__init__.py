"""How a writer reaches a pump, and the SDK for services that embed it."""
