"""Limits of the messages of PumpExt (pb/pump_ext.proto): pumps refuse messages above them, and clients keep them."""

PAYLOADS_MAX = 2048  # payloads of a WriteBatchReq: a pump checks all of them before it does anything else
PENDING_MAX = 10_000  # pending prewrites of an InspectResp, and start_ts of an OutcomeReq
