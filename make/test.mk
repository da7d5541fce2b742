##@ Tests

# Three rings: `make test`, `make test-all`, `make bench*`. docs/testing.md describes them.

# The end-to-end packages need bin/barque and have their own run.
E2E_PKGS  := ./cluster-test ./cluster-test/chaos ./cluster-test/addresschaos
UNIT_PKGS  = $$($(GO) list ./... | grep -v $(E2E_PKGS:./%=-e '/%$$'))
# Where goroutines meet: `make test` runs these with the race detector, and all others without. The
# store's files and formats hardly have goroutines. The tests of how much it holds and how long it
# waits, and its simulation, would take ten times as long. `make test-all` runs all with it.
RACE_PKGS = $$($(GO) list ./raftstore/... ./membership/... ./controllers/runtime/... ./kubelet/pods/... | \
	grep -v -E '/raftstore/(amounts|backup|command|fsm|logstore|sim|snapdir|snapshot)$$')

# With two threads the race detector of Go 1.26 can crash in a bubble of testing/synctest: two
# goroutines of a bubble that look at one due timer share a race context (golang/go#78156 is the
# likeliest report). One thread avoids it, and the detector finds the same races: it goes by the
# order of synchronization, not by what overlaps.
RACE := $(GO) test -race -cpu 1

# Only a hang reaches it: beside other work the store's tests took twenty minutes once.
SHORT := -short -timeout 60m $(if $(RUNS),-count=$(RUNS))

# The recipe's shell gets a file where tests note what this machine cannot test (internal/needs),
# shown at the end, and a directory for temporary files, which must be empty at the end. Its name is
# short, because sockets stand below it, and the same each time if it can be, because go test caches
# results by it. The exit code stays that of the tests.
TESTS_IN := b.tests
NOTING = NOT_TESTED=$$(mktemp); temporary=$${TMPDIR:-/tmp}; TMPDIR=$$temporary/$(TESTS_IN); \
	mkdir $$TMPDIR 2>/dev/null || TMPDIR=$$(mktemp -d $$temporary/b.XXXX); export NOT_TESTED TMPDIR; \
	trap 'rc=$$?; sort -u $$NOT_TESTED; rm -f $$NOT_TESTED; \
	  rmdir $$TMPDIR 2>/dev/null || { echo "tests have left these below $$TMPDIR:"; ls -A $$TMPDIR; [ $$rc != 0 ] || rc=1; }; exit $$rc' EXIT

# The race detector needs a C compiler.
WITH_CC = command -v $${CC:-cc} >/dev/null || { echo "warning: no C compiler: nothing runs with the race detector"; false; }

.PHONY: test
test: lint test-unit test-e2e ## run the tests of every change: lint, unit tests, one end-to-end pass; at most ten minutes (as root)

.PHONY: lint
lint: bundle schemas gateway-crds licenses ## check formatting, go vet, staticcheck, errors and log lines
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) build -o bin/lint ./cluster-test/layout/lint
	$(GO) vet -vettool=$(CURDIR)/bin/lint ./...
	$(GO) tool staticcheck ./...

.PHONY: test-unit
test-unit: bundle schemas gateway-crds licenses ## run the unit tests in their short form, with the race detector where goroutines meet
	@$(MAKE) --no-print-directory -j2 --output-sync=target unit-raced unit-plain

# The store with the race detector takes minutes of one core; the other one has the rest meanwhile.
.PHONY: unit-raced unit-plain
unit-raced: TESTS_IN := b.raced
unit-raced:
	@$(NOTING); \
	if $(WITH_CC); then \
	  echo "go test -race -short, where goroutines meet"; \
	  CGO_ENABLED=1 $(RACE) $(SHORT) $(RACE_PKGS); \
	fi
unit-plain:
	@$(NOTING); raced=; \
	if $(WITH_CC) >/dev/null; then \
	  raced="$(RACE_PKGS)"; \
	  echo "go test -short, what is built without the race detector only (raftstore/addresses_test.go)"; \
	  $(GO) test $(SHORT) -run 'Address|Moves' ./raftstore; \
	fi; \
	echo "go test -short, the builder of releases, a module of its own"; \
	$(GO) test -C release/builder -short ./...; \
	echo "go test -short, all other packages but $(E2E_PKGS)"; \
	$(GO) test $(SHORT) $$(echo "$(UNIT_PKGS)" | grep -vxF -e "$$raced")

.PHONY: test-e2e
test-e2e: build ## take one three-server cluster through its life: hello, rollout, a dead leader, backup, leave (as root)
	@echo "go test -run TestTour ./cluster-test"; $(NOTING); \
	$(WITH_BARQUE) $(GO) test -count=$(or $(RUNS),1) -run '^TestTour$$' -timeout 60m ./cluster-test

.PHONY: test-all
test-all: lint test-all-unit test-all-e2e test-clients test-oidc test-csi test-cloud test-page ## run everything, for a night: all tests with the race detector, simulation, both chaos worlds, fuzzing (as root)
	$(MAKE) --no-print-directory sim SEEDS=$(or $(SEEDS),100)
	$(MAKE) --no-print-directory chaos-store DURATION=$(or $(DURATION),10m)
	$(MAKE) --no-print-directory chaos DURATION=$(or $(DURATION),10m)
	$(MAKE) --no-print-directory fuzz FUZZTIME=$(or $(FUZZTIME),1m)

.PHONY: test-all-unit
test-all-unit: bundle schemas gateway-crds licenses ## run all unit tests in full, with the race detector
	@$(NOTING); \
	if $(WITH_CC); then \
	  echo "go test -race, all packages but $(E2E_PKGS)"; \
	  CGO_ENABLED=1 $(RACE) -timeout 60m $(UNIT_PKGS); \
	  echo "go test, what is built without the race detector only (raftstore/addresses_test.go)"; \
	  $(GO) test -timeout 10m -run 'Address|Moves' ./raftstore; \
	else \
	  $(GO) test -timeout 60m $(UNIT_PKGS); \
	fi; \
	$(GO) test -C release/builder ./...

.PHONY: test-all-e2e
test-all-e2e: build ## run all end-to-end tests, and a short chaos (as root)
	@echo 'go test $(E2E_PKGS)'; $(NOTING); \
	$(WITH_BARQUE) $(GO) test -count=1 -p 1 -parallel 3 -timeout 90m $(E2E_PKGS)
