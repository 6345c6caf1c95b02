UV ?= uv
PROTOS := $(wildcard proto/binlog/pb/*.proto)

.PHONY: proto
proto:
	$(UV) run python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTOS)
