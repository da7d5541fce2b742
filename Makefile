# Barque's build. `make help` lists the targets; docs/build.md explains the parts.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
MODULE  := github.com/barque/barque

# What `barque kubectl version` says of its client; the servers' own is internal/version's. By major and
# minor the API machinery knows which versions of kinds are deprecated, and warns clients.
KUBERNETES := $(shell sed -n 's/^const Kubernetes = "\(.*\)"/\1/p' internal/version/version.go)
LDFLAGS    := -s -w -X $(MODULE)/internal/version.Version=$(VERSION) \
              -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)+barque.$(VERSION) \
              -X k8s.io/component-base/version.gitMajor=$(patsubst v%,%,$(word 1,$(subst ., ,$(KUBERNETES)))) \
              -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))

# Everything but runc is built without cgo: one build cache for all, static files.
export CGO_ENABLED := 0
# Binaries hold no paths of this machine, and another checkout finds its packages in the build cache.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

# A dev cluster makes network namespaces and containers: that takes root.
SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-zA-Z0-9_.-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---------------------------------------------------------------------------------------------
# The cluster on this machine

.PHONY: up
up: build ## build everything and start a three-server cluster on this machine
	$(SUDO) bin/barque dev up

.PHONY: down
down: ## stop that cluster and remove all that it made
	@if [ -x bin/barque ]; then $(SUDO) bin/barque dev down; else echo "bin/barque is not built: there is no cluster of its making"; fi

# ---------------------------------------------------------------------------------------------
# The binary

.PHONY: build
build: bundle schemas gateway-crds ## build bin/barque with its node components inside
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/barque ./cmd/barque

# ---------------------------------------------------------------------------------------------
# Node components: built from the modules that go.mod names as tools, so their versions are
# go.mod's; packed (compressed, with checksums) into kubelet/bundle/files for go:embed.

BUNDLE_DIR := kubelet/bundle/files
STAGE      := bin/bundle
MKBUNDLE   := bin/mkbundle

RUNC_PKG       := github.com/opencontainers/runc
SHIM_PKG       := ./kubelet/shim
PTP_PKG        := github.com/containernetworking/plugins/plugins/main/ptp
HOST_LOCAL_PKG := github.com/containernetworking/plugins/plugins/ipam/host-local

COMPONENTS := runc containerd-shim-runc-v2 ptp host-local pause.tar hello.tar
STAGED     := $(COMPONENTS:%=$(STAGE)/%)

STATIC_GO_BUILD = $(GO) build -ldflags "-s -w" -o $@

.PHONY: bundle
bundle: ## build runc, the shim, the CNI plugins and the built-in images into kubelet/bundle/files
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUNDLE_DIR)/index.json

$(BUNDLE_DIR)/index.json: $(MKBUNDLE) $(STAGED)
	$(MKBUNDLE) pack -o $(BUNDLE_DIR) $(STAGED)

$(MKBUNDLE): $(wildcard kubelet/bundle/mkbundle/*.go kubelet/bundle/format/*.go) go.mod
	$(GO) build -o $@ ./kubelet/bundle/mkbundle

# A component is rebuilt when its module's version moves: go.mod is its only input. Go's own
# cache makes a rebuild for any other change of go.mod a matter of a second. The shim has sources
# of ours, too.
$(STAGE)/containerd-shim-runc-v2: go.mod $(wildcard kubelet/shim/*.go kubelet/exits/*.go) ; $(STATIC_GO_BUILD) $(SHIM_PKG)
$(STAGE)/ptp:                     go.mod ; $(STATIC_GO_BUILD) $(PTP_PKG)
$(STAGE)/host-local:              go.mod ; $(STATIC_GO_BUILD) $(HOST_LOCAL_PKG)

# runc enters namespaces in C, so it needs gcc. With libseccomp's headers and static library
# (Debian: libseccomp-dev, installed here when we may) it filters system calls; without them it
# is built all the same, and pods run unfiltered.
$(STAGE)/runc: go.mod
	@if [ ! -e /usr/include/seccomp.h ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing libseccomp-dev (system call filters for containers)"; \
	  { apt-get install -y -q libseccomp-dev || { apt-get update -q && apt-get install -y -q libseccomp-dev; }; } \
	    >/tmp/barque-libseccomp.log 2>&1 || { echo "warning: could not install libseccomp-dev:"; tail -3 /tmp/barque-libseccomp.log; }; \
	  rm -f /tmp/barque-libseccomp.log; \
	fi
	tags="netgo osusergo"; \
	if [ -e /usr/include/seccomp.h ]; then tags="$$tags seccomp"; \
	else echo "warning: libseccomp-dev is missing: runc is built without seccomp"; fi; \
	CGO_ENABLED=1 $(GO) build -tags "$$tags" -ldflags '-s -w -linkmode external -extldflags "-static"' -o $@ $(RUNC_PKG)

$(STAGE)/pause: kubelet/bundle/pause/pause.c
	@mkdir -p $(@D)
	$(CC) -Os -Wall -Wextra -static -s -o $@ $<

$(STAGE)/hello: $(wildcard examples/hello/*.go) go.mod
	$(STATIC_GO_BUILD) ./examples/hello

$(STAGE)/pause.tar: $(STAGE)/pause $(MKBUNDLE)
	$(MKBUNDLE) image -name barque.local/pause:1 -user 65535:65535 -o $@ $<

$(STAGE)/hello.tar: $(STAGE)/hello $(MKBUNDLE)
	$(MKBUNDLE) image -name barque.local/hello:1 -user 65532:65532 -port 8080/tcp -o $@ $<

# ---------------------------------------------------------------------------------------------
# Schemas of the built-in kinds: upstream's generator reads them from the comments of k8s.io/api;
# packed into apiserver/openapi/schemas/files for go:embed. The stamp is younger than all of them.

SCHEMAS_DIR := apiserver/openapi/schemas
MKSCHEMAS   := bin/_schemas
# What the types of k8s.io/api refer to is read with them.
MACHINERY   := $(addprefix k8s.io/apimachinery/pkg/,api/resource apis/meta/v1 runtime util/intstr version)
# The kinds that Barque serves in place of metrics-server.
METRICS     := k8s.io/metrics/pkg/apis/metrics/v1beta1

.PHONY: schemas
schemas: $(MKSCHEMAS)/packed ## generate the OpenAPI schemas of the built-in kinds into apiserver/openapi/schemas/files

$(MKSCHEMAS)/packed: Makefile go.mod $(SCHEMAS_DIR)/pack.go $(SCHEMAS_DIR)/schemas.go
	@mkdir -p $(@D)
	$(GO) tool openapi-gen --go-header-file /dev/null --report-filename /dev/null \
	  --output-dir $(@D) --output-pkg main --output-file definitions.go $(MACHINERY) $(METRICS) $$($(GO) list k8s.io/api/... | grep -v testing)
	cp $(SCHEMAS_DIR)/pack.go $(@D)/pack.go
	$(GO) run $(@D)/definitions.go $(@D)/pack.go $(SCHEMAS_DIR)/files
	touch $@

# ---------------------------------------------------------------------------------------------
# Definitions of the Gateway API, from upstream's module at the version in go.mod. Kinds that the
# gateway does not serve are left out.

CRDS_DIR := edge/gateway/crds/files
CRDS     := gatewayclasses gateways listenersets httproutes grpcroutes tlsroutes backendtlspolicies referencegrants

.PHONY: gateway-crds
gateway-crds: $(CRDS:%=$(CRDS_DIR)/%.yaml.gz) ## take the definitions of the Gateway API into edge/gateway/crds/files

# Listing a package downloads its module, which listing the module alone does not.
$(CRDS_DIR)/%.yaml.gz: Makefile go.mod
	gzip -9 -n < "$$($(GO) list -f '{{.Module.Dir}}' sigs.k8s.io/gateway-api/apis/v1)/config/crd/standard/gateway.networking.k8s.io_$*.yaml" > $@

# ---------------------------------------------------------------------------------------------
# Tests, in three rings: `make test`, `make test-all`, `make bench*`. docs/testing.md describes them.

# The end-to-end packages need bin/barque and have their own run.
E2E_PKGS  := ./cluster-test ./cluster-test/chaos
UNIT_PKGS  = $$($(GO) list ./... | grep -v -e '/cluster-test$$' -e '/cluster-test/chaos$$')
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
lint: bundle schemas gateway-crds ## check formatting, go vet, staticcheck
	@unformatted="$$(gofmt -l $$(git ls-files '*.go'))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: test-unit
test-unit: bundle schemas gateway-crds ## run the unit tests in their short form, with the race detector where goroutines meet
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
	echo "go test -short, all other packages but $(E2E_PKGS)"; \
	$(GO) test $(SHORT) $$($(GO) list ./... | grep -vxF -e "$$raced" | grep -v -e '/cluster-test$$' -e '/cluster-test/chaos$$')

.PHONY: test-e2e
test-e2e: build ## take one three-server cluster through its life: hello, rollout, a dead leader, backup, leave (as root)
	@echo "go test -run TestTour ./cluster-test"; $(NOTING); \
	BARQUE_BIN=$(CURDIR)/bin/barque $(GO) test -count=$(or $(RUNS),1) -run '^TestTour$$' -timeout 60m ./cluster-test

.PHONY: test-all
test-all: lint test-all-unit test-all-e2e test-clients test-oidc test-csi ## run everything, for a night: all tests with the race detector, simulation, both chaos worlds, fuzzing (as root)
	$(MAKE) --no-print-directory sim SEEDS=$(or $(SEEDS),100)
	$(MAKE) --no-print-directory chaos-store DURATION=$(or $(DURATION),10m)
	$(MAKE) --no-print-directory chaos DURATION=$(or $(DURATION),10m)
	$(MAKE) --no-print-directory fuzz FUZZTIME=$(or $(FUZZTIME),1m)

.PHONY: test-all-unit
test-all-unit: bundle schemas gateway-crds ## run all unit tests in full, with the race detector
	@$(NOTING); \
	if $(WITH_CC); then \
	  echo "go test -race, all packages but $(E2E_PKGS)"; \
	  CGO_ENABLED=1 $(RACE) -timeout 60m $(UNIT_PKGS); \
	  echo "go test, what is built without the race detector only (raftstore/addresses_test.go)"; \
	  $(GO) test -timeout 10m -run 'Address|Moves' ./raftstore; \
	else \
	  $(GO) test -timeout 60m $(UNIT_PKGS); \
	fi

.PHONY: test-all-e2e
test-all-e2e: build ## run all end-to-end tests, and a short chaos (as root)
	@echo 'go test $(E2E_PKGS)'; $(NOTING); \
	BARQUE_BIN=$(CURDIR)/bin/barque $(GO) test -count=1 -p 1 -parallel 3 -timeout 90m $(E2E_PKGS)

# The earlier version is built once, from its own sources.
FROM    ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
EARLIER  = $(CURDIR)/bin/earlier/$(shell git rev-parse --short=12 --verify --quiet '$(FROM)^{commit}')
.PHONY: upgrades
upgrades: build ## upgrade a cluster from an earlier version and take it back while it is used (FROM=commit TIMES=10; as root)
	@git rev-parse --verify --quiet '$(FROM)^{commit}' >/dev/null || { echo "no earlier version: name its tag or commit with FROM=…"; exit 1; }
	@if [ ! -x $(EARLIER)/bin/barque ]; then \
	  rm -rf $(EARLIER); mkdir -p $(EARLIER); git archive '$(FROM)' | tar -x -C $(EARLIER); \
	  $(MAKE) --no-print-directory -C $(EARLIER) build VERSION=$$(git describe --tags --always '$(FROM)'); fi
	@$(NOTING); BARQUE_BIN=$(CURDIR)/bin/barque BARQUE_EARLIER=$(EARLIER)/bin/barque \
	$(GO) test -count=$(or $(TIMES),1) -run '^TestUpgradeAndBack$$' -v -timeout 3h ./cluster-test

.PHONY: rotations
rotations: build ## rotate the key of 10,000 Secrets again and again while the leader is killed 100 times, and search the disks for them (SECRETS=10000 KILLS=100; as root)
	@$(NOTING); BARQUE_BIN=$(CURDIR)/bin/barque \
	$(GO) test -count=1 -run '^TestRotationsUnderKills$$' -v -timeout 6h ./cluster-test -secrets $(or $(SECRETS),10000) -kills $(or $(KILLS),100)

# Dex is in a module of its own, so that Barque's does not depend on it.
.PHONY: test-oidc
test-oidc: build ## log users in by Dex, an OpenID Connect provider, and by certificates, with kubectl (ONLY='TestDex')
	@$(NOTING); BARQUE_BIN=$(CURDIR)/bin/barque $(GO) test -C cluster-test/oidc -count=1 -timeout 30m -run '$(ONLY)' .

# The clients are a module of their own, so that Barque's does not depend on Helm and controller-runtime.
.PHONY: test-clients
test-clients: build ## run kubectl, Helm, client-go's informers and an operator against a server (ONLY='TestHelm')
	@$(NOTING); BARQUE_BIN=$(CURDIR)/bin/barque $(GO) test -C cluster-test/clients -count=1 -timeout 60m -run '$(ONLY)' .

# The suite of kubernetes-csi, and the sidecars of CSI drivers, are in modules of their own, too. A
# sidecar's module has the permissions that its authors ship.
SIDECARS := external-attacher/v4 external-provisioner/v6 external-resizer/v2
.PHONY: test-csi
test-csi: build ## hold the tests' CSI driver against the specification, and run it with its sidecars on a cluster (as root)
	@mkdir -p bin/csi
	$(GO) build -ldflags "-s -w" -o bin/csi/csi-driver ./cluster-test/csidriver/csi-driver
	$(GO) build -C cluster-test/csisidecars -ldflags "-s -w" -o $(CURDIR)/bin/csi/ tool
	@for sidecar in $(SIDECARS); do \
	  dir=$$($(GO) list -C cluster-test/csisidecars -m -f '{{.Dir}}' github.com/kubernetes-csi/$$sidecar); \
	  install -m 644 $$dir/deploy/kubernetes/rbac.yaml bin/csi/$${sidecar%/*}-rbac.yaml; \
	done
	@$(NOTING); CSI_DRIVER_BIN=$(CURDIR)/bin/csi/csi-driver $(GO) test -C cluster-test/csisanity -count=1 .
	@$(NOTING); CSI_PROGRAMS=$(CURDIR)/bin/csi BARQUE_BIN=$(CURDIR)/bin/barque \
	  $(GO) test -count=1 -timeout 30m -run '^TestCSI$$' ./cluster-test

.PHONY: bench
bench: build ## measure start, pods, failover, memory and a starved machine (ONLY=failover KILLS=100, ONLY=starved; as root; not part of the tests)
	BARQUE_BIN=$(CURDIR)/bin/barque $(GO) run ./cluster-test/bench -only '$(ONLY)' -kills $(or $(KILLS),20)

.PHONY: cis-page
cis-page: ## write the tables of docs/cis.md from the rows that `barque check --profile cis` judges
	$(GO) test ./cmd/barque -count=1 -run '^TestCISPage$$' -update

.PHONY: rights
rights: ## write the table of docs/rights.md from the roles of the control plane
	$(GO) test ./apiserver/rbac -count=1 -run '^TestRightsPage$$' -update

.PHONY: api-coverage
api-coverage: schemas ## write the table of docs/api-coverage.md from what the API server serves
	$(GO) test ./apiserver -count=1 -run '^TestAPI$$/^CoveragePage$$' -update

# Each seed is a cluster of three or five under faults in virtual time; it stops at the first one with a
# violation and says where the record is. SEED is the first one, FOR repeats each as often. HOURS is for so much
# virtual time under faults, in runs of SPAN.
.PHONY: sim
sim: ## simulate the store under faults, any number of seeds (SEEDS=200 or HOURS=24, SEED=… EXCHANGE=1 LEADERS=… FOR=1)
	$(GO) test -count=$(or $(FOR),1) -v -timeout 0 -run '^TestSimulation$$' ./raftstore/sim \
	  -seeds $(or $(SEEDS),200) -seed $(or $(SEED),0) -leaders $(or $(LEADERS),0) -hours $(or $(HOURS),0) -span $(or $(SPAN),10m) $(if $(EXCHANGE),-exchange) | grep -v '^ *=== '

# To make an interesting input smaller may take a minute by default, in which nothing else is tried.
.PHONY: fuzz
fuzz: ## fuzz what reads foreign bytes, each target of the module for FUZZTIME (1m; ONLY=FuzzToken for some)
	@for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
	  for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go | grep -- '$(ONLY)'); do \
	    echo "fuzzing $$name of $$dir for $(or $(FUZZTIME),1m)"; \
	    $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(or $(FUZZTIME),1m) -fuzzminimizetime 2s "$$dir" || exit 1; \
	  done; \
	done

# DURATION, SEED, LOGSTORE (boltdb or wal) and FAULTS (an expression that names must match) are for repeating; COUNT is a
# number of faults instead of a time.
.PHONY: chaos-store
chaos-store: ## break three real servers of the store and check what they say (DURATION=5m or COUNT=…, SEED=… FAULTS=…; as root)
	$(GO) build -o bin/chaos-store ./cluster-test/store/chaos
	$(SUDO) bin/chaos-store -duration $(or $(DURATION),5m) -seed $(or $(SEED),0) -count $(or $(COUNT),0) -log-store '$(LOGSTORE)' \
	  -faults '$(FAULTS)' -page bin/chaos-store.html

# COUNT is a number of faults instead of a time, FAULTS an expression that names must match: COUNT=500 FAULTS='kill the leader'.
.PHONY: chaos
chaos: build ## break a whole cluster in all ways while it is used, and check that it kept its promises (DURATION=10m or COUNT=…, SEED=… FAULTS=…; as root)
	$(GO) build -o bin/chaos ./cluster-test/chaos
	$(SUDO) env BARQUE_BIN=$(CURDIR)/bin/barque bin/chaos -duration $(or $(DURATION),10m) -seed $(or $(SEED),0) -count $(or $(COUNT),0) \
	  -faults '$(FAULTS)' -page $(or $(PAGE),bin/chaos.html)

# etcd is built from a module of its own, so that Barque's does not depend on it.
ETCD_MODULE := cluster-test/storebench/etcd

.PHONY: bench-store
bench-store: ## measure the store, beside etcd (ONLY=puts REPEATS=3 STOPS=20 SILENT=-1s LOGSTORE=wal SOAK=30m; not part of the tests)
	$(GO) build -o bin/storebench ./cluster-test/storebench
	@if $(GO) build -C $(ETCD_MODULE) -o $(CURDIR)/bin/etcd go.etcd.io/etcd/server/v3 && $(GO) build -C $(ETCD_MODULE) -o $(CURDIR)/bin/etcdload .; then \
	  etcd="-etcd $(CURDIR)/bin/etcd -etcd-load $(CURDIR)/bin/etcdload"; \
	else echo "WARNING: etcd could not be built (see above): there is nothing to compare with"; etcd=; fi; \
	bin/storebench -dir bin -only '$(ONLY)' -repeats $(or $(REPEATS),3) -stops $(or $(STOPS),20) -silent $(or $(SILENT),0) -soak $(or $(SOAK),0) -log-store '$(LOGSTORE)' $$etcd

# ONLY may have quotes, so that it comes through the environment, as make gives it.
.PHONY: answers
answers: schemas ## send the same requests to kube-apiserver and to Barque's API server, and print where the answers differ (ONLY='^Pod create'; builds kube-apiserver once, some minutes)
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/answers ./cluster-test/answers
	GO='$(GO)' bin/answers -only "$${ONLY-}"

.PHONY: bench-api
bench-api: build ## measure three API servers beside three kube-apiservers over etcd (ONLY='^(list|first)| custom |definitions|memory|collection|pages|node|audit' REPEATS=5 ARGS='-pods 10000'; builds kube-apiserver once, some minutes; as root)
	$(GO) build -o bin/apibench ./cluster-test/apibench
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/apibench -only "$${ONLY-}" -repeats $(or $(REPEATS),5) $(ARGS)

.PHONY: profile-api
profile-api: build ## take a CPU profile of each of three servers under each case of bench-api, into bin/profiles (ONLY='^update protobuf 64'; as root)
	$(GO) build -o bin/apibench ./cluster-test/apibench
	$(SUDO) env PATH="$$PATH" BARQUE_BIN=$(CURDIR)/bin/barque bin/apibench -only "$${ONLY-}" -each 10s -profiles bin/profiles

# CoreDNS and kube-proxy come from modules of their own.
.PHONY: bench-network
bench-network: schemas ## measure cluster DNS beside CoreDNS, and the service proxy beside kube-proxy (ONLY='dns|services' REPEATS=3 SERVICES=10,1000,10000; builds both once, some minutes; as root)
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/netbench ./cluster-test/netbench
	$(SUDO) env PATH="$$PATH" GO='$(GO)' bin/netbench -only "$${ONLY-}" -repeats $(or $(REPEATS),3) $(if $(SERVICES),-services '$(SERVICES)')

# SIDE chooses among upstream, 'upstream on Barque' and Barque, ONLY among the cases.
.PHONY: bench-scheduler
bench-scheduler: build ## measure scheduler and controllers beside upstream's, on hollow nodes (ONLY='pods|rollout|jobs|takeover|crowd' SIDE='^Barque' NODES=1000 PODS=5000 DEPLOYMENTS=100 JOBS=2000 KILLS=3 WATCHED=1m REPEATS=1; builds upstream's once, some minutes; as root)
	$(GO) build -o bin/schedbench ./cluster-test/schedbench
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/schedbench -only "$${ONLY-}" -side "$${SIDE-}" \
	  -nodes $(or $(NODES),1000) -pods $(or $(PODS),5000) -deployments $(or $(DEPLOYMENTS),100) -jobs $(or $(JOBS),2000) \
	  -kills $(or $(KILLS),3) -watched $(or $(WATCHED),1m) -repeats $(or $(REPEATS),1)

# ATONCE are pods that are created at once, PODS those that run while memory is read; SIDE is kubelet or Barque.
.PHONY: bench-node
bench-node: build ## measure a node beside kubelet: pod start, memory, CPU time (ONLY='start|many|memory|idle' SIDE=kubelet ATONCE=1,10,50 ROUNDS=20 MANY=10,30,60,110 SCRAPE=15s PODS=0,30,110 SETTLE=30s WATCHED=1m REPEATS=1; builds kubelet once, some minutes; as root)
	$(GO) build -o bin/nodebench ./cluster-test/nodebench
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/nodebench -only "$${ONLY-}" -side "$${SIDE-}" \
	  $(if $(ATONCE),-at-once '$(ATONCE)') $(if $(MANY),-many '$(MANY)') $(if $(SCRAPE),-scrape '$(SCRAPE)') $(if $(PODS),-pods '$(PODS)') -rounds $(or $(ROUNDS),20) \
	  -settle $(or $(SETTLE),30s) -watched $(or $(WATCHED),1m) -repeats $(or $(REPEATS),1)

# LABELS, as ONLY, may have quotes.
.PHONY: conformance
conformance: build ## run Kubernetes' conformance specs and write docs/conformance.md, or other specs (OTHERS='node,network' or all, ONLY='regex' LABELS='filter' PROCS=6 CONFORMANCE_CACHE=directory ARGS=-build-only; as root)
	$(GO) build -o bin/conformance ./cluster-test/conformance
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/conformance -only "$${ONLY-}" -labels "$${LABELS-}" -others "$${OTHERS-}" -procs $(or $(PROCS),6) -cache "$${CONFORMANCE_CACHE-}" $(ARGS)

.PHONY: conformance-gateway
conformance-gateway: build ## run the Gateway API's conformance suite and write its part of docs/conformance.md (ONLY=Test CONFORMANCE_CACHE=directory ARGS=-build-only; as root)
	$(GO) build -o bin/conformance-gateway ./cluster-test/gatewayconformance
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/conformance-gateway -only "$${ONLY-}" -cache "$${CONFORMANCE_CACHE-}" $(ARGS)

# ONLY, as that of conformance, may have quotes.
.PHONY: operators
operators: build ## run programs of other authors as these ship them, with a leader's death and a restart of all machines, and write docs/operators.md (ONLY='JavaScript' ARGS=-build-only OPERATORS_CACHE=directory; as root)
	$(GO) build -o bin/operators ./cluster-test/operators
	$(SUDO) env PATH="$$PATH" GO='$(GO)' BARQUE_BIN=$(CURDIR)/bin/barque bin/operators -only "$${ONLY-}" -cache "$${OPERATORS_CACHE-}" $(ARGS)
