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

include make/components.mk make/generate.mk make/test.mk make/chaos.mk make/compat.mk make/bench.mk
