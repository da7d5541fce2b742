##@ Benchmarks

.PHONY: bench
bench: build ## measure start, pods, failover, memory and a starved machine (ONLY=failover KILLS=100, ONLY=starved; as root; not part of the tests)
	$(WITH_BARQUE) $(GO) run ./cluster-test/bench -only '$(ONLY)' -kills $(or $(KILLS),20)

# etcd is built from a module of its own, so that Barque's does not depend on it.
ETCD_MODULE := cluster-test/storebench/etcd

.PHONY: bench-store
bench-store: ## measure the store, beside etcd (ONLY=puts REPEATS=3 STOPS=20 SILENT=-1s LOGSTORE=wal SOAK=30m; not part of the tests)
	$(GO) build -o bin/storebench ./cluster-test/storebench
	@if $(GO) build -C $(ETCD_MODULE) -o $(CURDIR)/bin/etcd go.etcd.io/etcd/server/v3 && $(GO) build -C $(ETCD_MODULE) -o $(CURDIR)/bin/etcdload .; then \
	  etcd="-etcd $(CURDIR)/bin/etcd -etcd-load $(CURDIR)/bin/etcdload"; \
	else echo "WARNING: etcd could not be built (see above): there is nothing to compare with"; etcd=; fi; \
	bin/storebench -dir bin -only '$(ONLY)' -repeats $(or $(REPEATS),3) -stops $(or $(STOPS),20) -silent $(or $(SILENT),0) -soak $(or $(SOAK),0) -log-store '$(LOGSTORE)' $$etcd

.PHONY: bench-api
bench-api: build ## measure three API servers beside three kube-apiservers over etcd (ONLY='^(list|first)| custom |definitions|memory|collection|pages|node|audit' REPEATS=5 ARGS='-pods 10000'; builds kube-apiserver once, some minutes; as root)
	$(GO) build -o bin/apibench ./cluster-test/apibench
	$(AS_ROOT) bin/apibench -only "$${ONLY-}" -repeats $(or $(REPEATS),5) $(ARGS)

.PHONY: profile-api
profile-api: build ## take a CPU profile of each of three servers under each case of bench-api, into bin/profiles (ONLY='^update protobuf 64'; as root)
	$(GO) build -o bin/apibench ./cluster-test/apibench
	$(AS_ROOT) bin/apibench -only "$${ONLY-}" -each 10s -profiles bin/profiles

# CoreDNS and kube-proxy come from modules of their own.
.PHONY: bench-network
bench-network: schemas ## measure cluster DNS beside CoreDNS, and the service proxy beside kube-proxy (ONLY='dns|services' REPEATS=3 SERVICES=10,1000,10000; builds both once, some minutes; as root)
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/netbench ./cluster-test/netbench
	$(SUDO) env PATH="$$PATH" GO='$(GO)' bin/netbench -only "$${ONLY-}" -repeats $(or $(REPEATS),3) $(if $(SERVICES),-services '$(SERVICES)')

# Caddy comes from a module of its own, nginx and HAProxy from Debian's packages, which are not installed.
.PHONY: bench-edge
bench-edge: build ## measure the gateway beside nginx, HAProxy and Caddy (ONLY='HTTP/2|routes' SIDE='nginx|Barque' REPEATS=3 CONNECTIONS=1,64,512 ROUTES=10,1000,10000 EACH=5s RATE=1000; builds Caddy once, some minutes; as root)
	$(GO) build -o bin/edgebench ./cluster-test/edgebench
	$(AS_ROOT) bin/edgebench -only "$${ONLY-}" -side "$${SIDE-}" -repeats $(or $(REPEATS),3) \
	  -each $(or $(EACH),5s) -rate $(or $(RATE),1000) -connections $(or $(CONNECTIONS),1,64,512) -routes $(or $(ROUTES),10,1000,10000)

# SIDE chooses among upstream, 'upstream on Barque' and Barque, ONLY among the cases.
.PHONY: bench-scheduler
bench-scheduler: build ## measure scheduler and controllers beside upstream's, on hollow nodes (ONLY='pods|rollout|jobs|takeover|crowd' SIDE='^Barque' NODES=1000 PODS=5000 DEPLOYMENTS=100 JOBS=2000 KILLS=3 WATCHED=1m REPEATS=1; builds upstream's once, some minutes; as root)
	$(GO) build -o bin/schedbench ./cluster-test/schedbench
	$(AS_ROOT) bin/schedbench -only "$${ONLY-}" -side "$${SIDE-}" \
	  -nodes $(or $(NODES),1000) -pods $(or $(PODS),5000) -deployments $(or $(DEPLOYMENTS),100) -jobs $(or $(JOBS),2000) \
	  -kills $(or $(KILLS),3) -watched $(or $(WATCHED),1m) -repeats $(or $(REPEATS),1)

# ATONCE are pods that are created at once, PODS those that run while memory is read; SIDE is kubelet or Barque.
.PHONY: bench-node
bench-node: build ## measure a node beside kubelet: pod start, memory, CPU time (ONLY='start|many|memory|idle' SIDE=kubelet ATONCE=1,10,50 ROUNDS=20 MANY=10,30,60,110 SCRAPE=15s PODS=0,30,110 SETTLE=30s WATCHED=1m REPEATS=1; builds kubelet once, some minutes; as root)
	$(GO) build -o bin/nodebench ./cluster-test/nodebench
	$(AS_ROOT) bin/nodebench -only "$${ONLY-}" -side "$${SIDE-}" \
	  $(if $(ATONCE),-at-once '$(ATONCE)') $(if $(MANY),-many '$(MANY)') $(if $(SCRAPE),-scrape '$(SCRAPE)') $(if $(PODS),-pods '$(PODS)') -rounds $(or $(ROUNDS),20) \
	  -settle $(or $(SETTLE),30s) -watched $(or $(WATCHED),1m) -repeats $(or $(REPEATS),1)
