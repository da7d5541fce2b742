##@ Faults, simulation and fuzzing

# The earlier version is built once, from its own sources.
FROM    ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
EARLIER  = $(CURDIR)/bin/earlier/$(shell git rev-parse --short=12 --verify --quiet '$(FROM)^{commit}')
.PHONY: upgrades
upgrades: build ## upgrade a cluster from an earlier version and take it back while it is used (FROM=commit TIMES=10; as root)
	@git rev-parse --verify --quiet '$(FROM)^{commit}' >/dev/null || { echo "no earlier version: name its tag or commit with FROM=…"; exit 1; }
	@if [ ! -x $(EARLIER)/bin/barque ]; then \
	  rm -rf $(EARLIER); mkdir -p $(EARLIER); git archive '$(FROM)' | tar -x -C $(EARLIER); \
	  $(MAKE) --no-print-directory -C $(EARLIER) build VERSION=$$(git describe --tags --always '$(FROM)'); fi
	@$(NOTING); $(WITH_BARQUE) BARQUE_EARLIER=$(EARLIER)/bin/barque \
	$(GO) test -count=$(or $(TIMES),1) -run '^TestUpgradeAndBack$$' -v -timeout 3h ./cluster-test

.PHONY: upgrade-command
upgrade-command: build ## upgrade a cluster with barque upgrade while it is used, with broken programs and a leader kill (as root)
	@$(GO) build -ldflags "$(subst $(VERSION),$(VERSION)-next,$(LDFLAGS))" -o bin/next/barque ./cmd/barque
	@$(NOTING); $(WITH_BARQUE) BARQUE_NEXT=$(CURDIR)/bin/next/barque \
	$(GO) test -count=1 -run '^TestUpgradeCommand$$' -v -timeout 2h ./cluster-test

.PHONY: rotations
rotations: build ## rotate the key of 10,000 Secrets again and again while the leader is killed 100 times, and search the disks for them (SECRETS=10000 KILLS=100; as root)
	@$(NOTING); $(WITH_BARQUE) \
	$(GO) test -count=1 -run '^TestRotationsUnderKills$$' -v -timeout 6h ./cluster-test -secrets $(or $(SECRETS),10000) -kills $(or $(KILLS),100)

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
	$(AS_ROOT) bin/chaos -duration $(or $(DURATION),10m) -seed $(or $(SEED),0) -count $(or $(COUNT),0) \
	  -faults '$(FAULTS)' -page $(or $(PAGE),bin/chaos.html)
	$(if $(FAULTS),,$(MAKE) --no-print-directory chaos-addresses COUNT=$(or $(ADDRESS_FAULTS),30) DURATION=)

.PHONY: chaos-addresses
chaos-addresses: build ## break a cluster while a neighbour asks who has its addresses: never two (COUNT=200 or DURATION=…, SEED=… FAULTS=…; as root)
	$(GO) build -o bin/chaos-addresses ./cluster-test/addresschaos
	$(AS_ROOT) bin/chaos-addresses -duration $(or $(DURATION),10m) -seed $(or $(SEED),0) \
	  -count $(or $(COUNT),0) -faults '$(FAULTS)'
