##@ Parts of the binary

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
bundle: libseccomp ## build runc, the shim, the CNI plugins and the built-in images into kubelet/bundle/files
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
# (Debian: libseccomp-dev) it filters system calls. Without them it is built all the same, and pods
# run unfiltered.
SECCOMP := /usr/include/seccomp.h

$(STAGE)/runc: go.mod
	tags="netgo osusergo"; \
	if [ -e $(SECCOMP) ]; then tags="$$tags seccomp"; \
	else echo "warning: libseccomp-dev is missing: runc is built without seccomp"; fi; \
	CGO_ENABLED=1 $(GO) build -tags "$$tags" -ldflags '-s -w -linkmode external -extldflags "-static"' -o $@ $(RUNC_PKG)

# The only package that is installed for a build. Without root, Debian's tools or a network the
# build goes on.
.PHONY: libseccomp
libseccomp: ## install libseccomp-dev, which runc needs to filter system calls (on Debian, as root; otherwise nothing)
	@if [ ! -e $(SECCOMP) ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing libseccomp-dev (system call filters for containers)"; log=$$(mktemp); \
	  { apt-get install -y -q libseccomp-dev || { apt-get update -q && apt-get install -y -q libseccomp-dev; }; } \
	    >$$log 2>&1 || { echo "warning: could not install libseccomp-dev:"; tail -3 $$log; }; \
	  rm -f $$log; \
	fi

$(STAGE)/pause: kubelet/bundle/pause/pause.c
	@mkdir -p $(@D)
	$(CC) -Os -Wall -Wextra -static -s -o $@ $<

$(STAGE)/hello: $(wildcard examples/hello/*.go) go.mod
	$(STATIC_GO_BUILD) ./examples/hello

$(STAGE)/pause.tar: $(STAGE)/pause $(MKBUNDLE)
	$(MKBUNDLE) image -name barque.local/pause:1 -user 65535:65535 -o $@ $<

$(STAGE)/hello.tar: $(STAGE)/hello $(MKBUNDLE)
	$(MKBUNDLE) image -name barque.local/hello:1 -user 65532:65532 -port 8080/tcp -o $@ $<
