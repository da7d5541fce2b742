# Barque's build. `make help` lists the targets; docs/build.md explains the parts.
# The file itself has the cluster and the binary. make/*.mk have the rest, a file for each heading.

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

# Programs that try Barque find it by this variable. Those that need root also build with Go.
WITH_BARQUE := BARQUE_BIN=$(CURDIR)/bin/barque
AS_ROOT      = $(SUDO) env PATH="$$PATH" GO='$(GO)' $(WITH_BARQUE)

# A line that begins with ##@ is a heading of the list.
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_.-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---------------------------------------------------------------------------------------------
##@ A cluster on this machine

.PHONY: up
up: build ## build everything and start a three-server cluster on this machine
	$(SUDO) bin/barque dev up

.PHONY: down
down: ## stop that cluster and remove all that it made
	@if [ -x bin/barque ]; then $(SUDO) bin/barque dev down; else echo "bin/barque is not built: there is no cluster of its making"; fi

# ---------------------------------------------------------------------------------------------
##@ The binary

.PHONY: build
build: bundle schemas gateway-crds ## build bin/barque with its node components inside
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/barque ./cmd/barque

# Root has another build cache, and git does not read another user's repository: what is installed
# is built before, by its user.
PREFIX ?= /usr/local
.PHONY: install
install: ## copy bin/barque, which is built, to DESTDIR/PREFIX/bin (PREFIX=/usr/local; as root)
	@[ -x bin/barque ] || { echo "bin/barque is not built: run make build first, as yourself"; exit 1; }
	install -D -m 755 bin/barque $(DESTDIR)$(PREFIX)/bin/barque

.PHONY: clean
clean: ## remove all that make has built and generated; Go's build cache stays
	rm -rf bin
	find $(EMBEDDED) -type f ! -name README.md -delete

.PHONY: fmt
fmt: ## format all Go files
	gofmt -l -w $$(git ls-files -- '*.go')

include make/components.mk make/generate.mk make/test.mk make/chaos.mk make/compat.mk make/bench.mk
