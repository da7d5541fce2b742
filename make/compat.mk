##@ Beside Kubernetes, and with programs of others

# Dex is in a module of its own, so that Barque's does not depend on it.
.PHONY: test-oidc
test-oidc: build ## log users in by Dex, an OpenID Connect provider, and by certificates, with kubectl (ONLY='TestDex')
	@$(NOTING); $(WITH_BARQUE) $(GO) test -C cluster-test/oidc -count=1 -timeout 30m -run '$(ONLY)' .

# The clients are a module of their own, so that Barque's does not depend on Helm and controller-runtime.
.PHONY: test-clients
test-clients: build ## run kubectl, Helm, client-go's informers and an operator against a server (ONLY='TestHelm')
	@$(NOTING); $(WITH_BARQUE) $(GO) test -C cluster-test/clients -count=1 -timeout 60m -run '$(ONLY)' .

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
	@$(NOTING); CSI_PROGRAMS=$(CURDIR)/bin/csi $(WITH_BARQUE) \
	  $(GO) test -count=1 -timeout 30m -run '^TestCSI$$' ./cluster-test

# The cloud-controller-manager is in a module of its own, too, with the manifests that its authors ship.
.PHONY: test-cloud
test-cloud: build ## run AWS' cloud-controller-manager on a cluster, against a fake of the cloud (as root)
	@mkdir -p bin/cloud/manifests
	$(GO) build -C cluster-test/cloudcontroller -ldflags "-s -w" -o $(CURDIR)/bin/cloud/ tool
	@dir=$$($(GO) list -C cluster-test/cloudcontroller -m -f '{{.Dir}}' k8s.io/cloud-provider-aws); \
	install -m 644 $$dir/examples/existing-cluster/base/*.yaml bin/cloud/manifests
	@$(NOTING); CLOUD_PROGRAMS=$(CURDIR)/bin/cloud $(WITH_BARQUE) \
	  $(GO) test -count=1 -timeout 30m -run '^TestACloudControllerManager$$' ./cluster-test

# ONLY may have quotes, so that it comes through the environment, as make gives it.
.PHONY: answers
answers: schemas ## send the same requests to kube-apiserver and to Barque's API server, and print where the answers differ (ONLY='^Pod create'; builds kube-apiserver once, some minutes)
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/answers ./cluster-test/answers
	GO='$(GO)' bin/answers -only "$${ONLY-}"

# LABELS, as ONLY, may have quotes.
.PHONY: conformance
conformance: build ## run Kubernetes' conformance specs and write docs/conformance.md, or other specs (OTHERS='node,network' or all, ONLY='regex' LABELS='filter' PROCS=6 CONFORMANCE_CACHE=directory ARGS=-build-only; as root)
	$(GO) build -o bin/conformance ./cluster-test/conformance
	$(AS_ROOT) bin/conformance -only "$${ONLY-}" -labels "$${LABELS-}" -others "$${OTHERS-}" -procs $(or $(PROCS),6) -cache "$${CONFORMANCE_CACHE-}" $(ARGS)

.PHONY: conformance-gateway
conformance-gateway: build ## run the Gateway API's conformance suite and write its part of docs/conformance.md (ONLY=Test CONFORMANCE_CACHE=directory ARGS=-build-only; as root)
	$(GO) build -o bin/conformance-gateway ./cluster-test/gatewayconformance
	$(AS_ROOT) bin/conformance-gateway -only "$${ONLY-}" -cache "$${CONFORMANCE_CACHE-}" $(ARGS)

# ONLY, as that of conformance, may have quotes.
.PHONY: operators
operators: build ## run programs of other authors as these ship them, with a leader's death and a restart of all machines, and write docs/operators.md (ONLY='JavaScript' ARGS=-build-only OPERATORS_CACHE=directory; as root)
	$(GO) build -o bin/operators ./cluster-test/operators
	$(AS_ROOT) bin/operators -only "$${ONLY-}" -cache "$${OPERATORS_CACHE-}" $(ARGS)

# Both parts need Chromium, and say so where it is missing. Pictures of the views are in bin/page.
.PHONY: test-page
test-page: build ## show the page at /ui in headless Chromium: against a made-up API, and on a cluster (ONLY='TestViews'; as root)
	@mkdir -p bin/page
	@$(NOTING); export PAGE_SHOTS=$(CURDIR)/bin/page; \
	$(GO) test -count=1 -timeout 30m -run '$(ONLY)' ./cluster-test/page; \
	$(WITH_BARQUE) $(GO) test -count=1 -timeout 60m -v -run '^TestPage' ./cluster-test
