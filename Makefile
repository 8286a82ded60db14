# The jobs of CONTRIBUTING.md, one target each. `make` lists them.

GO       ?= go
FUZZTIME ?= 10000x

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

.PHONY: test
test: ## every test that needs nothing but Go
	$(GO) test ./...

.PHONY: race
race: ## the same with -short under the race detector (arenas on the Go heap)
	$(GO) test -race -short ./...

.PHONY: invariants
invariants: ## the same with -short, poisoned buffers and checked invariants
	$(GO) test -short -tags invariants ./...

.PHONY: secure
secure: ## the messenger's tests of replay and delivery in secure mode
	$(GO) test -short -run 'Lossless|CutAnywhere|DeliveryUnderFire' ./messenger -args -secure

.PHONY: model
model: ## arena and ledger against models over millions of steps, and the arena's stress with poisoned memory
	ARGONAUT_MODEL_STEPS=2000000 $(GO) test -race -timeout 2h -run 'TestArenaModel$$' -v ./buffer
	$(GO) test -race -timeout 2h -run 'TestLedgerModel$$' -v ./verbs -rapid.checks 40000
	ARGONAUT_STRESS_ROUNDS=100000 $(GO) test -tags invariants -timeout 2h -run 'TestStress$$' -v ./buffer

.PHONY: kill
kill: ## clients and the node killed in mid-transfer 50 times on each carrier, the store's writer 300 times
	ARGONAUT_KILL_ROUNDS=50 ARGONAUT_CRASH_ROUNDS=300 $(GO) test -timeout 2h -run 'Kill' -v ./examples/storage-node/...

.PHONY: delivery
delivery: ## a million messages, and 2,000 of 8 MiB, while connections are cut, over iWARP and over TCP
	ARGONAUT_DELIVERY_MESSAGES=1000000 ARGONAUT_DELIVERY_MAX=524288 ARGONAUT_DELIVERY_LARGE=2000 \
	ARGONAUT_DELIVERY_LARGE_SIZE=8388608 ARGONAUT_DELIVERY_CUT=33554432 \
		$(GO) test -timeout 2h -run 'TestDeliveryUnderFire/^(tcp|iwarp)$$' -v ./messenger

.PHONY: lint
lint: ## gofmt, go vet and golangci-lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'gofmt would change the files above'; exit 1; }
	$(GO) vet ./...
	.ci/lint

.PHONY: cross
cross: ## builds, test binaries included, for the platforms without cgo
	.ci/cross

.PHONY: fuzz
fuzz: ## every fuzzer for FUZZTIME, a number of executions or a time
	.ci/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## throughput and latency as ratios to raw TCP
	cd test/bench && $(GO) test ./... && $(GO) run .

.PHONY: test-vm
test-vm: ## rxe and siw in a QEMU guest, and in two that a network joins (root, Debian)
	test/interop/vm/run

.PHONY: test-pair
test-pair: ## two guests, while the link between them goes down, loses, delays and reorders (root, Debian)
	test/interop/vm/pair

.PHONY: bench-vm
bench-vm: ## ratios to perftest on rxe and siw, in the guest (root, Debian)
	test/interop/vm/run -t 3000 -d rxe -b 5
	test/interop/vm/run -t 3000 -d siw -b 15

.PHONY: test-ceph
test-ceph: ## a real Ceph monitor and OSD as peers (root, Debian)
	test/interop/ceph/run

.PHONY: ci
ci: ## all of it, from a bare machine
	.ci/run
